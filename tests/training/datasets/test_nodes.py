"""Loaders, on files of the published layouts that the tests make; the real ones where present."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import scipy.io
import scipy.sparse
import torch
from torch_geometric.data import Data

from training.datasets import (
    NODE_DATASETS,
    NodeDataset,
    load_node_dataset,
    load_node_tables,
    random_splits,
)
from training.datasets.sources import data_folder, load_mat, node_dataset_from_pyg


def _adjacency(nodes: int, seed: int) -> scipy.sparse.csc_matrix:
    dense = np.random.default_rng(seed).random((nodes, nodes)) < 0.2
    return scipy.sparse.csc_matrix((dense | dense.T).astype(float))


def test_care_gnn_files(tmp_path: Path) -> None:
    """The full benchmark layout: three relations, features, label."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, (1, 30))
    relations = {key: _adjacency(30, i) for i, key in enumerate(("net_rur", "net_rtr", "net_rsr"))}
    features = scipy.sparse.csc_matrix(rng.random((30, 32)))
    scipy.io.savemat(
        tmp_path / "YelpChi.mat",
        {**relations, "homo": _adjacency(30, 9), "features": features, "label": labels},
    )
    dataset = load_node_dataset("yelpchi", tmp_path)
    assert dataset.name == "yelpchi"
    assert dataset.relations == ("net_rur", "net_rtr", "net_rsr")
    np.testing.assert_allclose(dataset.graph.x, features.toarray(), rtol=1e-6)
    assert dataset.graph.edge_type is not None
    for i, key in enumerate(relations):
        edges = dataset.graph.edge_index[:, dataset.graph.edge_type == i]
        expected = np.stack(scipy.sparse.csr_matrix(relations[key]).nonzero())
        np.testing.assert_array_equal(edges, expected)
    assert (dataset.labels == labels.ravel()).all()


def test_care_gnn_amazon_has_unlabelled_nodes(tmp_path: Path) -> None:
    nodes = 3400
    pair = scipy.sparse.csc_matrix(([1.0, 1.0], ([0, 1], [1, 0])), (nodes, nodes))
    scipy.io.savemat(
        tmp_path / "Amazon.mat",
        {
            **dict.fromkeys(("net_upu", "net_usu", "net_uvu"), pair),
            "features": np.zeros((nodes, 25)),
            "label": np.arange(nodes)[None] >= 3305,
        },
    )
    labels = load_node_dataset("amazon", tmp_path).labels
    assert (labels[:3305] == -1).all()
    assert (labels[3305:] == 1).all()


def _write_amazon_single(path: Path, fraud: int) -> None:
    nodes = 2400
    label = np.zeros((1, nodes))
    label[0, fraud] = 1
    content = {"Network": _adjacency(nodes, 0), "Attributes": np.zeros((nodes, 25)), "Label": label}
    scipy.io.savemat(path, content)


def test_the_same_nodes_of_amazon_have_no_label_where_it_has_one_relation(tmp_path: Path) -> None:
    _write_amazon_single(tmp_path / "Amazon.mat", fraud=2295)
    dataset = load_node_dataset("amazon", tmp_path)
    assert (dataset.labels[:2295] == -1).all()
    assert dataset.labels[2295:].tolist() == [1] + [0] * 104
    assert "2,295 nodes carry no label" in dataset.note


def test_a_fraud_among_nodes_without_a_label_is_another_file(tmp_path: Path) -> None:
    _write_amazon_single(tmp_path / "Amazon.mat", fraud=2294)
    with pytest.raises(ValueError, match="another file"):
        load_node_dataset("amazon", tmp_path)


def test_single_relation_files_are_named_apart(tmp_path: Path) -> None:
    inside = tmp_path / "inside.mat"
    scipy.io.savemat(
        inside,
        {
            "Network": _adjacency(10, 0),
            "Attributes": scipy.sparse.csc_matrix(np.ones((10, 3))),
            "Label": np.arange(10)[None] % 2,
        },
    )
    with zipfile.ZipFile(tmp_path / "YelpChi.zip", "w") as archive:
        archive.write(inside, "YelpChi.mat")
    dataset = load_mat(tmp_path / "YelpChi.zip", "yelpchi")
    assert dataset.name == "yelpchi-single"
    assert "not the papers' benchmark" in dataset.note


def test_a_mat_of_neither_layout(tmp_path: Path) -> None:
    scipy.io.savemat(tmp_path / "x.mat", {"a": np.ones(3)})
    with pytest.raises(ValueError, match="neither"):
        load_mat(tmp_path / "x.mat", "amazon")


def test_pyg_data() -> None:
    masks = torch.tensor([[1, 0], [0, 1], [0, 0], [0, 0]], dtype=torch.bool)
    data = Data(
        x=torch.randn(4, 2),
        edge_index=torch.tensor([[0, 1], [1, 2]]),
        y=torch.tensor([0, 1, 2, 0]),
        train_mask=masks,
        val_mask=masks.roll(1, 0),
        test_mask=masks.roll(2, 0),
    )
    dataset = node_dataset_from_pyg(data, "small")
    assert dataset.labels.tolist() == [0, 1, -1, 0]
    assert [s.train.tolist() for s in dataset.official] == [[0], [1]]
    assert dataset.official[1].test.tolist() == [3]


