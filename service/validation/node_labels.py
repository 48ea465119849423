"""Check the labels of nodes that a request carries, in JSON or as a tensor."""

from __future__ import annotations

from typing import Any

import numpy as np

from models.inputs.graph import UNKNOWN
from service.errors import FieldError, unknown_fields
from service.validation.arrays import (
    make_graph_problem,
    make_graph_problem_at,
    make_graph_problem_where,
    parse_integers,
    pointer_builder,
    require_list,
    require_types,
)
from service.validation.ids import NodeId, find_rows, index_ids

_FIELDS = ("node_id", "label")
_AT = pointer_builder("labels")
_AT_NODE, _AT_LABEL = (pointer_builder("labels", tail=name) for name in _FIELDS)
_NO_NODE = "Must be the row number of a node."


def parse_labels(
    given: object, rows: dict[NodeId, int] | None, num_nodes: int
) -> np.ndarray | None:
    """Convert `[{"node_id": .., "label": 0 or 1}, ..]` to labels of all nodes, int8 (N,).

    Args:
        rows: of nodes by id; None if nodes go by their row.

    Raises:
        Problem: an entry has other fields, no node or no label, or a node has several.
    """
    if given is None:
        return None
    nodes, labels = _read_entries(require_list(given, _AT))
    if rows is None:
        row_n = parse_integers(nodes, num_nodes, _AT_NODE, "unknown_node", _NO_NODE)
    else:
        row_n = find_rows(nodes, rows, _AT_NODE)
    labels_n = parse_integers(labels, 2, _AT_LABEL, "out_of_range", "Must be 0 or 1.")
    _, first = np.unique(row_n, return_index=True)
    if len(first) < len(row_n):
        again = np.ones(len(row_n), bool)
        again[first] = False
        rule = "This node has a label already. Give each node one."
        raise make_graph_problem_where(again, _AT_NODE, "duplicate", rule)
    labels_N = np.full(num_nodes, UNKNOWN, np.int8)
    labels_N[row_n] = labels_n
    return labels_N


def parse_label_changes(entries: list[Any]) -> tuple[tuple[NodeId, int], ...]:
    """Convert `[{"node_id": .., "label": 0, 1 or null}, ..]` to ids and labels, `UNKNOWN` for null.

    Raises:
        Problem: an entry has other fields, no node or no label, or a node has several.
    """
    nodes, labels = _read_entries(entries)
    index_ids(nodes, _AT_NODE)
    rule = "Must be 0, 1, or null where it is not known any more."
    numbers = [0 if label is None else label for label in labels]
    parse_integers(numbers, 2, _AT_LABEL, "out_of_range", rule)
    known = [UNKNOWN if label is None else label for label in labels]
    return tuple(zip(nodes, known, strict=True))


def _read_entries(entries: list[Any]) -> tuple[list[Any], list[Any]]:
    """Return `node_id` and `label` of each entry."""
    require_types(entries, {dict}, _AT, "Must be an object.")
    for i, entry in enumerate(entries):
        faults = [
            FieldError(f"/labels/{i}/{name}", "missing", "This field is required.")
            for name in _FIELDS
            if name not in entry
        ]
        if faults := [*faults, *unknown_fields(entry, _FIELDS, "labels", i)]:
            raise make_graph_problem(faults)
    return [entry["node_id"] for entry in entries], [entry["label"] for entry in entries]


def labels_from_tensor(labels: np.ndarray | None, num_nodes: int) -> np.ndarray | None:
    """The same of a tensor of one label for each node, with -1 where it is not known."""
    if labels is None:
        return None
    if len(labels) != num_nodes:
        detail = f"Must hold one label per row of `x`: {num_nodes}, not {len(labels)}."
        raise make_graph_problem_at(_AT(), "wrong_shape", detail)
    if (is_other := ~np.isin(labels, (UNKNOWN, 0, 1))).any():
        rule = "Must be 0, 1, or -1 where the label is not known."
        raise make_graph_problem_where(is_other, _AT, "out_of_range", rule)
    return labels.astype(np.int8)
