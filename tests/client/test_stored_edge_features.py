"""Stored graphs whose edges have features, from every kind of graph that the client takes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pandas as pd
import pytest
import torch
from basin_client import Client, Graph, InputError, ProblemError
from basin_client.schema import GraphSchema
from torch_geometric.data import Data

from tests.support.checkpoints import EDGE_FEATURES, FEATURES, RELATIONS, make_sample
from tests.support.server import Server

MODEL = "et-edges"
SAMPLE = make_sample(8, 2, edge_features=2)
FIRST = np.unique(np.r_[SAMPLE.edge_index, SAMPLE.edge_type[None]], axis=1, return_index=True)[1]
GRAPH = Graph(
    SAMPLE.x,
    SAMPLE.edge_index[:, FIRST],
    SAMPLE.edge_type[FIRST],
    SAMPLE.edge_attr[FIRST],
    node_ids=SAMPLE.node_ids,
)


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with Client(server.url) as client:
        yield client
        client.forget_graph("edges")


def to_frames() -> tuple[pd.DataFrame, pd.DataFrame]:
    """Tables, whose columns are in another order than the model's."""
    assert GRAPH.edge_type is not None
    assert GRAPH.edge_attr is not None
    nodes = pd.DataFrame(SAMPLE.x, columns=list(FEATURES)).assign(id=SAMPLE.node_ids)
    edges = pd.DataFrame(GRAPH.edge_attr[:, ::-1], columns=list(EDGE_FEATURES[::-1]))
    for name, ends in zip(("source", "target"), GRAPH.edge_index, strict=True):
        edges[name] = [SAMPLE.node_ids[i] for i in ends]
    return nodes, edges.assign(type=[RELATIONS[i] for i in GRAPH.edge_type])


def to_files(folder: Path) -> tuple[Path, Path]:
    paths = folder / "nodes.csv", folder / "edges.csv"
    for frame, path in zip(to_frames(), paths, strict=True):
        frame.to_csv(path, index=False)
    return paths


def to_networkx() -> nx.MultiDiGraph:
    nodes, edges = to_frames()
    graph = nx.MultiDiGraph()
    graph.add_nodes_from((row.pop("id"), row) for row in nodes.to_dict("records"))
    graph.add_edges_from(
        (row.pop("source"), row.pop("target"), row) for row in edges.to_dict("records")
    )
    return graph


def to_geometric() -> Data:
    assert GRAPH.edge_attr is not None
    return Data(
        x=torch.from_numpy(GRAPH.x),
        edge_index=torch.from_numpy(GRAPH.edge_index),
        edge_type=torch.from_numpy(GRAPH.edge_type),
        edge_attr=torch.from_numpy(np.ascontiguousarray(GRAPH.edge_attr[:, ::-1])),
        edge_feature_names=["hour", "amount"],
    )


WAYS: dict[str, Callable[[Path], Any]] = {
    "arrays": lambda folder: GRAPH,
    "frames": lambda folder: to_frames(),
    "files": to_files,
    "NetworkX": lambda folder: to_networkx(),
    "PyG": lambda folder: to_geometric(),
}


def assert_scored_as_sent(client: Client, ids: list[Any]) -> None:
    stored = client.score_nodes("edges", ids, hops=8, max_neighbors=999, model=MODEL)
    assert stored.raw["graph"]["num_nodes"] == 40
    sent = client.score(GRAPH, SAMPLE.node_ids[:3], model=MODEL)
    np.testing.assert_allclose(stored.score, sent.score, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("way", WAYS)
def test_it_is_stored_with_numbers(client: Client, way: str, tmp_path: Path) -> None:
    head = client.store_graph("edges", WAYS[way](tmp_path), model=MODEL)
    assert head["edge_features"] == list(EDGE_FEATURES)
    schema = GraphSchema.from_model(client.graph("edges"))
    assert (schema.features, schema.edge_features) == (FEATURES, EDGE_FEATURES)
    assert_scored_as_sent(client, [0, 1, 2] if way == "PyG" else SAMPLE.node_ids[:3])


@pytest.mark.parametrize("kind", ["frames", "frames of text", "mappings"])
def test_edges_are_added_and_changed_with_numbers(client: Client, kind: str) -> None:
    nodes, edges = to_frames()
    wrong = edges.assign(amount=edges["amount"] + 1)
    client.store_graph("edges", (nodes, wrong[:50]), model=MODEL)
    more_nodes: Any = nodes[:5]
    more: Any = edges
    if kind == "frames of text":
        more_nodes, more = more_nodes.astype(str), edges.astype(str)
    elif kind == "mappings":
        more_nodes, more = more_nodes.to_dict("records"), edges.to_dict("records")
    head = client.change_graph("edges", nodes=more_nodes, edges=more)
    assert head["num_edges"] == len(edges)
    assert client.change_graph("edges", edges=edges)["revision"] == head["revision"]
    assert_scored_as_sent(client, SAMPLE.node_ids[:3])
    head = client.change_graph("edges", delete_edges=edges[:4])
    assert head["num_edges"] == len(edges) - 4
    ends = edges[["source", "target", "type"]]
    head = client.change_graph("edges", delete_edges=list(ends[4:6].itertuples(index=False)))
    assert head["num_edges"] == len(edges) - 6


def test_edges_without_numbers_are_refused(client: Client) -> None:
    nodes, edges = to_frames()
    with pytest.raises(InputError, match="no column 'amount', which et-edges reads of edges"):
        client.store_graph("edges", (nodes, edges.drop(columns="amount")), model=MODEL)
    client.store_graph("edges", (nodes, edges), model=MODEL)
    with pytest.raises(ProblemError, match="/edges/0/amount"):
        client.change_graph("edges", edges=edges.drop(columns="amount"))
    with pytest.raises(InputError, match="edges: row 2, column 'hour': the value is missing"):
        client.change_graph("edges", edges=edges.assign(hour=[1, None, *edges["hour"][2:]]))
    with pytest.raises(InputError, match="column 'hour'"):
        client.change_graph("edges", edges=edges.assign(hour="noon"))