@pytest.fixture
def tables(tmp_path: Path) -> tuple[pd.DataFrame, pd.DataFrame, Path]:
    nodes = pd.DataFrame(
        {"id": ["a", "b", "c"], "is_fraud": [1, 0, np.nan], "age": [1.0, 2, 3], "sum": [4, 5, 6]}
    )
    edges = pd.DataFrame({"source": ["a", "c"], "target": ["b", "a"]})
    return nodes, edges, tmp_path


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_your_own_tables(tables: tuple[pd.DataFrame, pd.DataFrame, Path], kind: str) -> None:
    nodes, edges, folder = tables
    for name, frame in (("nodes", nodes), ("edges", edges)):
        path = folder / f"{name}.{kind}"
        frame.to_csv(path, index=False) if kind == "csv" else frame.to_parquet(path)
    dataset = load_node_tables(folder / f"nodes.{kind}", folder / f"edges.{kind}", "is_fraud")
    assert dataset.features == ("age", "sum")
    assert dataset.labels.tolist() == [1, 0, -1]
    assert dataset.graph.edge_index.tolist() == [[0, 2], [1, 0]]


def test_your_own_tables_with_relations(
    tables: tuple[pd.DataFrame, pd.DataFrame, Path],
) -> None:
    nodes, edges, folder = tables
    nodes.to_csv(folder / "n.csv", index=False)
    edges.assign(type=["pays", "knows"]).to_csv(folder / "e.csv", index=False)
    dataset = load_node_tables(folder / "n.csv", folder / "e.csv", "is_fraud")
    assert dataset.relations == ("knows", "pays")
    assert dataset.graph.edge_type is not None
    assert dataset.graph.edge_type.tolist() == [1, 0]


@pytest.mark.parametrize(
    ("nodes_change", "edges_change", "message"),
    [
        ({"id": ["a", "a", "c"]}, {}, "row 2, column 'id': the id a has occurred before"),
        ({"age": ["x", "y", "z"]}, {}, "row 1, column 'age': not a number"),
        ({"age": [1.0, np.nan, 2.0]}, {}, r"row 2 \(id b\), column 'age': the value is missing"),
        ({}, {"target": ["b", "z"]}, "row 2, column 'target': .* has no node 'z'"),
    ],
)
def test_tables_that_do_not_fit(
    tables: tuple[pd.DataFrame, pd.DataFrame, Path],
    nodes_change: dict,
    edges_change: dict,
    message: str,
) -> None:
    nodes, edges, folder = tables
    nodes.assign(**nodes_change).to_csv(folder / "n.csv", index=False)
    edges.assign(**edges_change).to_csv(folder / "e.csv", index=False)
    with pytest.raises(ValueError, match=message):
        load_node_tables(folder / "n.csv", folder / "e.csv", "is_fraud")


def _toy(labels: np.ndarray) -> NodeDataset:
    from models.inputs.graph import Graph

    graph = Graph(np.zeros((len(labels), 1), np.float32), np.zeros((2, 0), np.int64))
    return NodeDataset("toy", graph, labels, ("a",))


def test_random_splits_follow_the_protocol() -> None:
    labels = np.r_[np.full(50, -1), np.ones(100, np.int64), np.zeros(900, np.int64)]
    splits = random_splits(_toy(labels), 0.4, 5)
    for split in splits:
        parts = np.concatenate([split.train, split.val, split.test])
        assert len(np.unique(parts)) == len(parts) == 1000  # disjoint, and no unlabelled node
        assert (parts >= 50).all()
        assert (len(split.train), len(split.val), len(split.test)) == (400, 200, 400)
        assert (labels[split.train] == 1).sum() == 40
    assert not np.array_equal(splits[0].train, splits[1].train)
    assert np.array_equal(splits[0].train, random_splits(_toy(labels), 0.4, 1)[0].train)


def test_unknown_dataset_and_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="unknown dataset"):
        load_node_dataset("nonsense", tmp_path)
    with pytest.raises(FileNotFoundError, match=r"put Amazon\.mat"):
        load_node_dataset("amazon", tmp_path)


@pytest.mark.skipif(
    not (data_folder() / "fraud").is_dir(), reason="the datasets are not here; set BASIN_DATA"
)
@pytest.mark.parametrize(
    ("name", "nodes", "frauds"),
    [("tolokers", 11758, 2566), ("amazon", 10224, 693), ("yelpchi", 23831, 1217)],
)
def test_real_files(name: str, nodes: int, frauds: int) -> None:
    assert name in NODE_DATASETS
    dataset = load_node_dataset(name)
    assert dataset.graph.num_nodes == nodes
    assert (dataset.labels == 1).sum() == frauds
