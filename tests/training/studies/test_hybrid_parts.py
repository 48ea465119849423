"""The parts of a hybrid: each by itself, and after other numbers of steps."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from lightning_fabric import Fabric

from models.inputs.graph import Graph
from training.datasets import NodeDataset, random_splits
from training.studies.hybrid_parts import score_parts
from training.tasks.anomaly.configs import WITH_LABELS, node_train_config, smoke_node_config
from training.tasks.anomaly.stacked_trees import BoostingConfig


def _train(members: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    labels = (np.arange(400) < 100).astype(np.int64)
    x = rng.standard_normal((400, 3)).astype(np.float32)
    x[:, 0] += labels
    edges = np.concatenate([rng.integers(0, 100, (2, 300)), rng.integers(100, 400, (2, 900))], 1)
    dataset = NodeDataset("two groups", Graph(x, edges), labels, ("a", "b", "c"))
    [split] = random_splits(dataset, 0.4, 1)
    recipe = smoke_node_config(node_train_config("et", "any", len(split.train), WITH_LABELS))
    recipe = replace(recipe, epochs=2, trees=BoostingConfig(folds=2, rounds=10))
    recipe = replace(recipe, members=members)
    parts = score_parts(dataset, split, recipe, Fabric(accelerator="cpu", devices=1))
    assert all(np.isfinite(logits).all() for logits in parts.values())
    return parts


def test_parts_of_a_hybrid() -> None:
    parts = _train(members=1)
    trained = parts["network that reads the trees"]
    np.testing.assert_array_equal(parts["network, 2 steps"], trained)
    np.testing.assert_array_equal(parts["network and trees, 2 steps"], parts["network and trees"])
    for after in ("0 steps", "1 step", "64 steps"):
        assert (parts[f"network, {after}"] != trained).any()


def test_networks_of_an_ensemble() -> None:
    parts = _train(members=2)
    mean = (parts["network 0"] + parts["network 1"]) / 2
    np.testing.assert_allclose(parts["network that reads the trees"], mean, rtol=1e-5, atol=1e-6)
    assert (parts["network 0"] != parts["network 1"]).any()
    assert "network, 1 step" not in parts
