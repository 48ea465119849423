"""How long what is admitted will take, by how long requests of its kind and size took.

The rule:

- A request is measured when it ends: its seconds of compute over its cost, in its kind (a model, or
  the jobs of a model) and its size class (costs within a factor of 4). Size classes are apart
  because a small request mostly pays what every request pays: 2 ms for a graph of five nodes are
  ten times as many seconds per unit of cost as a graph of 4 million edges takes.
- The rate of a class is the lower median of its latest 16 measurements. From one alone nothing is
  concluded: it may have included compilation or cold caches.
- A request that was stopped before its end would have taken longer still: what it took is a lower
  bound. It counts in a class that is measured if it took longer than was expected. In one that is
  not, the lower median of the bounds raises the estimate of this class alone, until it is measured:
  what always exceeds its deadline would never be known otherwise.
- Where the class of a request is not measured, the next larger one that is answers (its rate is
  rather lower), else the next smaller one, if that is at most `_MAX_EXTRAPOLATION` classes away.
  Else nothing is known: it is expected to take no time, so that none is refused by a guess.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator
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
        self._bounds: dict[int, deque[float]] = {}  # of classes that are not measured
        self._by_class: dict[int, float] = {}  # of those that were asked for since the latest

    def add(self, cost: float, seconds: float) -> None:
        if cost <= 0:
            return
        size_class = _size_class(cost)
        recent = self._recent.setdefault(size_class, deque(maxlen=_REMEMBERED))
        recent.append(seconds / cost)
        if len(recent) >= _MIN_MEASURED:
            self._typical[size_class] = _lower_median(recent)
            self._bounds.pop(size_class, None)
            self._by_class.clear()

    def add_bound(self, cost: float, seconds: float) -> None:
        """Account for a request that was stopped after `seconds` of compute."""
        if cost <= 0 or seconds <= self.estimate_s(cost):
            return
        size_class = _size_class(cost)
        if size_class in self._typical:
            self.add(cost, seconds)
        else:
            bounds = self._bounds.setdefault(size_class, deque(maxlen=_REMEMBERED))
            bounds.append(seconds / cost)
            self._by_class.clear()

    def estimate_s(self, cost: float) -> float:
        """Seconds of compute of a request, 0 where nothing is known."""
        if cost <= 0:
            return 0.0
        size_class = _size_class(cost)
        rate = self._by_class.get(size_class)
        if rate is None:  # this is called for each pending request whenever another one comes
            rate = self._by_class[size_class] = self._find_rate(size_class)
        return cost * rate

    def _find_rate(self, size_class: int) -> float:
        bounds = self._bounds.get(size_class, ())
        bound = _lower_median(bounds) if len(bounds) >= _MIN_MEASURED else 0.0
        return max(self._find_measured_rate(size_class), bound)

    def _find_measured_rate(self, size_class: int) -> float:
        if not self._typical:
            return 0.0
        larger = [each for each in self._typical if each >= size_class]
        if larger:
            return self._typical[min(larger)]
        nearest = max(self._typical)
        is_near = size_class - nearest <= _MAX_EXTRAPOLATION
        return self._typical[nearest] if is_near else 0.0


def _lower_median(values: Collection[float]) -> float:
    return sorted(values)[(len(values) - 1) // 2]


def _size_class(cost: float) -> int:
    return math.floor(math.log2(cost) / 2)


class _Flow:
    """What is pending of one kind, one API key and one lane; `rates` are those of the kind."""

    def __init__(self, weight: float, rates: _Rates) -> None:
        self.weight, self._rates = weight, rates
        self.pending: list[PendingRequest] = []

    def remaining_s(self, request: PendingRequest) -> float:
        """Seconds that a pending request still has to compute."""
        return max(self._rates.estimate_s(request.cost) - request.ran_s(), 0.0)

    @property
    def backlog_s(self) -> float:
        return sum(map(self.remaining_s, self.pending))

    def blocked_s(self, blocks: set[PendingRequest]) -> float:
        """Seconds of compute that what is in `blocks` still takes."""
        return sum(self.remaining_s(r) for r in self.pending if r in blocks) if blocks else 0.0


_Lane = dict[str, dict[Hashable, _Flow]]
"""What is pending of one compute thread: by API key, then by kind. None of them is empty."""


@final
class LoadEstimator:
    """Costs of requests that run or wait, by lane, API key and kind.

    They share a lane as `service.engine.fair_queue` divides it: keys equally, the kinds of a key by
    their weights. A cost is in tokens x steps, the edges between them counted: what it is in
    seconds is measured. Used on the event loop only.

    Args:
        has_large_lane: whether what is large is computed by a thread of its own.
    """

    def __init__(self, has_large_lane: bool = False) -> None:
        self._rates: dict[Hashable, _Rates] = {}
        self._lanes: list[_Lane] = [{}, {}]
        self._has_large_lane = has_large_lane

    def compute_s(self, kind: Hashable, cost: float) -> float:
        """Seconds of compute of a request by itself, 0 where nothing is known."""
        return self._rates[kind].estimate_s(cost) if kind in self._rates else 0.0

    def expected_s(
        self, kind: Hashable, weight: float, cost: float, size: int = 0, key: str = ""
    ) -> float:
        """Seconds until a request would be done, 0 where nothing is known.

        Requests of a kind and key take turns, so none waits for more of another than it is itself;
        so do the kinds of a key, by their weights, and keys: beside n busy keys a request takes at
        most n + 1 times as long as what its own key has before it. A large one that finds no room
        in memory begins when those that are in it are done.

        Args:
            key: name of the API key of the request.
        """
        own_s = self.compute_s(kind, cost)
        if not own_s:
            return 0.0
        blocks = self._find_blocking(size)
        lane = self._lane_of(size)
        flows = lane.get(key, {})
        mine = flows.get(kind)
        flow_s = own_s
        if mine is not None:
            for request in mine.pending:
                left_s = mine.remaining_s(request)
                flow_s += left_s if request in blocks else min(own_s, left_s)
        others = [flow for flow in flows.values() if flow is not mine]
        key_s = flow_s + sum(
            max(min(flow_s * other.weight / weight, other.backlog_s), other.blocked_s(blocks))
            for other in others
        )
        others_s, share = 0.0, _share_of(weight, others)
        for name, its in lane.items():
            if name != key:
                most_s = key_s * _share_of(0.0, its.values()) / share
                backlog_s = sum(flow.backlog_s for flow in its.values())
                blocked_s = sum(flow.blocked_s(blocks) for flow in its.values())
                others_s += max(min(most_s, backlog_s), blocked_s)
        return key_s + others_s

    def _lane_of(self, size: int) -> _Lane:
        return self._lanes[self._has_large_lane and size > SMALL]

    def _list_flows(self) -> Iterator[tuple[Hashable, _Flow]]:
        for lane in self._lanes:
            for flows in lane.values():
                yield from flows.items()

    def _find_blocking(self, size: int) -> set[PendingRequest]:
        """What has to be done before a request of this size begins, for there is no room beside
        it."""
        if size <= SMALL:
            return set()
        large = {r for _, flow in self._list_flows() for r in flow.pending if r.is_large}
        taken = sum(request.size for request in large)
        return large if large and taken + size > BUDGET_TOKENS else set()

    def pending_count(self, kind: Hashable) -> int:
        """Requests of this kind that run or wait, of all keys."""
        return sum(len(flow.pending) for each, flow in self._list_flows() if each == kind)

    @property
    def backlog_s(self) -> float:
        """Seconds of compute until all that is pending is done."""
        return sum(flow.backlog_s for _, flow in self._list_flows())

    @contextmanager
    def track(
        self, kind: Hashable, weight: float, cost: float, size: int = 0, key: str = ""
    ) -> Iterator[PendingRequest]:
        """Count a request inside the context. The caller sets its `ran_s`, and `took_s` at its
        end."""
        rates = self._rates.setdefault(kind, _Rates())
        lane = self._lane_of(size)
        flows = lane.setdefault(key, {})
        flow = flows.setdefault(kind, _Flow(weight, rates))
        request = PendingRequest(cost, size)
        flow.pending.append(request)
        try:
            yield request
        finally:
            flow.pending.remove(request)
            if not flow.pending:
                del flows[kind]
                if not flows:
                    del lane[key]
            if request.took_s is not None:
                rates.add(cost, request.took_s)
            else:
                rates.add_bound(cost, request.ran_s())


def _share_of(weight: float, flows: Iterable[_Flow]) -> float:
    """Part of a lane of a key with these flows, and one of `weight`, over that of a whole key."""
    return min(weight + sum(flow.weight for flow in flows), 1.0)
