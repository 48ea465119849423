"""Requests about graphs that the server stores; used like those of `basin_client.operations`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from basin_client.errors import InputError
from basin_client.graphs import Graph, needs_schema, to_graph, to_node_id
from basin_client.operations import scores_parser
from basin_client.request import (
    SAFETENSORS,
    AlertOptions,
    AlertRule,
    Dynamics,
    Include,
    Request,
    common_fields,
    json_request,
    parse_json,
    parse_nothing,
    quote_path,
    safetensors_request,
)
from basin_client.results import Scores
from basin_client.schema import GraphSchema

_ENDS = ("source", "target", "type")


def store_graph(
    id: str,
    graph: Any,
    *,
    features: Sequence[str] | None = None,
    drop: str | Sequence[str] = (),
    model: str | None = None,
    alerts: AlertOptions | None = None,
) -> Request[dict[str, Any]]:
    """Store a graph under an id. Replaces a graph of this id.

    Args:
        graph: a graph that `to_graph` can convert.
        features, drop: as in `basin_client.operations.score`.
        model: the model that names the features of nodes and edges, and the relations.
        alerts: if given, even as {}, the model scores all nodes, and after each change those that
            it may have touched; `alerts` and `watch_alerts` tell which cross the threshold.
    """
    path = quote_path("graphs", id)

    fields: dict[str, Any] = {} if model is None else {"model": model}
    if alerts is not None:
        fields["alerts"] = dict(alerts)

    def bind(schema: GraphSchema | None) -> Request[dict[str, Any]]:
        return _store_request(path, to_graph(graph, features, schema=schema, drop=drop), fields)

    if not needs_schema(graph):
        return bind(None)
    schema_path = "" if model is None else quote_path("models", model)
    return Request("PUT", path, parse_json, schema_path=schema_path, bind=bind)


def _store_request(path: str, graph: Graph, fields: dict[str, Any]) -> Request[dict[str, Any]]:
    fields = fields | graph.names()
    arrays = graph.arrays()
    if graph.node_ids is not None and all(map(_is_int64, graph.node_ids)):
        arrays["node_ids"] = np.array(graph.node_ids, np.int64)
    elif graph.node_ids is not None:  # safetensors has no strings: the bytes of a JSON list
        text = json.dumps(list(graph.node_ids), ensure_ascii=False)
        arrays["node_ids"] = np.frombuffer(text.encode(), np.uint8)
    return safetensors_request(path, fields, arrays, parse_json, "PUT")


def _is_int64(node: object) -> bool:
    return isinstance(node, int) and -(2**63) <= node < 2**63


def change_graph(
    id: str,
    *,
    nodes: Any = (),
    edges: Any = (),
    delete_nodes: Iterable[Any] = (),
    delete_edges: Any = (),
) -> Request[dict[str, Any]]:
    """Change a stored graph atomically, up to 10,000 nodes and edges. Sending it twice has the
    effect of once.

    Args:
        nodes: to add or replace: a frame with `id` and the features, or a mapping of these per
            node.
        edges: to add: a frame with `source`, `target`, optionally `type`, and the features that
            edges of the graph have, or a mapping of these per edge; without features also a tuple.
            An edge that is there takes the features that come with it.
        delete_nodes: ids.
        delete_edges: as `edges`, of which features are not sent.

    Raises:
        TypeError: `delete_nodes` is a single string.
        InputError: a value in a frame is missing or no number.
    """
    if isinstance(delete_nodes, str):
        raise TypeError("delete_nodes is a string: pass a list of node ids.")
    changes = {
        "nodes": [_row_fields(node, ("id",)) for node in _records(nodes, "nodes", ("id",))],
        "edges": [_row_fields(edge, _ENDS) for edge in _records(edges, "edges", _ENDS)],
        "delete_nodes": [to_node_id(node) for node in delete_nodes],
        "delete_edges": [
            {name: value for name, value in _row_fields(edge, _ENDS).items() if name in _ENDS}
            for edge in _records(delete_edges, "delete_edges", _ENDS)
        ],
    }
    fields = {name: rows for name, rows in changes.items() if rows}
    return json_request(quote_path("graphs", id), fields, parse_json, "PATCH")


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
    decision: AlertRule | None = None,
    timeout_s: float | None = None,
) -> Request[Scores]:
    """Score nodes of a stored graph from their neighbourhood.

    Args:
        targets: ids of the nodes.
        hops: distance, in edges, of the farthest neighbours; else that of the model.
        max_neighbors: per node; `seed` selects them where there are more; else that of the model.
        decision: what gets label 1 in place of the model's threshold, as {"budget": 50}.
    """
    node_ids = [to_node_id(node) for node in targets]
    fields = common_fields(
        model, dynamics, include, graph_id=id, targets=node_ids, decision=decision
    )
    limits = {"hops": hops, "max_neighbors": max_neighbors, "seed": seed}
    if neighborhood := {name: value for name, value in limits.items() if value is not None}:
        fields["neighborhood"] = neighborhood
    request = json_request("/anomaly/score", fields, scores_parser(node_ids))
    return request.with_headers({"accept": SAFETENSORS}).with_timeout(timeout_s)


def alerts(
    graph: str, *, after: str | None = None, limit: int | None = None
) -> Request[list[dict[str, Any]]]:
    """Return alerts of a graph in the order in which they were raised: the first that are kept, or
    those that follow the one with the `event_id` `after`."""
    params = {"after": after, "limit": None if limit is None else str(limit)}
    given = {name: value for name, value in params.items() if value is not None}
    path = f"{quote_path('graphs', graph)}/alerts"
    return Request("GET", path, lambda response: response.json()["alerts"], params=given)


def graphs() -> Request[list[dict[str, Any]]]:
    """List the stored graphs."""
    return Request("GET", "/graphs", lambda response: response.json()["graphs"])


def graph(id: str) -> Request[dict[str, Any]]:
    """Return the features, relations, size and revision of a stored graph."""
    return Request("GET", quote_path("graphs", id), parse_json)


def forget_graph(id: str) -> Request[None]:
    """Delete a stored graph."""
    return Request("DELETE", quote_path("graphs", id), parse_nothing)


def _records(rows: Any, name: str, ids: Sequence[str]) -> list[Any]:
    """Return rows as a list. In a frame the columns `ids` are ids, relations are names, and text in
    other columns is numbers, as in all tables."""
    if not hasattr(rows, "to_dict"):
        return list(rows)
    import pandas as pd

    from basin_client.columns import read_numbers, to_ids

    columns = dict[str, Any]()
    for column in rows.columns:
        values = rows[column]
        if column in ids:
            columns[column] = to_ids(values, name, column) if column == "type" else values
            continue
        if pd.api.types.is_string_dtype(values):
            values = pd.Series(read_numbers(values, name), values.index)
        if (missing := values.isna().to_numpy()).any():
            raise InputError(
                f"{name}: row {missing.argmax() + 1}, column {column!r}: the value is missing "
                f"({missing.sum()} in this column). Fill it in, or remove the row."
            )
        columns[column] = values
    return pd.DataFrame(columns, rows.index).to_dict("records")


def _row_fields(row: Any, ids: Sequence[str]) -> dict[str, Any]:
    """Return the fields of a node or an edge; an edge may be a tuple of `ids`."""
    fields = row if isinstance(row, Mapping) else dict(zip(ids, row, strict=False))
    return {
        name: to_node_id(value) if name in ids else np.asarray(value).tolist()
        for name, value in fields.items()
        if value is not None
    }
