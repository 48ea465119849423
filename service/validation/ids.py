"""Convert node ids, targets and relations to row numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from service.validation.arrays import (
    PointerFn,
    make_graph_problem_at,
    make_graph_problem_where,
    parse_integers,
    pointer_builder,
    require_list,
    require_range,
    require_types,
)

NodeId = int | str

_MAX_ID_LENGTH = 256
_TARGETS = pointer_builder("targets")
_NO_NODE = ("unknown_node", "Must be the row number of a node.")


def index_ids(ids: list[Any], at: PointerFn) -> dict[NodeId, int]:
    """Return the row of each id; ids must be unique strings or integers."""
    require_types(ids, {int, str}, at, "A node id must be a string or an integer.")
    rows: dict[NodeId, int] = dict(zip(ids, range(len(ids)), strict=True))
    if len(rows) != len(ids):  # `rows` has the last row of a repeated id
        again = np.array([rows[name] != i for i, name in enumerate(ids)])
        raise make_graph_problem_where(
            again, at, "duplicate", "A later node has the same id. Node ids must be unique."
        )
    if max((len(name) for name in ids if type(name) is str), default=0) > _MAX_ID_LENGTH:
        long = np.array([type(name) is str and len(name) > _MAX_ID_LENGTH for name in ids])
        raise make_graph_problem_where(
            long, at, "too_long", f"A node id may have at most {_MAX_ID_LENGTH} characters."
        )
    return rows


def find_rows(
    ids: list[Any],
    rows: Mapping[Any, int],
    at: PointerFn,
    rule: str = "Must be the id of a node.",
) -> np.ndarray:
    """Return the rows (int64) of nodes by their ids."""
    require_types(ids, {int, str}, at, rule)
    numbers = np.array([rows.get(name, -1) for name in ids], np.int64)
    require_range(numbers, len(rows), at, "unknown_node", rule)
    return numbers


def parse_targets(
    targets: object, rows: dict[NodeId, int] | None, num_nodes: int
) -> np.ndarray | None:
    """Return the rows of the nodes to score, given by id, or by row if nodes have no ids; None for
    all."""
    if targets is None:
        return None
    if rows is None:
        return check_targets(parse_integers(targets, num_nodes, _TARGETS, *_NO_NODE), num_nodes)
    return check_targets(find_rows(require_list(targets, _TARGETS), rows, _TARGETS), num_nodes)


def check_targets(targets: np.ndarray, num_nodes: int) -> np.ndarray:
    """Require at least one target, each an existing node, none twice."""
    if not len(targets):
        detail = (
            "`targets` is empty. Give at least one node, or leave out `targets` to score all nodes."
        )
        raise make_graph_problem_at(_TARGETS(), "empty", detail)
    require_range(targets, num_nodes, _TARGETS, *_NO_NODE)
    if len(set(targets.tolist())) != len(targets):
        first = np.unique(targets, return_index=True)[1]
        again = np.ones(len(targets), bool)
        again[first] = False
        raise make_graph_problem_where(
            again, _TARGETS, "duplicate", "This node is already in `targets`. Give each node once."
        )
    return targets
