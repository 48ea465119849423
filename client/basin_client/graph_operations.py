"""What can be asked of graphs that the server keeps; as `basin_client.operations`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from basin_client.graphs import graph_of, plain
from basin_client.operations import scores_of
from basin_client.request import (
    SAFETENSORS,
    Dynamics,
    Include,
    Request,
    as_json,
    as_tensors,
    fields_of,
)
from basin_client.results import Scores


def store_graph(
    id: str, graph: Any, *, features: Sequence[str] | None = None, model: str | None = None
) -> Request[dict[str, Any]]:
    """Keep a graph under a name; what it had is replaced.

    Args:
        graph: whatever `graph_of` takes.
        model: whose features the nodes have, and whose relations the edges.
    """
    one = graph_of(graph, features)
    fields: dict[str, Any] = {} if model is None else {"model": model}
    arrays = one.arrays()
    if one.node_ids is not None and all(isinstance(name, int) for name in one.node_ids):
        arrays["node_ids"] = np.array(one.node_ids, np.int64)
    elif one.node_ids is not None:
        names = json.dumps(list(one.node_ids), ensure_ascii=False).encode()
        arrays["node_ids"] = np.frombuffer(names, np.uint8)
    made = as_tensors(f"/graphs/{id}", fields, arrays, _json)
    return Request("PUT", f"/graphs/{id}", _json, made.content, made.headers)


def change_graph(
    id: str,
    *,
    nodes: Any = (),
    edges: Any = (),
    delete_nodes: Iterable[Any] = (),
    delete_edges: Any = (),
) -> Request[dict[str, Any]]:
    """Change a graph that is kept, all at once, up to 10,000 nodes and edges; sent twice it is
    changed once.

    Args:
        nodes: a frame with `id` and the features, or a mapping of these for each.
        edges: a frame with `source`, `target` and perhaps `type`, or a mapping or a tuple of these
            for each.

    Raises:
        TypeError: `delete_nodes` is one id.
    """
    if isinstance(delete_nodes, str):
        raise TypeError("delete_nodes: several ids, not one")
    parts = {
        "nodes": [_row(node) for node in _rows(nodes)],
        "edges": [_edge(edge) for edge in _rows(edges)],
        "delete_nodes": [plain(node) for node in delete_nodes],
        "delete_edges": [_edge(edge) for edge in _rows(delete_edges)],
    }
    made = as_json(f"/graphs/{id}", {name: rows for name, rows in parts.items() if rows}, _json)
    return Request("PATCH", f"/graphs/{id}", _json, made.content, made.headers)


def score_nodes(
    id: str,
    targets: Sequence[Any],
    *,
    hops: int | None = None,
    max_neighbors: int | None = None,
    seed: int | None = None,
    model: str | None = None,
    dynamics: Dynamics | None = None,
    include: Sequence[Include] = (),
    timeout_s: float | None = None,
) -> Request[Scores]:
    """How suspicious are these nodes of a graph that is kept, by what is around them?

    Args:
        hops: edges to the farthest node that is looked at.
        max_neighbors: of each node, as `seed` chooses where there are more.
    """
    names = [plain(node) for node in targets]
    knobs = {"hops": hops, "max_neighbors": max_neighbors, "seed": seed}
    neighborhood = {name: value for name, value in knobs.items() if value is not None}
    fields = fields_of(model, dynamics, include, graph_id=id, targets=names)
    if neighborhood:
        fields["neighborhood"] = neighborhood
    asked = as_json("/anomaly/score", fields, scores_of(names))
    return asked.with_headers({"accept": SAFETENSORS}).within(timeout_s)


def graphs() -> Request[list[dict[str, Any]]]:
    """Those that are kept."""
    return Request("GET", "/graphs", lambda response: response.json()["graphs"])


def graph(id: str) -> Request[dict[str, Any]]:
    """Its features, relations, size and revision."""
    return Request("GET", f"/graphs/{id}", _json)


def forget_graph(id: str) -> Request[None]:
    return Request("DELETE", f"/graphs/{id}", lambda response: None)


def _json(response: Any) -> dict[str, Any]:
    return response.json()


def _rows(given: Any) -> list[Any]:
    return given.to_dict("records") if hasattr(given, "to_dict") else list(given)


def _row(node: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: plain(value) if name == "id" else np.asarray(value).tolist()
        for name, value in node.items()
    }


def _edge(given: Any) -> dict[str, Any]:
    names = ("source", "target", "type")
    edge = given if isinstance(given, Mapping) else dict(zip(names, given, strict=False))
    return {name: plain(value) for name, value in edge.items() if value is not None}
