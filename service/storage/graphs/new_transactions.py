"""Transactions and labels to add to a stored graph, and the settings of that graph."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
import orjson

from models.inputs.transactions import TransactionRecipe, Transactions
from service.storage.graphs.stored_graph import Schema
from service.validation.ids import NodeId


@dataclass(frozen=True)
class StreamSettings:
    """What is said once of a graph of transactions.

    Attributes:
        model: name of the model that scores it.
        threshold: probability from which on a transaction is an alert; None for the model's.
        keep: rows older than the last one by more are forgotten; in the unit of the time.
        webhook: URL to which alerts are sent.
    """

    model: str
    recipe: TransactionRecipe
    threshold: float | None
    keep: float
    webhook: str | None = None

    @property
    def schema(self) -> Schema:
        return Schema(self.recipe.features, (), self.recipe)

    @property
    def max_late(self) -> float:
        """How much earlier than the last row a new one may be: the shortest window."""
        return self.recipe.windows[0]

    def to_json(self) -> bytes:
        return orjson.dumps(self.__dict__ | {"recipe": self.recipe.model_dump()})

    @classmethod
    def from_json(cls, text: bytes) -> Self:
        fields = orjson.loads(text)
        return cls(**fields | {"recipe": TransactionRecipe.model_validate(fields["recipe"])})


@dataclass(frozen=True)
class NewTransactions:
    """Transactions to add: `sent` is the time as it was sent, `rows.time` the one that counts."""

    node_ids: list[NodeId]
    rows: Transactions
    sent: np.ndarray

    def take(self, places: np.ndarray) -> NewTransactions:
        ids = [self.node_ids[place] for place in places.tolist()]
        return NewTransactions(ids, self.rows.take(places), self.sent[places])

    def to_json(self) -> bytes:
        rows = self.rows
        columns = [rows.time, self.sent, rows.source, rows.target, rows.amount]
        parts = [self.node_ids, *(column.tolist() for column in columns)]
        labels = None if rows.labels is None else rows.labels.tolist()
        more = (
            {name: v.tolist() for name, v in m.items()} for m in (rows.categories, rows.numbers)
        )
        return orjson.dumps([*parts, *more, labels])  # a missing number is null

    @classmethod
    def from_json(cls, text: bytes) -> Self:
        ids, time, sent, source, target, amount, categories, numbers, *rest = orjson.loads(text)
        labels = rest[0] if rest else None  # earlier versions wrote none
        rows = Transactions(
            np.array(time, float),
            np.array(source, object),
            np.array(target, object),
            np.array(amount, float),
            {name: np.array(values, object) for name, values in categories.items()},
            {name: np.array(values, float) for name, values in numbers.items()},
            None if labels is None else np.array(labels, np.int8),
        )
        return cls(ids, rows, np.array(sent, float))


@dataclass(frozen=True)
class NewLabels:
    """Labels of stored transactions, int8 (n,): 1 fraud, 0 none."""

    node_ids: list[NodeId]
    labels: np.ndarray

    def to_json(self) -> bytes:
        return orjson.dumps({"ids": self.node_ids, "labels": self.labels.tolist()})


def parse_update(text: bytes) -> NewTransactions | NewLabels:
    """Return what was logged by `to_json`."""
    if text.startswith(b"{"):
        fields = orjson.loads(text)
        return NewLabels(fields["ids"], np.array(fields["labels"], np.int8))
    return NewTransactions.from_json(text)
