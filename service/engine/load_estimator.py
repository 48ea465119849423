"""How long what is admitted will take, by how long requests of its kind and size took.

The rule:

- A request is measured when it ends: its seconds of compute over its cost, in its kind (a model, or
  the jobs of a model) and its size class (costs within a factor of 4). Size classes are apart
  because a small request mostly pays what every request pays: 2 ms for a graph of five nodes are
  ten times as many seconds per unit of cost as a graph of 4 million edges takes.
- The rate of a class is the lower median of its latest 16 measurements. From one alone nothing is
  concluded: it may have included compilation or cold caches.
- A request that was stopped before its end counts if it took longer than was expected: it would
  have taken longer still.
- Where the class of a request is not measured, the next larger one that is answers (its rate is
  rather lower), else the next smaller one, if that is at most `_MAX_EXTRAPOLATION` classes away.
  Else nothing is known: it is expected to take no time, so that none is refused by a guess.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import final

from service.engine.memory_budget import BUDGET_TOKENS, SMALL

_REMEMBERED = 16  # measurements of a size class
_MIN_MEASURED = 2
_MAX_EXTRAPOLATION = 2  # classes: a factor of 16 in cost


@dataclass(eq=False)
class PendingRequest:
    """A request that runs or waits.

    Attributes:
        size: tokens and edges in memory at a time, see `service.engine.memory_budget`.
        ran_s: returns the seconds that it has computed so far.
        took_s: seconds that it computed in all, once it is done.
    """

    cost: float
    size: int = 0
    ran_s: Callable[[], float] = lambda: 0.0
    took_s: float | None = None

    @property
    def is_large(self) -> bool:
        """Whether it waits for memory before it begins."""
        return self.size > SMALL


class _Rates:
    """Seconds per unit of cost, by size class."""

    def __init__(self) -> None:
        self._recent: dict[int, deque[float]] = {}
        self._typical: dict[int, float] = {}  # of classes that are measured
        self._by_class: dict[int, float] = {}  # of those that were asked for since the latest

    def add(self, cost: float, seconds: float) -> None:
        if cost <= 0:
            return
        size_class = _size_class(cost)
        recent = self._recent.setdefault(size_class, deque(maxlen=_REMEMBERED))
        recent.append(seconds / cost)
        if len(recent) >= _MIN_MEASURED:
            self._typical[size_class] = sorted(recent)[(len(recent) - 1) // 2]
            self._by_class.clear()

    def estimate_s(self, cost: float) -> float:
        """Seconds of compute of a request, 0 where nothing is known."""
        if cost <= 0 or not self._typical:
            return 0.0
        size_class = _size_class(cost)
        rate = self._by_class.get(size_class)
        if rate is None:  # this is called for each pending request whenever another one comes
            rate = self._by_class[size_class] = self._find_rate(size_class)
        return cost * rate

    def _find_rate(self, size_class: int) -> float:
        larger = [each for each in self._typical if each >= size_class]
        if larger:
            return self._typical[min(larger)]
        nearest = max(self._typical)
        is_near = size_class - nearest <= _MAX_EXTRAPOLATION
        return self._typical[nearest] if is_near else 0.0


def _size_class(cost: float) -> int:
    return math.floor(math.log2(cost) / 2)


class _Kind:
    """Work of one kind: what is pending, and how fast such work is done."""

    def __init__(self, weight: float) -> None:
        self.weight, self.rates = weight, _Rates()
        self.pending: list[PendingRequest] = []

    def remaining_s(self, request: PendingRequest) -> float:
        """Seconds that a pending request still has to compute."""
        return max(self.rates.estimate_s(request.cost) - request.ran_s(), 0.0)

    @property
    def backlog_s(self) -> float:
        return sum(map(self.remaining_s, self.pending))


@final
class LoadEstimator:
    """Costs of requests that run or wait, by kind; kinds share the machine by their weights.

    A cost is in tokens x steps, the edges between them counted: what it is in seconds is measured.
    Used on the event loop only.
    """

    def __init__(self) -> None:
        self._kinds: dict[Hashable, _Kind] = {}

    def compute_s(self, kind: Hashable, cost: float) -> float:
        """Seconds of compute of a request by itself, 0 where nothing is known."""
        return self._kinds[kind].rates.estimate_s(cost) if kind in self._kinds else 0.0

    def expected_s(self, kind: Hashable, weight: float, cost: float, size: int = 0) -> float:
        """Seconds until a request would be done, 0 where nothing is known.

        Requests of a kind take turns, so none waits for more of another than it is itself; and
        kinds do, by their weights. A large one that finds no room in memory begins when those that
        are in it are done.
        """
        mine = self._kinds.get(kind)
        if mine is None:
            return 0.0
        own_s = mine.rates.estimate_s(cost)
        blocks = self._find_blocking(size)
        total_s = own_s + sum(
            left_s if request in blocks else min(own_s, left_s)
            for request in mine.pending
            for left_s in [mine.remaining_s(request)]
        )
        others_s = 0.0
        for other in self._kinds.values():
            if other is not mine and other.pending:
                share_s = min(total_s * other.weight / weight, other.backlog_s)
                blocked_s = sum(other.remaining_s(r) for r in other.pending if r in blocks)
                others_s += max(share_s, blocked_s)
        return total_s + others_s

    def _find_blocking(self, size: int) -> set[PendingRequest]:
        """What has to be done before a request of this size begins, for there is no room beside
        it."""
        if size <= SMALL:
            return set()
        large = {r for kind in self._kinds.values() for r in kind.pending if r.is_large}
        taken = sum(request.size for request in large)
        return large if large and taken + size > BUDGET_TOKENS else set()

    def pending_count(self, kind: Hashable) -> int:
        """Requests of this kind that run or wait."""
        return len(self._kinds[kind].pending) if kind in self._kinds else 0

    @property
    def backlog_s(self) -> float:
        """Seconds of compute until all that is pending is done."""
        return sum(kind.backlog_s for kind in self._kinds.values())

    @contextmanager
    def track(
        self, kind: Hashable, weight: float, cost: float, size: int = 0
    ) -> Iterator[PendingRequest]:
        """Count a request inside the context. The caller sets its `ran_s`, and `took_s` at its
        end."""
        mine = self._kinds.setdefault(kind, _Kind(weight))
        request = PendingRequest(cost, size)
        mine.pending.append(request)
        try:
            yield request
        finally:
            mine.pending.remove(request)
            if request.took_s is not None:
                mine.rates.add(cost, request.took_s)
            elif (ran_s := request.ran_s()) > mine.rates.estimate_s(cost):
                mine.rates.add(cost, ran_s)
