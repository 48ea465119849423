"""Requests about graphs that the server stores; used like those of `basin_client.operations`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from basin_client.errors import InputError, require_extra
from basin_client.graphs import Graph, needs_schema, to_graph, to_node_id
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
from basin_client.responses import scores_parser
from basin_client.results import Scores
from basin_client.schema import GraphSchema

_ENDS = ("source", "target", "type")


def store_graph(
    id: str,
    graph: Any,
    *,
    features: Sequence[str] | None = None,
    drop: str | Sequence[str] = (),
    label: str | None = None,
    model: str | None = None,
    alerts: AlertOptions | None = None,
) -> Request[dict[str, Any]]:
    """Store a graph under an id. Replaces a graph of this id.

    Args:
        id: of 1 to 64 lower-case letters, digits, underscores, hyphens and dots.
        graph: as in `score`.
        features: columns or attributes to take as features; all others if None.
        drop: columns or attributes to leave out; `*` is all that the model does not read.
        label: column of the table of nodes with labels that are known, 1 for fraud, blank if
            not known, for a model that reads labels of neighbours; a `Graph` has `labels`. With
            one of these, even if none is known, `add_labels` and `change_graph` may add more.
        model: the model that names the features of nodes and edges, and the relations; the
            default for graphs if None.
        alerts: if given, even as {}, the model scores all nodes, and after each change those
            that it may have touched; `alerts` and `watch_alerts` list those that reach the
            threshold. None raises no alerts. Keys as in `AlertOptions`.

    Returns:
        The description of the graph: `id`, `features`, `edge_features`, `relations`,
        `labels` (whether nodes may have some), `num_nodes`, `num_edges`, `revision`, which each
        change increments, its `digest`, and `model` if it raises alerts.

    Raises:
        TypeError: `graph` has an unsupported type.
        InputError: the graph does not fit the model, or the id is not allowed.
        MissingLibraryError: pandas or pyarrow is not installed; tables and NetworkX need them.
        ProblemError: the server refused the request when it was sent.
    """
    path = quote_path("graphs", id)

    fields: dict[str, Any] = {} if model is None else {"model": model}
    if alerts is not None:
        fields["alerts"] = dict(alerts)

    def bind(schema: GraphSchema | None) -> Request[dict[str, Any]]:
        converted = to_graph(graph, features, schema=schema, drop=drop, label=label)
        return _store_request(path, converted, fields)

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
    labels: Mapping[Any, int | None] | None = None,
) -> Request[dict[str, Any]]:
    """Change a stored graph atomically. Sending it twice has the effect of once.

    In all, up to 10,000 nodes, edges and labels. Edges are deleted first, then nodes; then
    nodes and edges are added, and labels set.

    Args:
        id: of the graph.
        nodes: to add or replace: a frame with `id` and the features, or a mapping of these per
            node.
        edges: to add: a frame with `source`, `target`, optionally `type`, and the features that
            edges of the graph have, or a mapping of these per edge; without features also a
            tuple. An edge that is there takes the features that come with it.
        delete_nodes: ids of nodes to delete, with their edges.
        delete_edges: as `edges`, of which features are not sent.
        labels: 1 for fraud, 0 for none, None for not known any more, by the id of the node, of
            a graph that was stored with labels.

    Returns:
        The description of the graph, as of `store_graph`.

    Raises:
        TypeError: `delete_nodes` is a single string.
        InputError: a value in a frame is missing or no number, or an id is not allowed.
        ProblemError: the server refused the request when it was sent, as for an edge to an
            unknown node; then nothing is changed.
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
        "labels": [
            {"node_id": to_node_id(node), "label": label}
            for node, label in ({} if labels is None else labels).items()
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
        id: of the graph.
        targets: ids of the nodes.
        hops: edges between a target and the farthest nodes that count, 0 to 8; those of the
            model if None.
        max_neighbors: how many neighbours of each node count; those of the model if None.
        seed: of the choice among more neighbours than that; 0 if None.
        model: name of the model; the default for graphs if None.
        dynamics: how the state moves; as in training if None. Keys as in `Dynamics`.
        include: what to add: `trace`, `components`, `resonance` to `convergence`; `attention`,
            `memories`, `components` to `tensors`; `explanation` of each target to `raw`.
        decision: which targets get label 1, as {"budget": 50}; those from the model's threshold
            on if None. Keys as in `AlertRule`.
        timeout_s: seconds in which the server must respond; its own limit if None.

    Returns:
        Scores of the T targets in their order, with arrays (T,).

    Raises:
        InputError: an id is missing or not allowed.
        ProblemError: the server refused the request when it was sent, as for an unknown graph
            or node.
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
    """List alerts of a graph, the oldest first.

    Args:
        graph: id of a graph of transactions, or of one that was stored with `alerts`.
        after: `event_id` of an alert, to list those that follow it; from the first that the
            server still has if None.
        limit: how many at most, 1 to 1000; 100 if None.

    Returns:
        A dict per alert: `node_id`, `score`, `probability`, `threshold`, `model`, `scored_at`,
        `event_id`, and `transaction` or, of a node, `revision` and `digest`.

    Raises:
        InputError: the id is not one that a graph can have.
        ProblemError: the server refused the request when it was sent, as for a graph without
            alerts.
    """
    params = {"after": after, "limit": None if limit is None else str(limit)}
    given = {name: value for name, value in params.items() if value is not None}
    path = f"{quote_path('graphs', graph)}/alerts"
    return Request("GET", path, lambda response: response.json()["alerts"], params=given)


def graphs() -> Request[list[dict[str, Any]]]:
    """List the stored graphs.

    Returns:
        A dict per graph, as `store_graph` returns it.

    Raises:
        ProblemError: the server refused the request when it was sent.
    """
    return Request("GET", "/graphs", lambda response: response.json()["graphs"])


def graph(id: str) -> Request[dict[str, Any]]:
    """Describe a stored graph.

    Args:
        id: of the graph.

    Returns:
        What `store_graph` returns, and its settings: `alerts` and `scored_revision`, or of a
        graph of transactions `transactions`, `threshold`, `keep` and `webhook`, where they are
        set.

    Raises:
        InputError: the id is not one that a graph can have.
        ProblemError: the server refused the request when it was sent, as for an unknown graph.
    """
    return Request("GET", quote_path("graphs", id), parse_json)


def forget_graph(id: str) -> Request[None]:
    """Delete a stored graph, with its alerts.

    Args:
        id: of the graph.

    Raises:
        InputError: the id is not one that a graph can have.
        ProblemError: the server refused the request when it was sent, as for an unknown graph.
    """
    return Request("DELETE", quote_path("graphs", id), parse_nothing)


def _records(rows: Any, name: str, ids: Sequence[str]) -> list[Any]:
    """Return rows as a list. In a frame the columns `ids` are ids, relations are names, and text in
    other columns is numbers, as in all tables."""
    if not hasattr(rows, "to_dict"):
        return list(rows)
    with require_extra("pandas"):
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
