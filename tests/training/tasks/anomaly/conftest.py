"""A graph in which fraud is a ring, and its tables."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from lightning_fabric import Fabric

from models.inputs.graph import Graph
from tests.support.few_references import few_references
from training.datasets import NodeDataset, Split, random_splits


@pytest.fixture(scope="module")
def dataset() -> NodeDataset:
    """Fraud is a ring: what gives it away is the mean of the neighbours, not the node."""
    rng = np.random.default_rng(0)
    nodes = 600
    labels = (np.arange(nodes) < 120).astype(np.int64)
    fraud, benign = np.arange(120), np.arange(120, nodes)
    edges = np.concatenate(
        [
            rng.choice(fraud, (2, 500)),
            rng.choice(benign, (2, 2000)),
            rng.integers(0, nodes, (2, 200)),
        ],
        1,
    )
    x = rng.standard_normal((nodes, 3)).astype(np.float32)
    x[:, 0] += 0.7 * labels
    return NodeDataset("ring", Graph(x, edges), labels, ("a", "b", "c"))


@pytest.fixture(scope="module")
def split(dataset: NodeDataset) -> Split:
    return random_splits(dataset, 0.4, 1)[0]


@pytest.fixture(scope="module")
def fabric() -> Fabric:
    return Fabric(accelerator="cpu", devices=1)


@pytest.fixture
def command(dataset: NodeDataset, tmp_path: Path) -> Iterator[list[str]]:
    """`anomaly` on tables of one's own."""
    nodes = pd.DataFrame(dataset.graph.x, columns=list(dataset.features))
    nodes.assign(id=range(600), is_fraud=dataset.labels).to_csv(tmp_path / "My n.csv", index=False)
    edges = pd.DataFrame(dataset.graph.edge_index.T, columns=["source", "target"])
    edges.to_csv(tmp_path / "e.csv", index=False)
    given = [
        *("anomaly", "--smoke", "--device", "cpu", "--model", "et", "--label", "is_fraud"),
        *("--nodes", str(tmp_path / "My n.csv"), "--edges", str(tmp_path / "e.csv")),
        *("--out", str(tmp_path / "checkpoint"), "--run-folder", str(tmp_path / "run")),
    ]
    with few_references():
        yield given
