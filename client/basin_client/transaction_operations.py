"""Requests about rows of a table of transactions; used like those of `basin_client.operations`."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

from basin_client.errors import InputError, require_extra
from basin_client.request import (
    AlertRule,
    Dynamics,
    Include,
    Request,
    common_fields,
    json_request,
    parse_json,
    quote_path,
)
from basin_client.responses import parse_transaction_scores
from basin_client.results import Scores
from basin_client.schema import GraphSchema, scores_accounts


def score_transactions(
    transactions: Any,
    targets: Sequence[Any] | None = None,
    *,
    id: str | None = None,
    drop: str | Sequence[str] = (),
    decimal: str = ".",
    unlabelled: str | None = None,
    model: str | None = None,
    dynamics: Dynamics | None = None,
    include: Sequence[Include] = (),
    decision: AlertRule | None = None,
    timeout_s: float | None = None,
) -> Request[Scores]:
    """Score transactions, or accounts where the model scores these.

    A transaction is scored by its own row and the rows before it, an account by the rows up to
    its last one.

    Args:
        transactions: path of a table, or a pandas frame, with the columns that the model was
            trained on; earlier rows of the same accounts must come along, of the last two
            longest windows of the model.
        targets: ids of the transactions to return, or their row numbers from 0 where `id` is
            None, or ids of accounts; all if None.
        id: column of the id of a transaction; without ids if None.
        drop: columns to leave out; `*` is all that the model does not read.
        decimal: the decimal point of numbers in text.
        unlabelled: value of the label that means unknown, as a blank does, where the model
            reads labels; only a blank if None.
        model: name of the model; the default of the route if None.
        dynamics: how the state moves; as in training if None. Keys as in `Dynamics`.
        include: what to add to `convergence`: `trace`, `components`, `resonance`; to `raw`:
            `attention`, `memories` and `explanation` of each target.
        decision: which targets get label 1, as {"budget": 50}; those from the model's threshold
            on if None. Keys as in `AlertRule`.
        timeout_s: seconds in which the server must respond; its own limit if None.

    Returns:
        Scores of the T targets in their order, with arrays (T,).

    Raises:
        InputError: the table does not fit the model.
        MissingLibraryError: pandas or pyarrow is not installed.
        ProblemError: the server refused the request when it was sent.
    """

    def bind(schema: GraphSchema | None) -> Request[Scores]:
        rows = _read_rows(schema, transactions, id, drop, decimal, unlabelled)
        fields = common_fields(model, dynamics, include, decision=decision) | rows
        if targets is not None:
            assert schema is not None
            is_text = id is not None or scores_accounts(schema.require_transactions())
            fields["targets"] = [
                str(target) if is_text else operator.index(target) for target in targets
            ]
        return json_request("/anomaly/score", fields, parse_transaction_scores)

    path = "" if model is None else quote_path("models", model)
    request = Request(
        "POST", "/anomaly/score", parse_transaction_scores, schema_path=path, bind=bind
    )
    return request.with_timeout(timeout_s)


def store_transaction_graph(
    id: str,
    *,
    model: str,
    threshold: float | None = None,
    daily_budget: float | None = None,
    keep: float | None = None,
    webhook: str | None = None,
) -> Request[dict[str, Any]]:
    """Store a graph of transactions under an id, empty at first. Replaces a graph of this id.

    Args:
        id: of 1 to 64 lower-case letters, digits, underscores, hyphens and dots.
        model: that reads transactions, and scores those that `add_transactions` adds, or their
            accounts.
        threshold: probability from which on a transaction or account raises an alert; that of
            the model if None.
        daily_budget: use instead of `threshold`: about this many alerts a day, estimated on the
            model's validation part.
        keep: transactions that are older than the newest one by more are forgotten, in seconds
            or the unit of their time; four longest windows of the model if None.
        webhook: URL to which each alert is sent, on an origin that the server allows; none if
            None.

    Returns:
        The description of the graph, as of `store_graph`.

    Raises:
        InputError: the id is not allowed.
        ProblemError: the server refused the request when it was sent, as for a model that reads
            no transactions.
    """
    fields = {"model": model, "threshold": threshold, "daily_budget": daily_budget}
    fields |= {"keep": keep, "webhook": webhook}
    given = {name: value for name, value in fields.items() if value is not None}
    return json_request(quote_path("graphs", id), given, parse_json, "PUT")


def add_transactions(
    graph: str,
    transactions: Any,
    *,
    id: str = "id",
    drop: str | Sequence[str] = (),
    decimal: str = ".",
    unlabelled: str | None = None,
    include: Sequence[Include] = (),
    timeout_s: float | None = None,
) -> Request[Scores]:
    """Store transactions in a graph, and score them. Sending them twice has the effect of once.

    Those whose probability reaches the threshold of the graph raise alerts. Where the model
    scores accounts, who pays and who is paid are scored, as of each transaction, and raise
    alerts when they reach the threshold.

    Args:
        graph: id of a graph of `store_transaction_graph`.
        transactions: path of a table, or a pandas frame; of up to 3,906 rows as the server is
            set, 1,953 where the model scores accounts of both sides.
        id: column of the id of a transaction; every row needs one.
        drop: columns to leave out; `*` is all that the model does not read.
        decimal: the decimal point of numbers in text.
        unlabelled: value of the label that means unknown, as a blank does, where the model
            reads labels; only a blank if None.
        include: as in `score_transactions`.
        timeout_s: seconds in which the server must respond; its own limit if None.

    Returns:
        Scores of the T transactions in their order, with arrays (T,); `raw["added"]` is how
        many are new. Of accounts `node_ids` are the accounts, one or two of each transaction,
        and `transaction_ids` the transactions.

    Raises:
        InputError: the table does not fit the model.
        MissingLibraryError: pandas or pyarrow is not installed.
        ProblemError: the server refused the request when it was sent, as for an unknown graph.
    """

    def bind(schema: GraphSchema | None) -> Request[Scores]:
        fields = _read_rows(schema, transactions, id, drop, decimal, unlabelled, is_part=True)
        if include:
            fields["include"] = list(include)
        return json_request(_transactions_path(graph), fields, parse_transaction_scores)

    path = _transactions_path(graph)
    request = Request(
        "POST", path, parse_transaction_scores, schema_path=quote_path("graphs", graph), bind=bind
    )
    return request.with_timeout(timeout_s)


def store_transactions(
    graph: str,
    transactions: Any,
    *,
    id: str = "id",
    drop: str | Sequence[str] = (),
    decimal: str = ".",
    unlabelled: str | None = None,
) -> Request[dict[str, Any]]:
    """Store transactions in a graph without scoring them, as the past of those to come.

    Sending them twice has the effect of once.

    Args:
        graph: id of a graph of `store_transaction_graph`.
        transactions: path of a table, or a pandas frame; of up to 10,000 rows.
        id: column of the id of a transaction; every row needs one.
        drop: columns to leave out; `*` is all that the model does not read.
        decimal: the decimal point of numbers in text.
        unlabelled: value of the label that means unknown, as a blank does, where the model
            reads labels; only a blank if None.

    Returns:
        `id` of the graph, `added` (how many are new), `num_nodes`, `revision` and `digest`.

    Raises:
        InputError: the table does not fit the model.
        MissingLibraryError: pandas or pyarrow is not installed.
        ProblemError: the server refused the request when it was sent, as for an unknown graph.
    """

    def bind(schema: GraphSchema | None) -> Request[dict[str, Any]]:
        fields = _read_rows(schema, transactions, id, drop, decimal, unlabelled, is_part=True)
        return json_request(_transactions_path(graph), fields, parse_json)

    path, schema_path = _transactions_path(graph), quote_path("graphs", graph)
    params = {"score": "false"}
    return Request("POST", path, parse_json, params=params, schema_path=schema_path, bind=bind)


def add_labels(graph: str, labels: Mapping[Any, int]) -> Request[dict[str, Any]]:
    """Store labels of stored transactions or nodes.

    Those of transactions count for transactions that are stored later, those of nodes for the
    scores of their neighbours from now on.

    Args:
        graph: id of a graph of `store_transaction_graph`, whose model reads labels, or of
            `store_graph` with labels.
        labels: 1 for fraud, 0 for none, by the id, as text, of the transaction or node; up to
            10,000. Nodes whose ids are integers are labelled by `change_graph`.

    Returns:
        `id` of the graph, `changed` (how many had no label, or another one), `revision` and
        `digest`.

    Raises:
        InputError: a label is something else.
        ProblemError: the server refused the request when it was sent, as for an unknown id,
            or a graph without labels.
    """
    for id, label in labels.items():
        if label not in (0, 1):
            raise InputError(f"The label of {id!r} is {label!r}. Use 1 for fraud, 0 for none.")
    # Ids are text, as in `add_transactions`.
    rows = [{"id": str(id), "label": int(label)} for id, label in labels.items()]
    return json_request(f"{quote_path('graphs', graph)}/labels", {"labels": rows}, parse_json)


def _transactions_path(graph: str) -> str:
    return f"{quote_path('graphs', graph)}/transactions"


def _read_rows(
    schema: GraphSchema | None,
    transactions: Any,
    id: str | None,
    drop: str | Sequence[str],
    decimal: str,
    unlabelled: str | None,
    *,
    is_part: bool = False,
) -> dict[str, Any]:
    """Return the rows of a table, or of a part of one, as fields of a request."""
    with require_extra("pandas"):
        from basin_client.tables import Table, read_table
        from basin_client.transaction_tables import (
            TransactionColumns,
            read_transactions,
            require_kind_of_time,
            to_rows,
        )

    assert schema is not None
    recipe = schema.require_transactions()
    is_frame = hasattr(transactions, "columns")
    table = (
        Table(transactions.reset_index(drop=True), "transactions")
        if is_frame
        else read_table(transactions)
    )
    dropped = (drop,) if isinstance(drop, str) else drop
    columns = TransactionColumns.from_recipe(
        recipe, id=id, drop=dropped, decimal=decimal, unlabelled=unlabelled
    )
    read = read_transactions(table, columns, is_part=is_part)
    require_kind_of_time(read, recipe)
    return {"transactions": to_rows(read, columns)}
