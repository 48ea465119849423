"""How long what is admitted will take, by how long the like of it took."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import final

_REMEMBERED = 64  # requests of a kind


class _Kind:
    """Work of one kind: what is pending, and how long what is done took for its cost."""

    def __init__(self, weight: float) -> None:
        self.weight = weight
        self.pending: dict[int, float] = {}  # cost by request
        self._rates: deque[float] = deque(maxlen=_REMEMBERED)

    def took(self, cost: float, seconds: float) -> None:
        if cost > 0:
            self._rates.append(seconds / cost)

    def at_most(self, cost: float) -> float:
        """An upper bound of `seconds`, whatever is pending."""
        return (1 + len(self.pending)) * cost * min(self._rates, default=0.0)

    def seconds(self, cost: float) -> float:
        """Of compute until so much is done, 0 where nothing was done yet: all take turns, so that
        nothing waits for more of another than it is itself. At the best rate of late: small
        requests pay for more than their cost, and so do those that want reasons."""
        mine = cost if math.isfinite(cost) else 0.0
        turns = mine + sum(min(cost, pending) for pending in self.pending.values())
        return turns * min(self._rates, default=0.0)


@final
class LoadEstimator:
    """Costs of requests that run or wait, by kind; kinds share the machine by their weights.

    A cost is in tokens x steps, the edges between them counted: what it is in seconds is measured.
    """

    def __init__(self) -> None:
        self._kinds: dict[Hashable, _Kind] = {}
        self._next = 0

    def expected_delay_s(self, kind: Hashable, weight: float, cost: float, limit_s: float) -> float:
        """Seconds by which a request would be late, 0 where it would not, or is first in line."""
        mine = self._kinds.get(kind)
        if mine is None or not mine.pending:
            return 0.0
        busy = [k.weight for k in self._kinds.values() if k.pending and k is not mine]
        share = (sum(busy) + weight) / weight
        if mine.at_most(cost) * share <= limit_s:
            return 0.0
        return max(mine.seconds(cost) * share - limit_s, 0.0)

    def pending_count(self, kind: Hashable) -> int:
        """Requests of this kind that run or wait."""
        return len(self._kinds[kind].pending) if kind in self._kinds else 0

    @property
    def seconds(self) -> float:
        """Of compute, until all is done."""
        return sum(kind.seconds(math.inf) for kind in self._kinds.values() if kind.pending)

    @contextmanager
    def track(
        self, kind: Hashable, weight: float, cost: float
    ) -> Iterator[Callable[[float], None]]:
        """Count a request while it lasts; tell what is given how many seconds it computed."""
        mine = self._kinds.setdefault(kind, _Kind(weight))
        self._next += 1
        name = self._next
        mine.pending[name] = cost

        try:
            yield partial(mine.took, cost)
        finally:
            del mine.pending[name]
