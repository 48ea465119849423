"""Check the features of edges that a request carries, in JSON or as a tensor."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from service.errors import Problem
from service.validation.arrays import (
    PointerFn,
    join_names,
    make_graph_problem_at,
    make_graph_problem_where,
    parse_feature_matrix,
    require_list,
    require_width,
    to_float32,
)
from service.validation.names import match_features


def match_edge_features(
    names: object, features: tuple[str, ...], at: PointerFn
) -> np.ndarray | None:
    """As `match_features`, of the columns of `edge_attr`.

    Raises:
        Problem: the model has no edge features, or the names are not those of the model.
    """
    if names is not None and not features:
        raise _make_not_read("edge_feature_names", at)
    return match_features(names, features, at, "edge feature")


def parse_edge_attr(
    rows: object, num_edges: int, features: Sequence[str], at: PointerFn
) -> np.ndarray:
    """Convert lists of numbers, one per edge, to float32 (E, P); without edges they may be missing.

    Raises:
        Problem: the model needs them or reads none, or they are not P finite numbers per edge.
    """
    _check_presence(rows, num_edges, features, at)
    if rows is None:
        return np.zeros((num_edges, len(features)), np.float32)
    values = require_list(rows, at)
    _check_length(len(values), num_edges, at)
    return parse_feature_matrix(values, features, at, "edge")


def edge_attr_from_tensor(
    attr: np.ndarray | None, num_edges: int, features: Sequence[str], at: PointerFn
) -> np.ndarray:
    """As `parse_edge_attr`, of a tensor of two dimensions; without edges it may have any width."""
    _check_presence(attr, num_edges, features, at)
    if attr is None or len(attr) == num_edges == 0:
        return np.zeros((num_edges, len(features)), np.float32)
    require_width(attr, features, at)
    _check_length(len(attr), num_edges, at)
    return to_float32(attr, at)


def require_same_if_repeated(
    ends: np.ndarray, relation: np.ndarray | None, attr: np.ndarray, at: PointerFn
) -> None:
    """Require of edges that come again in one request the features that they came with.

    Args:
        ends: numbers of source and target, int64 (2, E).
        relation: of each edge (E,); None if all have one.
        attr: float32 (E, P).
        at: pointer to one of the edges.
    """
    keys = ends if relation is None else np.concatenate([ends, relation[None]])
    order = np.lexsort(keys)
    is_again = (keys[:, order[1:]] == keys[:, order[:-1]]).all(0)
    is_other = is_again & (attr[order[1:]] != attr[order[:-1]]).any(1)
    if is_other.any():
        conflict = np.zeros(len(attr), bool)
        conflict[order[1:][is_other]] = True
        rule = (
            "An edge before this one has the same source, target and type, and other features. A "
            "stored graph has one such edge. Put the two together, or send the graph to POST "
            "/anomaly/score."
        )
        raise make_graph_problem_where(conflict, at, "conflict", rule)


def _check_presence(attr: object, num_edges: int, features: Sequence[str], at: PointerFn) -> None:
    if attr is not None and not features:
        raise _make_not_read("edge_attr", at)
    if attr is None and features and num_edges:
        detail = f"This model needs {len(features)} features per edge ({join_names(features)})."
        raise make_graph_problem_at(at(), "missing", detail)


def _check_length(num_rows: int, num_edges: int, at: PointerFn) -> None:
    if num_rows != num_edges:
        detail = f"Must hold one row per edge: {num_edges}, not {num_rows}."
        raise make_graph_problem_at(at(), "wrong_shape", detail)


def _make_not_read(name: str, at: PointerFn) -> Problem:
    detail = f"This model has no edge features. Leave out `{name}`."
    return make_graph_problem_at(at(), "not_read", detail)
