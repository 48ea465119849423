"""Parse rows of transactions by the recipe of a model."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from models.inputs.transactions import (
    NeighborhoodTooLargeError,
    TransactionError,
    TransactionRecipe,
    Transactions,
    find_history_kind,
    find_last_states,
    parse_timestamp,
)
from service.errors import FieldError, pointer, unknown_fields
from service.validation.arrays import (
    make_graph_problem,
    make_graph_problem_at,
    pointer_builder,
    require_list,
    require_types,
)
from service.validation.ids import NodeId, check_targets, find_rows, index_ids, parse_targets
from service.validation.json_graph import GraphSizeLimits, ParsedGraph, check_graph_size

ID = "id"
_MAX_TEXT = 256
_AT = pointer_builder("transactions")


def parse_transactions(
    value: object, recipe: TransactionRecipe, max_rows: int
) -> tuple[Transactions, list[NodeId] | None]:
    """Convert rows in JSON, as sent and in their order; and their ids, if they have any.

    Raises:
        Problem: a row lacks a column, has one that the model does not read, or a wrong value.
    """
    rows = require_list(value, _AT)
    if not rows:
        raise make_graph_problem_at(
            _AT(), "empty", "`transactions` is empty. Send at least one transaction."
        )
    if len(rows) > max_rows:
        detail = (
            f"{len(rows)} transactions were sent; at most {max_rows} (BASIN_MAX_NODES) are allowed."
            " Send fewer."
        )
        raise make_graph_problem_at(_AT(), "too_many_nodes", detail)
    require_types(rows, {dict}, _AT, "Must be an object: a transaction.")
    columns = [recipe.time, recipe.source, recipe.target, *recipe.number_columns]
    columns += recipe.text_columns
    if recipe.label is not None:
        columns.append(recipe.label)
    known = {*columns, ID}
    for i, row in enumerate(rows):
        if not row.keys() <= known:
            faults = unknown_fields(row, tuple(known), "transactions", str(i))
            raise make_graph_problem(faults)
    parsed = Transactions(
        time=_parse_column(rows, recipe.time, _time_reader(recipe)).astype(float),
        source=_parse_column(rows, recipe.source, _read_id),
        target=_parse_column(rows, recipe.target, _read_id),
        amount=_parse_column(rows, recipe.amount, _read_number).astype(float),
        categories={name: _parse_column(rows, name, _read_text) for name in recipe.text_columns},
        numbers={
            name: _parse_column(rows, name, _read_number).astype(float) for name in recipe.numbers
        },
        labels=None if recipe.label is None else parse_labels(rows, recipe.label),
    )
    return parsed, _parse_ids(rows)


def parse_labels(rows: Sequence[dict[str, Any]], column: str) -> np.ndarray:
    """Return labels, int8 (n,): 1 fraud, 0 none, -1 unknown.

    Raises:
        Problem: a value is none of these.
    """
    return _parse_column(rows, column, _read_label).astype(np.int8)


def _parse_ids(rows: Sequence[dict[str, Any]]) -> list[NodeId] | None:
    if not any(ID in row for row in rows):
        return None
    ids = [row.get(ID) for row in rows]
    index_ids(ids, pointer_builder("transactions", tail=ID))
    return [value for value in ids if value is not None]


def _parse_column(
    rows: Sequence[dict[str, Any]], column: str, read: Callable[[Any], Any]
) -> np.ndarray:
    """Return a column as (n,) of dtype object; `read` raises ValueError with what is allowed."""
    values = np.empty(len(rows), object)
    faults = list[FieldError]()
    for i, row in enumerate(rows):
        try:
            values[i] = read(row.get(column))
        except ValueError as error:
            code = "missing" if row.get(column) is None else "wrong_type"
            faults.append(FieldError(pointer("transactions", i, column), code, str(error)))
    if faults:
        raise make_graph_problem(faults)
    return values


def _read_number(value: Any) -> float:
    if value is None:
        return math.nan
    if type(value) not in (int, float) or not math.isfinite(value):
        raise ValueError("Must be a finite number, or null where it is missing.")
    return float(value)


def _read_label(value: Any) -> int:
    if value is None:
        return -1
    if type(value) in (bool, int, float) and value in (0, 1):
        return int(value)
    raise ValueError("Must be 1 (fraud), 0 (none), or null where it is not known.")


def _time_reader(recipe: TransactionRecipe) -> Callable[[Any], float]:
    def read(value: Any) -> float:
        if type(value) in (int, float) and math.isfinite(value):
            return float(value)
        if recipe.calendar and type(value) is str:
            try:
                return parse_timestamp(value)
            except (ValueError, OverflowError):
                pass
        if recipe.calendar:
            raise ValueError(
                f"`{recipe.time}` must be a timestamp, as 2026-01-31T23:59:59+01:00 (UTC without a "
                "zone), or seconds since 1970."
            )
        raise ValueError(f"`{recipe.time}` must be a finite number, as in training.")

    return read


def _read_id(value: Any) -> str:
    if type(value) is int or (type(value) is str and value.strip()):
        text = str(value)
        if len(text) <= _MAX_TEXT:
            return text
    raise ValueError(f"Must be an id: text of 1 to {_MAX_TEXT} characters, or an integer.")


def _read_text(value: Any) -> str:
    if value is None:
        return ""
    if type(value) in (str, int):
        text = str(value)
        if len(text) <= _MAX_TEXT:
            return text if text.strip() else ""
    raise ValueError(f"Must be text of at most {_MAX_TEXT} characters, an integer, or null.")


def parse_transaction_graph(
    body: Mapping[str, Any], recipe: TransactionRecipe, limits: GraphSizeLimits
) -> ParsedGraph:
    """Return the neighbourhoods of the transactions or accounts to score, side by side.

    Rows count in order of time, those of equal time in the order sent. `targets` are ids of
    transactions, or places in the list where no row has one, or ids of accounts where the model
    scores these; all if left out. A node is called after its transaction or account, so a
    transaction that is near several targets stands for several nodes.

    Raises:
        Problem: the rows or targets are not valid, or too much is around the targets.
    """
    if any(body.get(name) is not None for name in ("graph", "nodes", "edges")):
        raise make_graph_problem_at(
            "", "one_of", "Send either `transactions` or a graph, not both."
        )
    rows, ids = parse_transactions(body.get("transactions"), recipe, limits.max_nodes)
    states, given = dict[str, int](), body.get("targets")
    if recipe.scores == "accounts":
        states = find_last_states(rows, np.argsort(rows.time, kind="stable"), recipe)
        targets = _parse_accounts(given, list(states))
    else:
        places = None if ids is None else dict(zip(ids, range(len(ids)), strict=True))
        targets = parse_targets(given, places, len(rows))
    try:
        history, rank = find_history_kind(recipe).from_rows(recipe, rows)
    except TransactionError as error:
        at_row = pointer("transactions", error.row, error.column)
        raise make_graph_problem_at(at_row, error.code, error.rule) from None
    numbers = np.array(list(states.values())) if recipe.scores == "accounts" else rank
    scored = numbers if targets is None else numbers[targets]
    at = _AT() if targets is None else "/targets"
    try:
        graph, nodes, own = history.build_graph(scored, limits.max_nodes)
    except NeighborhoodTooLargeError:
        detail = (
            f"The neighbourhoods of the {len(scored)} {recipe.scores} have more than "
            f"{limits.max_nodes} nodes (BASIN_MAX_NODES). Score fewer at a time."
        )
        raise make_graph_problem_at(at, "too_many_nodes", detail) from None
    check_graph_size(graph.num_nodes, graph.edge_index.shape[1], limits, at, at)
    called = np.argsort(rank)[nodes].tolist()
    node_ids = called if ids is None else [ids[place] for place in called]
    if recipe.scores == "accounts":
        accounts = list(states)
        chosen = range(len(accounts)) if targets is None else targets.tolist()
        for node, account in zip(own.tolist(), chosen, strict=True):
            node_ids[node] = accounts[account]
    return ParsedGraph(graph, node_ids, own)


def _parse_accounts(given: object, accounts: list[str]) -> np.ndarray | None:
    """Return the places in `accounts` of the targets; None for all. An integer is its text."""
    at = pointer_builder("targets")
    if given is None:
        return None
    names = [str(name) if type(name) is int else name for name in require_list(given, at)]
    places = dict(zip(accounts, range(len(accounts)), strict=True))
    rule = "Must be the id of an account of `transactions` that the model scores."
    return check_targets(find_rows(names, places, at, rule), len(accounts))
