"""The test part of a shipped model, scored with any dynamics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from models.base import DynamicsParams, Output
from models.checkpoint import Checkpoint
from training.provenance import load_graph_data, load_node_data

_AT_A_TIME = 64


class TestScores(NamedTuple):
    """Log-odds of the test part, and of each row that relaxed (a whole graph of nodes is one) the
    largest residual of its blocks, the steps of all of them, and whether the energy rose."""

    score_n: np.ndarray
    residual_R: np.ndarray
    steps_R: np.ndarray
    rose_R: np.ndarray


@torch.no_grad()
def score_test_part(
    checkpoint: Checkpoint, several: Sequence[DynamicsParams]
) -> tuple[np.ndarray, list[TestScores]]:
    """The labels of the test part, 0 and 1, and its scores with each dynamics.

    Raises:
        FileNotFoundError: the data are not here.
        ValueError: it is a model of other things than nodes and graphs, or its data are others.
    """
    network, manifest = checkpoint.network, checkpoint.manifest
    if manifest.task == "anomaly" and manifest.transactions is None:
        dataset, split = load_node_data(manifest)
        batch = network.pack([dataset.graph])
        outputs = [network.infer(batch, [params]) for params in several]
        results = [_collect(output.logits.numpy()[split.test], [output]) for output in outputs]
        return dataset.labels[split.test], results
    if manifest.task != "classification":
        raise ValueError(f"{manifest.name} is a model of {manifest.task}, not of nodes or graphs")
    graphs, split = load_graph_data(manifest)
    chosen = split.test[graphs.labels[split.test, 0] >= 0]
    results = list[TestScores]()
    for params in several:
        outputs = list[Output]()
        for start in range(0, len(chosen), _AT_A_TIME):
            some = [graphs.graphs[i] for i in chosen[start : start + _AT_A_TIME]]
            outputs.append(network.infer(network.pack(some), [params] * len(some)))
        scores = [output.logits[:, 1] - output.logits[:, 0] for output in outputs]
        results.append(_collect(torch.cat(scores).numpy(), outputs))
    return graphs.labels[chosen, 0], results


def _collect(score_n: np.ndarray, outputs: Sequence[Output]) -> TestScores:
    def join(name: str, reduce: np.ufunc) -> np.ndarray:
        parts = [[getattr(s, name) for s in output.solutions] for output in outputs]
        return np.concatenate([reduce.reduce(np.array(part), 0) for part in parts])

    rose_R = join("energy_rose", np.logical_or)
    return TestScores(score_n, join("residual_R", np.maximum), join("steps_R", np.add), rose_R)
