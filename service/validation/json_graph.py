"""Parse graphs in JSON: as arrays, or as rows of nodes and edges."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
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
from service.validation.edge_features import match_edge_features, parse_edge_attr
from service.validation.ids import NodeId, find_rows, index_ids, parse_targets
from service.validation.names import (
    match_features,
    match_relations,
    order_columns,
    parse_relations,
)
from service.validation.node_labels import parse_labels

_ARRAY_FIELDS = (
    *("x", "edge_index", "edge_type", "edge_attr", "node_ids"),
    *("feature_names", "edge_feature_names", "relation_names"),
)


class GraphSchema(Protocol):
    """The properties of a model by which a graph is parsed."""

    @property
    def features(self) -> tuple[str, ...]: ...

    @property
    def relations(self) -> tuple[str, ...]: ...

    @property
    def edge_features(self) -> tuple[str, ...]: ...


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
    targets = parse_targets(body.get("targets"), rows, graph.num_nodes)
    labels = parse_labels(body.get("labels"), rows, graph.num_nodes)
    return ParsedGraph(replace(graph, labels=labels), node_ids, targets)


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
    x = order_columns(parse_feature_matrix(x, model.features, at_x), columns)
    at_names = pointer_builder("graph", "edge_feature_names")
    columns = match_edge_features(graph.get("edge_feature_names"), model.edge_features, at_names)
    at_attr = pointer_builder("graph", "edge_attr")
    attr = parse_edge_attr(graph.get("edge_attr"), len(ends[0]), model.edge_features, at_attr)
    return Graph(x, edge_index, edge_type, order_columns(attr, columns)), node_ids, rows


def _from_rows(
    body: Mapping[str, Any], model: GraphSchema, limits: GraphSizeLimits
) -> tuple[Graph, list[NodeId], dict[NodeId, int]]:
    nodes = require_list(body.get("nodes"), pointer_builder("nodes"))
    edges = require_list(body.get("edges"), pointer_builder("edges"))
    check_graph_size(len(nodes), len(edges), limits, "/nodes", "/edges")
    x, node_ids, rows = parse_nodes(nodes, model.features)
    types = parse_edge_types(edges, model.relations, "edges", model.edge_features)
    edge_index = np.stack(
        [
            find_rows([edge[end] for edge in edges], rows, pointer_builder("edges", tail=end))
            for end in ("source", "target")
        ]
    )
    attr = None
    if model.edge_features:
        attr = parse_named_features(edges, model.edge_features, "edge")
    return Graph(x, edge_index, types, attr), node_ids, rows


def parse_nodes(
    nodes: list[Any], features: tuple[str, ...]
) -> tuple[np.ndarray, list[NodeId], dict[NodeId, int]]:
    """Parse at least one row of nodes; return their features, their ids, and the row of each id."""
    require_types(nodes, {dict}, pointer_builder("nodes"), "Must be an object.")
    by_name = type(nodes[0].get("x")) is not list  # a feature may be called x too
    fields = ("id", *(features if by_name else ["x"]))
    _require_fields(nodes, fields, "nodes")
    if by_name:
        x = parse_named_features(nodes, features, "node")
    else:
        x = parse_feature_matrix(
            [node["x"] for node in nodes], features, pointer_builder("nodes", tail="x")
        )
    node_ids = [node["id"] for node in nodes]
    return x, node_ids, index_ids(node_ids, pointer_builder("nodes", tail="id"))


def parse_edge_types(
    edges: list[Any], relations: tuple[str, ...], where: str, features: tuple[str, ...] = ()
) -> np.ndarray | None:
    """Return the relation numbers of rows of edges at `where`, after checking their fields: those
    of an edge, and `features`."""
    require_types(edges, {dict}, pointer_builder(where), "Must be an object.")
    # A model with a single relation needs no types; those that are sent are checked.
    several = len(relations) > 1
    optional = relations != UNTYPED and any("type" in edge for edge in edges)
    has_types = several or optional
    fields = ("source", "target", *(["type"] if has_types else []), *features)
    _require_fields(edges, fields, where)
    types = [edge["type"] for edge in edges] if has_types else None
    return parse_relations(types, relations, len(edges), pointer_builder(where, tail="type"))


def parse_named_features(
    rows: list[dict[str, Any]], features: tuple[str, ...], of: str
) -> np.ndarray:
    """Convert the features of rows of nodes or edges (`of`: node, edge), each under its own name,
    to float32 (N, F)."""
    values = list(map(list, map(_getter(features), rows)))

    def at(i: int, column: int) -> str:
        return pointer(f"{of}s", i, features[column])

    return parse_feature_matrix(values, features, at, of)


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
