"""Parse lists of graphs, from JSON or tensors, with the columns of a classifier."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from models.inputs.graph import Column, Graph
from service.errors import pointer, unknown_fields
from service.registry.handles import Classifier
from service.settings import Settings
from service.validation.arrays import (
    PointerFn,
    make_graph_problem,
    make_graph_problem_at,
    make_graph_problem_where,
    parse_feature_matrix,
    pointer_builder,
    require_list,
    require_range,
    require_width,
    to_float32,
)
from service.validation.edge_features import edge_attr_from_tensor, parse_edge_attr
from service.validation.json_graph import check_graph_size, parse_edge_index, require_edge_lists
from service.validation.safetensors_body import FLOAT_DTYPES, INTEGER_DTYPES, Tensors, TensorSpecs

_NUMBERS = {**FLOAT_DTYPES, **INTEGER_DTYPES, "U8": np.uint8}
TENSORS: TensorSpecs = {
    "x": (_NUMBERS, (2,)),
    "edge_index": (INTEGER_DTYPES, (2,)),
    "edge_attr": (_NUMBERS, (2,)),
    "ptr": (INTEGER_DTYPES, (1,)),
}
_FIELDS = ("x", "edge_index", "edge_attr")


def graphs_of_json(value: object, model: Classifier, settings: Settings) -> list[Graph]:
    """Parse the field `graphs`.

    Raises:
        Problem: `invalid-graph`, for the first invalid graph.
    """
    graphs = require_list(value, pointer_builder("graphs"))
    _check_count(len(graphs), settings, "/graphs")
    return [_graph(graph, i, model, settings) for i, graph in enumerate(graphs)]


def graphs_of_tensors(tensors: Tensors, model: Classifier, settings: Settings) -> list[Graph]:
    """Split concatenated tensors into graphs: graph i has the rows `ptr[i]` to `ptr[i + 1]` of x;
    `edge_index` refers to rows of the whole x. Without `ptr` there is one graph.

    Raises:
        Problem: `invalid-graph`.
    """
    for name in ("x", "edge_index"):
        if name not in tensors:
            raise make_graph_problem_at(f"/{name}", "missing", "This tensor is required.")
    x, edge_index, attr = tensors["x"], tensors["edge_index"], tensors.get("edge_attr")
    if len(edge_index) != 2:
        detail = "Must have the shape (2, E): the source and the target of each edge."
        raise make_graph_problem_at("/edge_index", "wrong_shape", detail)
    nodes, edges = len(x), edge_index.shape[1]
    check_graph_size(nodes, edges, settings, "/x", "/edge_index")
    ptr = _offsets(tensors.get("ptr", np.array([0, nodes])), nodes, settings)
    at_x, at_edges, at_attr = (
        pointer_builder("x"),
        pointer_builder("edge_index"),
        pointer_builder("edge_attr"),
    )
    require_width(x, _names(model.node_features), at_x)
    table = _checked(to_float32(x, at_x), model.node_features, at_x)
    features = edge_attr_from_tensor(attr, edges, _names(model.edge_features), at_attr)
    features = _checked(features, model.edge_features, at_attr)
    require_range(edge_index, nodes, at_edges, "out_of_range", "Must be a row number of `x`.")
    graph_of_E2 = np.searchsorted(ptr, edge_index, side="right") - 1
    if (apart := graph_of_E2[0] != graph_of_E2[1]).any():
        rule = "Source and target of an edge must be in the same graph."
        raise make_graph_problem_where(
            apart, pointer_builder("edge_index", "1"), "across_graphs", rule
        )
    order = np.argsort(graph_of_E2[0], kind="stable")
    bounds = np.searchsorted(graph_of_E2[0][order], np.arange(len(ptr)))
    graphs = []
    for i, (first, last) in enumerate(pairwise(ptr.tolist())):
        mine = order[bounds[i] : bounds[i + 1]]
        _check_cost(last - first, len(mine), model, settings, pointer("ptr", i))
        local = edge_index[:, mine].astype(np.int64) - first
        graphs.append(Graph(table[first:last], local, None, features[mine]))
    return graphs


def _graph(value: object, i: int, model: Classifier, settings: Settings) -> Graph:
    where = ("graphs", str(i))
    if not isinstance(value, dict):
        raise make_graph_problem_at(pointer(*where), "wrong_type", "Must be an object.")
    if faults := unknown_fields(value, _FIELDS, *where):
        raise make_graph_problem(faults)
    at_x, at_edges, at_attr = (pointer_builder(*where, name) for name in _FIELDS)
    rows = require_list(value.get("x"), at_x)
    ends = require_edge_lists(value.get("edge_index"), at_edges)
    edges = len(ends[0])
    check_graph_size(len(rows), edges, settings, at_x(), at_edges())
    _check_cost(len(rows), edges, model, settings, pointer(*where))
    x = parse_feature_matrix(rows, _names(model.node_features), at_x)
    x = _checked(x, model.node_features, at_x)
    edge_index = parse_edge_index(ends, len(rows), *where, "edge_index")
    attr = parse_edge_attr(value.get("edge_attr"), edges, _names(model.edge_features), at_attr)
    return Graph(x, edge_index, None, _checked(attr, model.edge_features, at_attr))


def _names(columns: Sequence[Column]) -> list[str]:
    return [column.name for column in columns]


def _checked(table: np.ndarray, columns: Sequence[Column], at: PointerFn) -> np.ndarray:
    """Require valid categories; the error is about the first column with invalid ones."""
    size_F = np.array([np.inf if c.values is None else len(c.values) for c in columns])
    wrong = np.isfinite(size_F) & ((table < 0) | (table >= size_F) | (table != np.floor(table)))
    if not wrong.any():
        return table
    c = int(wrong.any(0).argmax())
    rule = f"The column {columns[c].name} must hold whole numbers from 0 to {size_F[c] - 1:.0f}."
    raise make_graph_problem_where(wrong[:, c], lambda *row: at(*row, c), "unknown_category", rule)


def _offsets(ptr: np.ndarray, nodes: int, settings: Settings) -> np.ndarray:
    if len(ptr) < 2 or ptr[0] != 0 or ptr[-1] != nodes:
        detail = f"Must start with 0 and end with {nodes}, the number of rows of `x`."
        raise make_graph_problem_at("/ptr", "wrong_shape", detail)
    _check_count(len(ptr) - 1, settings, "/ptr")
    if (back := ptr[1:] <= ptr[:-1]).any():
        rule = "Must be greater than the entry before it: every graph has at least one node."
        raise make_graph_problem_where(back, pointer_builder("ptr"), "out_of_range", rule, start=1)
    return ptr.astype(np.int64)


def _check_count(count: int, settings: Settings, at: str) -> None:
    if not count:
        raise make_graph_problem_at(at, "empty", "There are no graphs. Send at least one graph.")
    if count > settings.max_graphs:
        detail = (
            f"{count} graphs were sent; at most {settings.max_graphs} (BASIN_MAX_GRAPHS) are "
            "allowed. Send several requests."
        )
        raise make_graph_problem_at(at, "too_many", detail)


def _check_cost(nodes: int, edges: int, model: Classifier, settings: Settings, at: str) -> None:
    """Refuse a graph that needs too much memory, or too much time that cannot be interrupted."""
    tokenizer = model.network.tokenizer
    if (num_pairs := tokenizer.max_pairs(nodes, edges)) > settings.max_pairs:
        rule = (
            f"The graph has too many pairs of connected tokens: {num_pairs}; at most "
            f"{settings.max_pairs} (BASIN_MAX_PAIRS) are allowed. Send a smaller graph."
        )
        raise make_graph_problem_at(at, "too_many_pairs", rule)
    num_operations = tokenizer.estimate_operations(nodes, edges)
    if num_operations > settings.max_position_work:
        detail = (
            f"The position encoding of this graph takes {num_operations} operations; at "
            f"most {settings.max_position_work} (BASIN_MAX_POSITION_WORK) are allowed. Send "
            "a smaller graph."
        )
        raise make_graph_problem_at(at, "too_much_work", detail)
