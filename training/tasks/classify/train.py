"""One network on one split of a dataset of graphs, to its figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
from lightning_fabric import Fabric
from rich.progress import Progress
from torch import nn

from models.base import temporary_seed
from models.inputs.tokens import GraphTokenizer
from models.registry import find_architectures
from models.tasks.graph_classifier import GraphClassifier, GraphConfig
from training.datasets import GraphDataset, Split
from training.metrics import ClassifierEvaluation, evaluate_classifier
from training.tasks.classify.baselines import BASELINE_NETWORKS
from training.tasks.classify.task import GraphTrainConfig, GraphTrainingTask
from training.trainer import TrainResult, fit


@dataclass(frozen=True)
class GraphRun:
    """A fitted network, its logits (G, C) of every graph, and their evaluation."""

    result: TrainResult
    logits: np.ndarray
    evaluation: ClassifierEvaluation
    network: nn.Module
    train_config: GraphTrainConfig


def train_graph_classifier(
    dataset: GraphDataset,
    split: Split,
    recipe: GraphTrainConfig,
    *,
    seed: int,
    fabric: Fabric,
    run_folder: Path | None = None,
    progress: Progress | None = None,
) -> GraphRun:
    """Fit `recipe.model`; columns are standardised on the training graphs.

    Raises:
        ValueError: a part of the split has graphs of one label only.
    """
    dataset.require_labels(split)
    network, tokeniser = _network(dataset, split, recipe, seed)
    problem = GraphTrainingTask(
        dataset.tokens(tokeniser), dataset.labels, dataset.tasks, split, recipe, fabric.device
    )
    fitted = fit(
        network, problem, recipe, seed=seed, fabric=fabric, run=run_folder, progress=progress
    )
    logits = problem.predict(network)
    evaluation = evaluate_classifier(logits, dataset.labels, split, dataset.tasks)
    return GraphRun(fitted, logits, evaluation, network.to("cpu").eval(), recipe)


def train_and_select(
    dataset: GraphDataset,
    split: Split,
    recipes: Sequence[GraphTrainConfig],
    *,
    seed: int,
    fabric: Fabric,
    progress: Progress | None = None,
) -> GraphRun:
    """The recipe with the best validation; the figures of the others are not looked at."""
    runs = [
        train_graph_classifier(dataset, split, recipe, seed=seed, fabric=fabric, progress=progress)
        for recipe in recipes
    ]
    return max(runs, key=lambda run: run.result.best_val)


def _network(
    dataset: GraphDataset, split: Split, recipe: GraphTrainConfig, seed: int
) -> tuple[nn.Module, GraphTokenizer]:
    if (baseline := BASELINE_NETWORKS.get(recipe.model)) is not None:
        with temporary_seed(seed):
            network = baseline(dataset, **recipe.config)
        network.fit_columns(dataset, split.train)
        return network, GraphTokenizer(positions="none")
    kind = cast(type[GraphClassifier], find_architectures()[f"{recipe.model}-graph"])
    values: dict[str, Any] = {
        "node_features": dataset.node_features,
        "edge_features": dataset.edge_features,
        "tasks": dataset.tasks,
    }
    config = cast(GraphConfig, kind.config_type.model_validate(values | recipe.config))
    graphs = [dataset.graphs[i] for i in split.train]
    return kind.from_data(config, graphs, seed), config.tokenizer
