"""Whose turn it is: start-time fair queueing, over owners, their flows and the requests of each."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable
from heapq import heappop, heappush
from typing import final


class Flow:
    """All work of one kind. Flows have equal shares of the thread, by their weights; so have the
    requests of a flow among each other. An owner has no larger share the more flows it has.

    Attributes:
        owner: the API key that it is for, empty without keys.
        clock: seconds that it has had, over its weight.
        now: virtual time of its member that had the latest turn.
    """

    def __init__(self, kind: Hashable, weight: float, owner: str = "") -> None:
        self.kind, self.weight, self.owner = kind, weight, owner
        self.clock = self.now = 0.0
        self.queue: list[tuple[float, int, Schedulable]] = []  # a heap: by clock, then by order


class Schedulable(ABC):
    """What takes turns.

    Attributes:
        clock: seconds that each request in it has had, a share of those of all.
    """

    flow: Flow
    queued = False
    clock = 0.0

    @abstractmethod
    def __len__(self) -> int:
        """How many requests it is."""

    @abstractmethod
    def run_turn(self) -> bool:
        """Compute for a while; should there be another turn?"""

    @abstractmethod
    def fail(self, error: Exception) -> bool:
        """A turn raised; should there be another one?"""


@final
class FairQueue:
    """Queue of entries by flow, with weighted fair turns; an idle flow saves up no turns."""

    def __init__(self) -> None:
        self._flows: dict[Hashable, Flow] = {}
        self._clock = 0.0  # of the flow whose turn it is
        self._waiting = self._order = 0

    def __len__(self) -> int:
        return self._waiting

    def flow(self, kind: Hashable, weight: float, owner: str = "") -> Flow:
        """The flow of this kind."""
        return self._flows.setdefault(kind, Flow(kind, weight, owner))

    def queue(self, entity: Schedulable, first: bool = False) -> None:
        """It is to take a turn, before all others of its flow if it is `first`."""
        if entity.queued:
            return
        flow, entity.queued = entity.flow, True
        if not flow.queue:
            flow.clock = max(flow.clock, self._clock)
        entity.clock = flow.now if first else max(entity.clock, flow.now)
        self._order += 1
        order = -self._order if first else self._order
        heappush(flow.queue, (entity.clock, order, entity))
        self._waiting += 1

    def take(self) -> Schedulable | None:
        """Who is next: of the flow that has had least, the one that has."""
        waiting = [flow for flow in self._flows.values() if flow.queue]
        if not waiting:
            return None
        flow = min(waiting, key=lambda flow: flow.clock)
        _, _, entity = heappop(flow.queue)
        entity.queued = False
        self._waiting -= 1
        self._clock, flow.now = flow.clock, entity.clock
        return entity

    def charge(self, entity: Schedulable, requests: int, seconds: float) -> None:
        """Account for a turn of `requests` requests that took `seconds`."""
        flow = entity.flow
        others = [other for other in self._flows.values() if other.queue and other is not flow]
        # An owner with several flows in the queue divides one share among them, by their weights.
        owned = flow.weight + sum(other.weight for other in others if other.owner == flow.owner)
        flow.clock += seconds * max(owned, 1.0) / flow.weight
        entity.clock += seconds / requests
        if not others:  # what it had while none of them waited is free
            self._clock = flow.clock
