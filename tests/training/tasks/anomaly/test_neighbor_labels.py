"""Trees that read labels of neighbours: what they are fitted to, and what each part weighs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from lightning_fabric import Fabric
from rich.progress import Progress

from models.base import DynamicsParams
from models.inputs.graph import UNKNOWN, Graph
from training.datasets import NodeDataset, Split, random_splits
from training.tasks.anomaly.configs import WITH_LABELS, node_train_config, smoke_node_config
from training.tasks.anomaly.neighbor_labels import show_training_labels
from training.tasks.anomaly.results_table import COLUMNS, compute_rows, format_differences
from training.tasks.anomaly.stacked_trees import BoostingConfig
from training.tasks.anomaly.train import NodeRun, train_node_scorer

PAIRED, ALONE = 4800, 1600


@pytest.fixture(scope="module")
def dataset() -> NodeDataset:
    """Pairs of nodes of one label, and nodes without neighbours, among which fraud is more."""
    rng = np.random.default_rng(0)
    paired = np.repeat(rng.random(PAIRED // 2) < 0.2, 2)
    labels = np.r_[paired, rng.random(ALONE) < 0.4].astype(np.int64)
    x = rng.standard_normal((len(labels), 2)).astype(np.float32)
    x[:, 0] += labels
    edges = np.arange(PAIRED).reshape(-1, 2).T
    return NodeDataset("pairs", Graph(x, edges), labels, ("a", "b"))


@pytest.fixture(scope="module")
def split(dataset: NodeDataset) -> Split:
    return random_splits(dataset, 0.4, 1)[0]


@pytest.fixture(scope="module")
def run(dataset: NodeDataset, split: Split) -> NodeRun:
    config = smoke_node_config(node_train_config("et", "any", len(split.train), WITH_LABELS))
    chosen = replace(config, trees=BoostingConfig(folds=3, rounds=40))
    fabric = Fabric(accelerator="cpu", devices=1)
    return train_node_scorer(dataset, split, chosen, seed=0, fabric=fabric)


def predict(run: NodeRun, dataset: NodeDataset, labels: np.ndarray | None) -> np.ndarray:
    graph = replace(dataset.graph, labels=labels)
    logits = run.network.infer(run.network.pack([graph]), [DynamicsParams()]).logits
    return run.evaluation.calibration(logits.numpy())


def test_only_labels_of_training_nodes_are_shown(dataset: NodeDataset, split: Split) -> None:
    known = show_training_labels(dataset.labels, split)
    np.testing.assert_array_equal(known[split.train], dataset.labels[split.train])
    rest = np.setdiff1d(np.arange(len(known)), split.train)
    assert (known[rest] == UNKNOWN).all()


def test_one_calibration_holds_with_labels_and_without(
    run: NodeRun, dataset: NodeDataset, split: Split
) -> None:
    """In each group the mean probability is the rate of fraud, on the nodes it was chosen by."""
    known = show_training_labels(dataset.labels, split)
    partner = np.arange(PAIRED).reshape(-1, 2)[:, ::-1].ravel()
    is_near = np.r_[known[partner] != UNKNOWN, np.zeros(ALONE, bool)]
    probability = predict(run, dataset, known)
    for group in (is_near, ~is_near):
        nodes = split.val[group[split.val]]
        assert probability[nodes].mean() == pytest.approx(dataset.labels[nodes].mean(), abs=0.01)
    assert not torch.equal(*run.network.label_weights)
    # Whose partner is known to be fraud is likely fraud, also among nodes to test on.
    test = np.isin(np.arange(len(known)), split.test) & is_near
    mates = known[partner[:PAIRED]]
    shown = np.flatnonzero(test[:PAIRED])
    assert probability[shown[mates[shown] == 1]].mean() > 0.8
    assert probability[shown[mates[shown] == 0]].mean() < 0.1
    assert run.with_labels is not None
    of_labels, plain = (each.parts["test"] for each in (run.with_labels, run.evaluation))
    assert of_labels.roc_auc > plain.roc_auc + 0.03


def test_without_labels_it_is_a_hybrid(run: NodeRun, dataset: NodeDataset, split: Split) -> None:
    np.testing.assert_allclose(
        predict(run, dataset, None), run.evaluation.calibration(run.logits), atol=1e-5
    )


def test_differences_are_taken_split_by_split() -> None:
    part = np.arange(4)
    splits = [Split(str(i), part, part, part[:2]) for i in range(2)]  # test / train: 0.5

    def rows(*values: float) -> list[dict[str, dict[str, float]]]:
        return [{"test": dict.fromkeys(COLUMNS, value)} for value in values]

    lines = format_differences({"a": rows(0.6, 0.9), "b": rows(0.5, 0.7)}, "b", splits).splitlines()
    assert lines[0].startswith("| minus b | ROC-AUC |")
    # 10 and 20: a mean of 15, a deviation of 7.07, and sqrt(1 / 2 + 1 / 2) of it.
    assert lines[2:] == ["| a | " + " | ".join(["+15.00 ± 7.07"] * len(COLUMNS)) + " |"]


@pytest.mark.parametrize(
    "model", ["gradient_boosting:labels", "boosting_bag:hybrid", "gcn:no-w", "boosting_bag:x"]
)
def test_variants_that_a_baseline_does_not_have_are_refused(
    model: str, dataset: NodeDataset, split: Split, tmp_path: Path
) -> None:
    given = [split], [model], tmp_path / "rows.jsonl", Fabric(accelerator="cpu", devices=1)
    with Progress(disable=True) as progress, pytest.raises(ValueError, match="unknown variant"):
        compute_rows(dataset, *given, progress)
