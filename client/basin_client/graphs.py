"""Graphs, however they are held: arrays, PyTorch Geometric, NetworkX, pandas."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

NodeId = str | int


@dataclass(frozen=True)
class Graph:
    """A graph as arrays.

    Args:
        x: features, (N, F).
        edge_index: sources and targets as rows of x, (2, E).
        edge_type: relation of each edge, (E,), for models of several.
        edge_attr: features of each edge, (E, F').
        node_ids: a name for each node; its row if left out.
    """

    x: np.ndarray
    edge_index: np.ndarray
    edge_type: np.ndarray | None = None
    edge_attr: np.ndarray | None = None
    node_ids: Sequence[NodeId] | None = None

    def arrays(self) -> dict[str, np.ndarray]:
        """Its tensors, as a server reads them."""
        found = {
            "x": np.asarray(self.x, np.float32),
            "edge_index": np.asarray(self.edge_index, np.int64).reshape(2, -1),
        }
        if self.edge_type is not None:
            found["edge_type"] = np.asarray(self.edge_type, np.int64)
        if self.edge_attr is not None:
            found["edge_attr"] = np.asarray(self.edge_attr, np.float32)
        return found

    def rows_of(self, nodes: Sequence[Any]) -> list[int]:
        """
        Raises:
            KeyError: there is no such node.
        """
        if self.node_ids is None:
            return [int(node) for node in nodes]
        rows = {name: row for row, name in enumerate(self.node_ids)}
        return [rows[plain(node)] for node in nodes]


def graph_of(given: Any, features: Sequence[str] | None = None) -> Graph:
    """A `Graph` of one; of `torch_geometric.data.Data`; of a NetworkX graph, whose nodes have the
    attributes `features` (or all of them in `x`) and whose edges may have `type`; or of two pandas
    frames, nodes with the columns `id` and `features`, edges with `source`, `target` and perhaps
    `type`.

    Raises:
        TypeError: it is none of these.
        KeyError: a node has not all of the features, or is there twice or, at an edge, not at all.
    """
    if isinstance(given, Graph):
        return given
    if isinstance(given, tuple) and len(given) == 2:
        return _of_frames(*given, features)
    if hasattr(given, "adjacency") and hasattr(given, "nodes"):
        return _of_networkx(given, features)
    if hasattr(given, "edge_index") and hasattr(given, "x"):
        return _of_geometric(given)
    raise TypeError(f"a {type(given).__name__} is no graph that is known here")


def _of_geometric(data: Any) -> Graph:
    def array(name: str) -> np.ndarray | None:
        tensor = getattr(data, name, None)
        return None if tensor is None else np.asarray(tensor.detach().cpu())

    x, edge_index = array("x"), array("edge_index")
    if x is None or edge_index is None:
        raise TypeError("the data needs x and edge_index")
    return Graph(x, edge_index, array("edge_type"), array("edge_attr"))


def _of_networkx(graph: Any, features: Sequence[str] | None) -> Graph:
    names = list(graph.nodes)
    rows = {name: row for row, name in enumerate(names)}
    values = [
        told["x"] if features is None else [told[feature] for feature in features]
        for _, told in graph.nodes(data=True)
    ]
    edges = list(graph.edges(data=True))
    types = [told.get("type") for _, _, told in edges]
    typed = bool(types) and None not in types
    return Graph(
        np.array(values, np.float32),
        np.array([[rows[a], rows[b]] for a, b, _ in edges], np.int64).reshape(-1, 2).T,
        np.array(types, np.int64) if typed else None,
        node_ids=[plain(name) for name in names],
    )


def _of_frames(nodes: Any, edges: Any, features: Sequence[str] | None) -> Graph:
    columns = list(features) if features else [name for name in nodes.columns if name != "id"]
    there = nodes[["id"]].set_index("id").index
    if not there.is_unique:
        raise KeyError(f"the id {plain(there[there.duplicated()][0])!r} is there twice")
    return Graph(
        nodes[columns].to_numpy(np.float32),
        np.stack([_rows(there, edges[end]) for end in ("source", "target")]),
        edges["type"].to_numpy(np.int64) if "type" in edges.columns else None,
        node_ids=[plain(name) for name in nodes["id"]],
    )


def _rows(there: Any, ends: Any) -> np.ndarray:
    """Where nodes of these names are; a loop in Python would take a second for a million."""
    found = there.get_indexer(ends)
    if (missing := found < 0).any():
        raise KeyError(f"there is no node {plain(ends[missing].iloc[0])!r}")
    return found.astype(np.int64)


def plain(name: Hashable) -> NodeId:
    """As JSON has it; of a column with gaps, whole numbers have become floats."""
    if isinstance(name, str):
        return name
    if isinstance(name, float | np.floating) and float(name).is_integer():
        return int(name)
    return int(name) if isinstance(name, int | np.integer) else str(name)
