"""Graphs as arrays, from PyTorch Geometric, NetworkX or pandas."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

NodeId = str | int


@dataclass(frozen=True)
class Graph:
    """A graph of N nodes and E edges as arrays.

    Args:
        x: node features, (N, F).
        edge_index: sources and targets as rows of x, (2, E).
        edge_type: relation of each edge, (E,), for models with several relations.
        edge_attr: edge features, (E, F').
        node_ids: id of each node; its row if None.
    """

    x: np.ndarray
    edge_index: np.ndarray
    edge_type: np.ndarray | None = None
    edge_attr: np.ndarray | None = None
    node_ids: Sequence[NodeId] | None = None

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the arrays by name, with the types that the server reads."""
        arrays = {
            "x": np.asarray(self.x, np.float32),
            "edge_index": np.asarray(self.edge_index, np.int64).reshape(2, -1),
        }
        if self.edge_type is not None:
            arrays["edge_type"] = np.asarray(self.edge_type, np.int64)
        if self.edge_attr is not None:
            arrays["edge_attr"] = np.asarray(self.edge_attr, np.float32)
        return arrays

    def find_rows(self, nodes: Sequence[Any]) -> list[int]:
        """Return the rows of nodes, given by id (by row if the graph has no ids).

        Raises:
            KeyError: there is no such node.
        """
        if self.node_ids is None:
            return [int(node) for node in nodes]
        rows = {node_id: row for row, node_id in enumerate(self.node_ids)}
        return [rows[to_node_id(node)] for node in nodes]


def to_graph(data: Any, features: Sequence[str] | None = None) -> Graph:
    """Convert a graph of another library.

    Args:
        data: a `Graph`; a `torch_geometric.data.Data`; a NetworkX graph whose nodes have the
            attributes `features` (or all of them in `x`) and whose edges may have `type`; or a
            tuple of two pandas frames, nodes with the columns `id` and `features`, edges with
            `source`, `target` and optionally `type`.
        features: names of attributes or columns, in the order of the model; of a frame all columns
            but `id` if None.

    Raises:
        TypeError: `data` is none of these.
        KeyError: a node lacks a feature, two nodes have one id, or an edge names an unknown node.
    """
    if isinstance(data, Graph):
        return data
    if isinstance(data, tuple) and len(data) == 2:
        return _from_frames(*data, features)
    if hasattr(data, "adjacency") and hasattr(data, "nodes"):
        return _from_networkx(data, features)
    if hasattr(data, "edge_index") and hasattr(data, "x"):
        return _from_geometric(data)
    raise TypeError(
        f"Unsupported graph type {type(data).__name__}: pass a basin_client.Graph, a PyTorch "
        "Geometric Data, a NetworkX graph, or a tuple of two pandas frames (nodes, edges)."
    )


def _from_geometric(data: Any) -> Graph:
    def get_array(name: str) -> np.ndarray | None:
        tensor = getattr(data, name, None)
        return None if tensor is None else np.asarray(tensor.detach().cpu())

    x = get_array("x")
    edge_index = get_array("edge_index")
    if x is None or edge_index is None:
        raise TypeError("The torch_geometric Data needs both x and edge_index.")
    return Graph(x, edge_index, get_array("edge_type"), get_array("edge_attr"))


def _from_networkx(graph: Any, features: Sequence[str] | None) -> Graph:
    nodes = list(graph.nodes)
    rows = {node: row for row, node in enumerate(nodes)}
    values = [
        attributes["x"] if features is None else [attributes[name] for name in features]
        for _, attributes in graph.nodes(data=True)
    ]
    edges = list(graph.edges(data=True))
    types = [attributes.get("type") for _, _, attributes in edges]
    has_types = bool(types) and None not in types
    return Graph(
        np.array(values, np.float32),
        np.array([[rows[a], rows[b]] for a, b, _ in edges], np.int64).reshape(-1, 2).T,
        np.array(types, np.int64) if has_types else None,
        node_ids=[to_node_id(node) for node in nodes],
    )


def _from_frames(nodes: Any, edges: Any, features: Sequence[str] | None) -> Graph:
    columns = list(features) if features else [name for name in nodes.columns if name != "id"]
    ids = nodes[["id"]].set_index("id").index
    if not ids.is_unique:
        raise KeyError(f"Two nodes have the id {to_node_id(ids[ids.duplicated()][0])!r}.")
    return Graph(
        nodes[columns].to_numpy(np.float32),
        np.stack([_find_rows(ids, edges[end]) for end in ("source", "target")]),
        edges["type"].to_numpy(np.int64) if "type" in edges.columns else None,
        node_ids=[to_node_id(node) for node in nodes["id"]],
    )


def _find_rows(ids: Any, nodes: Any) -> np.ndarray:
    """Look up a column of node ids. A loop in Python would take a second for a million."""
    rows = ids.get_indexer(nodes)
    if (is_missing := rows < 0).any():
        raise KeyError(f"An edge names the unknown node {to_node_id(nodes[is_missing].iloc[0])!r}.")
    return rows.astype(np.int64)


def to_node_id(node: Hashable) -> NodeId:
    """Convert to a type of JSON. pandas turns the integers of a column with gaps into floats; they
    become integers again."""
    if isinstance(node, str):
        return node
    if isinstance(node, float | np.floating) and float(node).is_integer():
        return int(node)
    return int(node) if isinstance(node, int | np.integer) else str(node)
