"""A table of any length, of which as much is described at a time as scores depend on."""

from __future__ import annotations

from typing import final

import numpy as np

from models.inputs.transactions.accounts import find_history_kind
from models.inputs.transactions.recipe import TransactionRecipe
from models.inputs.transactions.rows import Transactions

_MIN_EXPIRED = 1 << 16  # rows that are not worth describing the others again


@final
class RollingHistory:
    """The history of a table up to some row, without rows that no later score depends on.

    Attributes:
        history: of the rows from some row on.
    """

    def __init__(self, recipe: TransactionRecipe, rows: Transactions, order: np.ndarray) -> None:
        """
        Args:
            order: (n,) the rows in order of time.

        Raises:
            TransactionError: a value is missing or too large.
        """
        self.history = find_history_kind(recipe)(recipe)
        self.history.require_valid(rows)
        self._rows, self._order, self._times = rows, order, rows.time[order]
        self._first = self._end = 0

    def advance(self, end: int) -> np.ndarray:
        """Add the rows up to the `end`-th in order of time, and return their places in `history`.

        `history` is another one where the rows that no longer count are the majority.
        """
        begin, recipe = self._end, self.history.recipe
        cut = int(np.searchsorted(self._times, self._times[begin] - recipe.reach, side="right"))
        expired = cut - self._first
        if expired > max(_MIN_EXPIRED, (begin - self._first) // 2):
            self.history = find_history_kind(recipe)(recipe)
            self.history.append(self._rows.take(self._order[cut:begin]))
            self._first = cut
        self.history.append(self._rows.take(self._order[begin:end]))
        self._end = end
        return np.arange(begin, end) - self._first
