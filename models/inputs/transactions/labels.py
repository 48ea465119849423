"""Labels of earlier transactions, each known from some time on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np


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

    def select(self, places: np.ndarray | slice) -> KnownLabels:
        return KnownLabels(
            self.row[places], self.label[places], self.time[places], self.position[places]
        )

    def join(self, others: KnownLabels) -> KnownLabels:
        return KnownLabels(
            np.concatenate([self.row, others.row]),
            np.concatenate([self.label, others.label]),
            np.concatenate([self.time, others.time]),
            np.concatenate([self.position, others.position]),
        )

    def without_rows(self, count: int) -> KnownLabels:
        """Return those that are left when the first `count` transactions are forgotten."""
        rest = self.select(self.row >= count)
        return KnownLabels(rest.row - count, rest.label, rest.time, rest.position - count)


@final
class LabelQueue:
    """Labels that wait until the time from which on they are known."""

    def __init__(self) -> None:
        self._all = [KnownLabels.none()]
        self._waiting = KnownLabels.none()  # in order of time, and of position

    def add(self, labels: KnownLabels) -> None:
        if len(labels):
            self._all.append(labels)
            waiting = self._waiting.join(labels)
            self._waiting = waiting.select(np.lexsort((waiting.position, waiting.time)))

    def list_all(self) -> KnownLabels:
        """Return all that were added, in that order."""
        joined = self._all[0]
        if len(self._all) > 1:
            parts = self._all
            joined = KnownLabels(
                *(
                    np.concatenate([getattr(part, name) for part in parts])
                    for name in ("row", "label", "time", "position")
                )
            )
            self._all = [joined]
        return joined

    def find_due(self, time: float) -> KnownLabels:
        """Return those that are known by `time`, in order of time."""
        return self._waiting.select(slice(np.searchsorted(self._waiting.time, time, side="right")))

    def remove_first(self, count: int) -> None:
        """Take the first ones off, once they are counted."""
        self._waiting = self._waiting.select(slice(count, None))
