"""Transactions and labels to add to a stored graph, and the settings of that graph."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Self

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
    """Transactions to add: `sent` is the time as it was sent, `rows.time` the one that counts; some
    are stored alone, and not `is_scored`."""

    node_ids: list[NodeId]
    rows: Transactions
    sent: np.ndarray
    is_scored: bool = True

    def take(self, places: np.ndarray) -> NewTransactions:
        ids = [self.node_ids[place] for place in places.tolist()]
        return NewTransactions(ids, self.rows.take(places), self.sent[places], self.is_scored)

    def find_differences(self, other: NewTransactions) -> np.ndarray:
        """Mark the rows (n,) that have another value than in `other`, labels and the times that
        count aside."""
        differ = _differ(self.sent, other.sent)
        for ours, theirs in zip(_columns(self.rows), _columns(other.rows), strict=True):
            differ |= _differ(ours, theirs)
        return differ

    def to_json(self) -> bytes:
        rows = self.rows
        columns = [rows.time, self.sent, rows.source, rows.target, rows.amount]
        parts = [self.node_ids, *(column.tolist() for column in columns)]
        labels = None if rows.labels is None else rows.labels.tolist()
        more = (
            {name: v.tolist() for name, v in m.items()} for m in (rows.categories, rows.numbers)
        )
        # A missing number is null.
        return orjson.dumps([*parts, *more, labels, self.is_scored])

    @classmethod
    def from_json(cls, text: bytes) -> Self:
        ids, time, sent, source, target, amount, categories, numbers, *rest = orjson.loads(text)
        labels = rest[0] if rest else None  # earlier versions wrote none, and then no more
        is_scored = rest[1] if len(rest) > 1 else True
        rows = Transactions(
            np.array(time, float),
            np.array(source, object),
            np.array(target, object),
            np.array(amount, float),
            {name: np.array(values, object) for name, values in categories.items()},
            {name: np.array(values, float) for name, values in numbers.items()},
            None if labels is None else np.array(labels, np.int8),
        )
        return cls(ids, rows, np.array(sent, float), is_scored)


@dataclass(frozen=True)
class Targets:
    """T targets in a graph of transactions: transactions, or accounts, each as of a transaction.

    Attributes:
        numbers: int64 (T,) that `TransactionHistory.build_graph` takes.
        node_ids: ids of the targets.
        row_ids: ids of the transactions.
        revision, digest: of the graph.
    """

    numbers: np.ndarray
    node_ids: list[NodeId]
    row_ids: list[NodeId]
    revision: int
    digest: str


@dataclass(frozen=True)
class NewLabels:
    """Labels of stored transactions, int8 (n,): 1 fraud, 0 none."""

    node_ids: list[NodeId]
    labels: np.ndarray

    def to_json(self) -> bytes:
        return orjson.dumps({"ids": self.node_ids, "labels": self.labels.tolist()})


@dataclass(frozen=True)
class Addition:
    """The transactions of an update that are new, in order of time."""

    update: NewTransactions
    num_nodes: int
    num_edges: int = 0


@dataclass(frozen=True)
class Labelling:
    """The labels of an update that are new or others, at `rows`."""

    update: NewLabels
    rows: np.ndarray
    num_nodes: int
    num_edges: int = 0


def describe_rows(stored: NewTransactions, recipe: TransactionRecipe) -> list[dict[str, Any]]:
    """Return transactions by the names of their columns, as they were sent, with `late_by`: how
    much later they count."""
    rows, late = stored.rows, stored.rows.time - stored.sent
    named: dict[str, Iterable[Any]] = {
        "id": stored.node_ids,
        recipe.time: (format_time(value, recipe) for value in stored.sent.tolist()),
        recipe.source: rows.source,
        recipe.target: rows.target,
        recipe.amount: _with_none(rows.amount),
        **{name: (value or None for value in v) for name, v in rows.categories.items()},
        **{name: _with_none(values) for name, values in rows.numbers.items()},
        "late_by": late.tolist(),
    }
    if recipe.label is not None and rows.labels is not None:
        labels = rows.labels.tolist()
        named[recipe.label] = [None if label < 0 else label for label in labels]
    return [dict(zip(named, row, strict=True)) for row in zip(*named.values(), strict=True)]


def format_time(value: float, recipe: TransactionRecipe) -> str | float:
    """Return a time as a client sends it: a timestamp in UTC, or a number."""
    if recipe.calendar and np.isfinite(value):
        return datetime.fromtimestamp(value, UTC).isoformat().replace("+00:00", "Z")
    return value


def _columns(rows: Transactions) -> Iterable[np.ndarray]:
    categories = [rows.categories[name] for name in sorted(rows.categories)]
    numbers = [rows.numbers[name] for name in sorted(rows.numbers)]
    return (rows.source, rows.target, rows.amount, *categories, *numbers)


def _differ(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    if a.dtype == object:
        return np.array(a != b, bool)
    return ~((a == b) | (np.isnan(a) & np.isnan(b)))


def _with_none(values: np.ndarray) -> list[float | None]:
    return [None if np.isnan(value) else value for value in values.tolist()]


def parse_update(text: bytes) -> NewTransactions | NewLabels:
    """Return what was logged by `to_json`."""
    if text.startswith(b"{"):
        fields = orjson.loads(text)
        return NewLabels(fields["ids"], np.array(fields["labels"], np.int8))
    return NewTransactions.from_json(text)
