"""Request and response schemas of transactions that are stored."""

from __future__ import annotations

from typing import Annotated, Literal, get_args

from pydantic import BaseModel, FailFast, Field
from pydantic.json_schema import SkipJsonSchema

from service.endpoints.anomaly.schemas import NodeScore, ScoreDetails
from service.endpoints.common.reason_schemas import absent
from service.endpoints.common.schemas import DIGEST, Include, Strict
from service.validation.ids import NodeId

MAX_ROWS = 10_000
"""Of one request; other changes of graphs wait while they are stored."""


class AddOptions(Strict):
    """What a request to store transactions may carry besides them."""

    include: Annotated[list[Include], FailFast()] = Field(
        [], description="as in POST /anomaly/score", max_length=len(get_args(Include))
    )


class NewTransactionsBody(AddOptions):
    """Transactions to store; without `score=false` they are scored too."""

    transactions: list[dict[str, str | float | None]] = Field(
        min_length=1,
        max_length=MAX_ROWS,
        description="rows as in POST /anomaly/score, each with an `id`. They count in order of "
        "time, after those stored before; one that is late by up to the shortest window counts as "
        "of the newest one stored. A row that is stored already changes nothing, so the request "
        "may be repeated",
        examples=[
            [
                {
                    "id": "p1",
                    "time": "2026-01-31T23:59:59Z",
                    "source": "A",
                    "target": "B",
                    "amount": 9.5,
                }
            ]
        ],
    )


class TransactionLabel(Strict):
    """What a stored transaction or node turned out to be."""

    id: NodeId
    label: Literal[0, 1] = Field(description="1 fraud, 0 none")


class NewLabelsBody(Strict):
    """Labels of stored transactions or nodes. One that has a label takes the new one."""

    labels: list[TransactionLabel] = Field(min_length=1, max_length=MAX_ROWS)


class StoredLabels(BaseModel):
    """What was stored."""

    id: str
    changed: int = Field(description="transactions or nodes that had no label, or another one")
    revision: int
    digest: str = Field(description=DIGEST)


class StoredTransactions(BaseModel):
    """What was stored without being scored."""

    id: str
    added: int = Field(description="transactions that were not stored before")
    num_nodes: int
    revision: int
    digest: str = Field(description=DIGEST)


class TransactionScore(NodeScore):
    """How suspicious one stored transaction is, or an account as of one; the score never
    changes."""

    late_by: float = Field(
        description="how much later than its time the transaction counts: seconds, or the unit of "
        "the time"
    )
    transaction_id: NodeId | SkipJsonSchema[None] = Field(
        None,
        description="the transaction as of which `node_id`, an account, is scored; absent where "
        "transactions are scored",
        json_schema_extra=absent,
    )


class TransactionScores(ScoreDetails):
    """One result per transaction sent, in their order; where accounts are scored, one per account
    that it touches, who pays first."""

    results: list[TransactionScore]
    added: int = Field(description="transactions that were not stored before")
