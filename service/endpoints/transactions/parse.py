"""Parse transactions and labels to store."""

from __future__ import annotations

import numpy as np

from models.inputs.transactions import TransactionRecipe
from service.endpoints.common.labels import require_labels
from service.endpoints.transactions.schemas import (
    MAX_ROWS,
    AddOptions,
    NewLabelsBody,
    NewTransactionsBody,
)
from service.errors import unknown_fields
from service.storage.graphs import NewLabels, NewTransactions, Schema, Update
from service.validation.arrays import (
    make_graph_problem_at,
    make_graph_problem_where,
    pointer_builder,
)
from service.validation.ids import index_ids
from service.validation.json_body import parse_json_object
from service.validation.schema_errors import make_request_problem, validate_fields
from service.validation.transaction_rows import parse_transactions

_MAX_ID = 64
_ID_AT = pointer_builder("transactions", tail="id")


def parse_new_transactions(
    body: bytes, recipe: TransactionRecipe
) -> tuple[NewTransactions, frozenset[str]]:
    """Return the rows of a body, in the order sent, and what the response shall include.

    Raises:
        Problem: a row is not valid, or has no id.
    """
    fields = parse_json_object(body, "invalid-json")
    if faults := unknown_fields(fields, NewTransactionsBody.model_fields):
        raise make_request_problem(faults)
    options = validate_fields(AddOptions, fields)
    given = fields.get("transactions")
    if isinstance(given, list) and len(given) > MAX_ROWS:
        rule = f"{len(given)} transactions were sent; at most {MAX_ROWS} are allowed. Send several."
        raise make_graph_problem_at("/transactions", "too_many", rule)
    rows, ids = parse_transactions(given, recipe, MAX_ROWS)
    if ids is None:
        rule = "A transaction that is stored needs an `id`, by which a repetition is known."
        raise make_graph_problem_at(_ID_AT(0), "missing", rule)
    long = np.array([type(node_id) is str and len(node_id) > _MAX_ID for node_id in ids], bool)
    if long.any():
        rule = f"The id of a stored transaction may have at most {_MAX_ID} characters."
        raise make_graph_problem_where(long, _ID_AT, "too_long", rule)
    return NewTransactions(ids, rows, rows.time), frozenset(options.include)


def parse_new_labels(body: bytes) -> NewLabels:
    """
    Raises:
        Problem: a label is not valid, or an id comes twice.
    """
    fields = parse_json_object(body, "invalid-json")
    if faults := unknown_fields(fields, NewLabelsBody.model_fields):
        raise make_request_problem(faults)
    labels = validate_fields(NewLabelsBody, fields).labels
    index_ids([each.id for each in labels], pointer_builder("labels", tail="id"))
    return NewLabels([each.id for each in labels], np.array([e.label for e in labels], np.int8))


def parse_node_labels(body: bytes, schema: Schema) -> Update:
    """Parse a body of `POST /graphs/{id}/labels` for a graph of nodes and edges.

    Raises:
        Problem: a label is not valid, or an id comes twice, or nodes of the graph have no labels.
    """
    require_labels(schema)
    new = parse_new_labels(body)
    labels = tuple(zip(new.node_ids, new.labels.tolist(), strict=True))
    return Update((), np.empty((0, len(schema.features)), np.float32), (), labels=labels)
