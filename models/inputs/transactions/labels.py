"""Labels of earlier transactions, each known from some time on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np

_MIN_MERGED = 4096  # new labels that are not worth sorting all that wait again


@dataclass(frozen=True)
class KnownLabels:
    """n labels in the order in which they came; of one transaction the last one holds.

    Attributes:
        row: int64 (n,) place of the transaction.
        label: int8 (n,): 1 fraud, 0 none.
        time: float64 (n,) from which on it is known.
        position: int64 (n,) first transaction that may know it: the one after its row, or, where
            it came later, after those that were there.
    """

    row: np.ndarray
    label: np.ndarray
    time: np.ndarray
    position: np.ndarray

    def __len__(self) -> int:
        return len(self.row)

    @classmethod
    def none(cls) -> KnownLabels:
        rows = np.empty(0, np.int64)
        return cls(rows, np.empty(0, np.int8), np.empty(0), rows)

    @classmethod
    def concatenate(cls, parts: Sequence[KnownLabels]) -> KnownLabels:
        return cls(
            np.concatenate([part.row for part in parts]),
            np.concatenate([part.label for part in parts]),
            np.concatenate([part.time for part in parts]),
            np.concatenate([part.position for part in parts]),
        )

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in vars(self).values())

    def select(self, places: np.ndarray | slice) -> KnownLabels:
        return KnownLabels(
            self.row[places], self.label[places], self.time[places], self.position[places]
        )

    def sort(self) -> KnownLabels:
        """Return them in order of time, and of position."""
        return self.select(np.lexsort((self.position, self.time)))

    def without_rows(self, count: int) -> KnownLabels:
        """Return those that are left when the first `count` transactions are forgotten."""
        rest = self.select(self.row >= count)
        return KnownLabels(rest.row - count, rest.label, rest.time, rest.position - count)


@final
class LabelQueue:
    """Labels that wait until the time from which on they are known."""

    def __init__(self) -> None:
        self._all = [KnownLabels.none()]
        # Many labels may wait for long, and one may come with each transaction: those that came
        # lately are not sorted in among the others before they are many.
        self._sorted = self._recent = KnownLabels.none()

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in (*self._all, self._sorted, self._recent))

    def add(self, labels: KnownLabels) -> None:
        if len(labels):
            self._all.append(labels)
            self.put_back(labels)

    def list_all(self) -> KnownLabels:
        """Return all that were added, in that order."""
        self._all = [KnownLabels.concatenate(self._all)]
        return self._all[0]

    def take_due(self, time: float) -> KnownLabels:
        """Remove those that are known by `time`, and return them in order of time and position."""
        count = np.searchsorted(self._sorted.time, time, side="right")
        is_due = self._recent.time <= time
        due = [self._sorted.select(slice(count)), self._recent.select(is_due)]
        self._sorted = self._sorted.select(slice(count, None))
        self._recent = self._recent.select(~is_due)
        return KnownLabels.concatenate(due).sort()

    def put_back(self, labels: KnownLabels) -> None:
        """Let labels wait."""
        self._recent = KnownLabels.concatenate([self._recent, labels])
        if len(self._recent) > max(_MIN_MERGED, len(self._sorted) // 8):
            self._sorted = KnownLabels.concatenate([self._sorted, self._recent]).sort()
            self._recent = KnownLabels.none()
