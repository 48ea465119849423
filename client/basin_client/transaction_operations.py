"""Score rows of a table of transactions, for `Client.send` or, as a job, `Client.submit`."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import httpx
import numpy as np

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
from basin_client.results import Convergence, Scores
from basin_client.schema import GraphSchema

_COLUMNS = ("score", "probability", "label", "rank")


def score_transactions(
    transactions: Any,
    targets: Sequence[Any] | None = None,
    *,
    id: str | None = None,
    drop: str | Sequence[str] = (),
    decimal: str = ".",
    model: str | None = None,
    dynamics: Dynamics | None = None,
    include: Sequence[Include] = (),
    decision: AlertRule | None = None,
    timeout_s: float | None = None,
) -> Request[Scores]:
    """Score transactions, each by its own row and by the rows before it.

    Args:
        transactions: path of a table, or a pandas frame, with the columns that the model was
            trained on; earlier rows of the same accounts must come along, of the last two
            longest windows of the model.
        targets: ids of the transactions to return, or their row numbers from 0 where `id` is None;
            all if None.
        id: column of the id.
        drop: columns to leave out; `*` is all that the model does not read.
        decimal: the decimal point of numbers in text.
        decision: what gets label 1 in place of the model's threshold, as {"budget": 50}.

    Raises:
        InputError: the table does not fit the model.
    """

    def bind(schema: GraphSchema | None) -> Request[Scores]:
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
        columns = TransactionColumns.from_recipe(recipe, id=id, drop=dropped, decimal=decimal)
        read = read_transactions(table, columns)
        require_kind_of_time(read, recipe)
        fields = common_fields(
            model, dynamics, include, transactions=to_rows(read, columns), decision=decision
        )
        if targets is not None:
            fields["targets"] = [
                str(target) if id is not None else operator.index(target) for target in targets
            ]
        return json_request("/anomaly/score", fields, _parse_scores)

    path = "" if model is None else quote_path("models", model)
    request = Request("POST", "/anomaly/score", _parse_scores, schema_path=path, bind=bind)
    return request.with_timeout(timeout_s)


def _parse_scores(response: httpx.Response) -> Scores:
    payload = parse_json(response)
    results = payload["results"]
    columns = {name: np.array([result[name] for result in results]) for name in _COLUMNS}
    return Scores(
        [result["node_id"] for result in results],
        **columns,
        threshold=results[0]["threshold"],
        convergence=Convergence.from_dict(payload["convergence"]),
        tensors={},
        raw=payload,
    )
