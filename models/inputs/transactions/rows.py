"""Rows of a table of transactions as arrays; needs NumPy alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np


@dataclass(frozen=True)
class Transactions:
    """n transactions.

    Attributes:
        time: float64 (n,): seconds since 1970 of timestamps, else the numbers of the table.
        source: who pays, text (n,), dtype object.
        target: who is paid, text (n,), dtype object.
        amount: float64 (n,), NaN where it is missing.
        categories: text (n,) of each category and of each shared attribute, dtype object.
        numbers: float64 (n,) of each other column, NaN where a value is missing.
        labels: int8 (n,), 1 fraud, 0 none, -1 unknown, for recipes in which those of earlier rows
            count; None where none are known.
    """

    time: np.ndarray
    source: np.ndarray
    target: np.ndarray
    amount: np.ndarray
    categories: Mapping[str, np.ndarray]
    numbers: Mapping[str, np.ndarray]
    labels: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.time)

    def take(self, rows: np.ndarray | slice) -> Transactions:
        """Return some of the rows, in the order of `rows`."""
        return Transactions(
            self.time[rows],
            self.source[rows],
            self.target[rows],
            self.amount[rows],
            {name: values[rows] for name, values in self.categories.items()},
            {name: values[rows] for name, values in self.numbers.items()},
            None if self.labels is None else self.labels[rows],
        )


def parse_timestamp(text: str) -> float:
    """Return seconds since 1970 of an ISO 8601 timestamp; one without a zone is UTC.

    Raises:
        ValueError: the text is no timestamp.
    """
    time = datetime.fromisoformat(text)
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()
