"""Parse graphs in JSON: as arrays, or as rows of nodes and edges."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Protocol

import numpy as np

from models.inputs.graph import UNTYPED, Graph
from service.errors import MAX_FIELD_ERRORS, FieldError, pointer, unknown_fields
from service.validation.arrays import (
    PointerFn,
    join_names,
    make_graph_problem,
    make_graph_problem_at,
    parse_feature_matrix,
    parse_integers,
    pointer_builder,
    require_list,
    require_types,
)
from service.validation.ids import NodeId, find_rows, index_ids, parse_targets
from service.validation.names import match_features, match_relations, parse_relations

_ARRAY_FIELDS = (
    *("x", "edge_index", "edge_type", "edge_attr", "node_ids"),
    *("feature_names", "relation_names"),
)


class GraphSchema(Protocol):
    """The properties of a model by which a graph is parsed."""

    @property
    def features(self) -> tuple[str, ...]: ...

    @property
    def relations(self) -> tuple[str, ...]: ...


class GraphSizeLimits(Protocol):
    """Size limits of a graph."""

    @property
    def max_nodes(self) -> int: ...

    @property
    def max_edges(self) -> int: ...


@dataclass(frozen=True)
class ParsedGraph:
    """A graph, its node ids (None: row numbers) and the rows to score (None: all)."""

    graph: Graph
    node_ids: list[NodeId] | None
    targets: np.ndarray | None


def parse_json_graph(
    body: Mapping[str, Any], model: GraphSchema, limits: GraphSizeLimits
) -> ParsedGraph:
    """Parse the graph of a JSON body, in either form."""
    as_rows = body.get("nodes") is not None or body.get("edges") is not None
    if as_rows == (body.get("graph") is not None):
        raise make_graph_problem_at(
            "", "one_of", "Send the graph either as `graph`, or as `nodes` and `edges`."
        )
    if as_rows:
        graph, node_ids, rows = _from_rows(body, model, limits)
    else:
        graph, node_ids, rows = _from_arrays(body["graph"], model, limits)
    return ParsedGraph(graph, node_ids, parse_targets(body.get("targets"), rows, graph.num_nodes))


def check_graph_size(
    num_nodes: int, num_edges: int, limits: GraphSizeLimits, nodes: str, edges: str
) -> None:
    """Check the size limits; `nodes` and `edges` are JSON pointers for errors."""
    if num_nodes == 0:
        raise make_graph_problem_at(
            nodes, "empty", "The graph has no nodes. Send at least one node."
        )
    if num_nodes > limits.max_nodes:
        detail = (
            f"The graph has {num_nodes} nodes; at most {limits.max_nodes} (BASIN_MAX_NODES) are "
            "allowed. Send a smaller graph."
        )
        raise make_graph_problem_at(nodes, "too_many_nodes", detail)
    if num_edges > limits.max_edges:
        detail = (
            f"The graph has {num_edges} edges; at most {limits.max_edges} (BASIN_MAX_EDGES) are "
            "allowed. Send a smaller graph."
        )
        raise make_graph_problem_at(edges, "too_many_edges", detail)


def require_edge_lists(value: object, at: PointerFn) -> list[list[Any]]:
    """Return the two lists of an `edge_index`, which have equal length."""
    ends = require_list(value, at)
    if len(ends) != 2 or any(type(end) is not list for end in ends) or len({*map(len, ends)}) > 1:
        detail = "Must be two lists of equal length: the source and the target of each edge."
        raise make_graph_problem_at(at(), "wrong_shape", detail)
    return ends


def parse_edge_index(ends: list[list[Any]], num_nodes: int, *where: str) -> np.ndarray:
    """Convert source and target rows of edges to int64 (2, E)."""
    rule = "Must be a row number of `x`."
    return np.stack(
        [
            parse_integers(end, num_nodes, pointer_builder(*where, str(i)), "out_of_range", rule)
            for i, end in enumerate(ends)
        ]
    )


def _from_arrays(
    graph: object, model: GraphSchema, limits: GraphSizeLimits
) -> tuple[Graph, list[NodeId] | None, dict[NodeId, int] | None]:
    if not isinstance(graph, dict):
        raise make_graph_problem_at("/graph", "wrong_type", "Must be an object.")
    if graph.get("edge_attr") is not None:
        detail = "This model has no edge features. Leave out `edge_attr`."
        raise make_graph_problem_at("/graph/edge_attr", "not_read", detail)
    if faults := unknown_fields(graph, _ARRAY_FIELDS, "graph"):
        raise make_graph_problem(faults)
    at_x, at_edges = pointer_builder("graph", "x"), pointer_builder("graph", "edge_index")
    x = require_list(graph.get("x"), at_x)
    ends = require_edge_lists(graph.get("edge_index"), at_edges)
    check_graph_size(len(x), len(ends[0]), limits, at_x(), at_edges())
    node_ids = graph.get("node_ids")
    rows = None
    if node_ids is not None:
        at_ids = pointer_builder("graph", "node_ids")
        if len(require_list(node_ids, at_ids)) != len(x):
            detail = f"Must hold one id per row of `x`: {len(x)}, not {len(node_ids)}."
            raise make_graph_problem_at(at_ids(), "wrong_shape", detail)
        rows = index_ids(node_ids, at_ids)
    edge_index = parse_edge_index(ends, len(x), "graph", "edge_index")
    at_names = pointer_builder("graph", "relation_names")
    edge_type = parse_relations(
        graph.get("edge_type"),
        model.relations,
        len(ends[0]),
        pointer_builder("graph", "edge_type"),
        match_relations(graph.get("relation_names"), model.relations, at_names),
    )
    at_names = pointer_builder("graph", "feature_names")
    columns = match_features(graph.get("feature_names"), model.features, at_names)
    x = parse_feature_matrix(x, model.features, at_x)  # as many as there are names
    return Graph(x if columns is None else x[:, columns], edge_index, edge_type), node_ids, rows


def _from_rows(
    body: Mapping[str, Any], model: GraphSchema, limits: GraphSizeLimits
) -> tuple[Graph, list[NodeId], dict[NodeId, int]]:
    nodes = require_list(body.get("nodes"), pointer_builder("nodes"))
    edges = require_list(body.get("edges"), pointer_builder("edges"))
    check_graph_size(len(nodes), len(edges), limits, "/nodes", "/edges")
    x, node_ids, rows = parse_nodes(nodes, model)
    types = parse_edge_types(edges, model, "edges")
    edge_index = np.stack(
        [
            find_rows([edge[end] for edge in edges], rows, pointer_builder("edges", tail=end))
            for end in ("source", "target")
        ]
    )
    return Graph(x, edge_index, types), node_ids, rows


def parse_nodes(
    nodes: list[Any], model: GraphSchema
) -> tuple[np.ndarray, list[NodeId], dict[NodeId, int]]:
    """Parse at least one row of nodes; return their features, their ids, and the row of each id."""
    require_types(nodes, {dict}, pointer_builder("nodes"), "Must be an object.")
    by_name = type(nodes[0].get("x")) is not list  # a feature may be called x too
    fields = ("id", *(model.features if by_name else ["x"]))
    _require_fields(nodes, fields, "nodes")
    if by_name:
        values = list(map(list, map(_getter(model.features), nodes)))
        features = model.features

        def at_x(i: int, column: int) -> str:
            return pointer("nodes", i, features[column])

        x = parse_feature_matrix(values, features, at_x)
    else:
        x = parse_feature_matrix(
            [node["x"] for node in nodes], model.features, pointer_builder("nodes", tail="x")
        )
    node_ids = [node["id"] for node in nodes]
    return x, node_ids, index_ids(node_ids, pointer_builder("nodes", tail="id"))


def parse_edge_types(edges: list[Any], model: GraphSchema, where: str) -> np.ndarray | None:
    """Return the relation numbers of rows of edges at `where`, after checking their fields."""
    require_types(edges, {dict}, pointer_builder(where), "Must be an object.")
    # A model with a single relation needs no types; those that are sent are checked.
    several = len(model.relations) > 1
    optional = model.relations != UNTYPED and any("type" in edge for edge in edges)
    has_types = several or optional
    _require_fields(edges, ("source", "target", *(["type"] if has_types else [])), where)
    types = [edge["type"] for edge in edges] if has_types else None
    return parse_relations(types, model.relations, len(edges), pointer_builder(where, tail="type"))


def _require_fields(rows: list[dict[str, Any]], fields: tuple[str, ...], where: str) -> None:
    """Require that every row has exactly `fields`."""
    keys = frozenset(fields)
    faults: list[FieldError] = []
    for i, row in enumerate(rows):
        if row.keys() == keys:
            continue
        faults += [
            FieldError(
                pointer(where, i, name),
                "missing",
                f"Each row needs the fields {join_names(fields)}.",
            )
            for name in fields
            if name not in row
        ]
        faults += unknown_fields(row, fields, where, i)
        if len(faults) >= MAX_FIELD_ERRORS:
            break
    if faults:
        raise make_graph_problem(faults)


def _getter(names: tuple[str, ...]) -> Callable[[dict[str, Any]], tuple[Any, ...]]:
    """Like `itemgetter`, but returns a tuple also for a single name."""
    get = itemgetter(*names)
    return get if len(names) > 1 else lambda row: (get(row),)
