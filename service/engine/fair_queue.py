"""Whose turn it is: start-time fair queueing, over owners, their flows and the requests of each."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import NamedTuple, final


class Flow(NamedTuple):
    """All work of one kind. Flows have equal shares of the thread, by their weights; so have the
    requests of a flow among each other. An owner has no larger share the more flows it has.

    Attributes:
        owner: the API key that it is for, empty without keys.
    """

    kind: Hashable
    weight: float
    owner: str = ""


@dataclass
class _Account:
    """What a flow has had, and what of it waits.

    Attributes:
        clock: seconds that it has had, over its weight.
        now: virtual time of its member that had the latest turn.
        queue: a heap, by clock, then by order.
    """

    clock: float = 0.0
    now: float = 0.0
    queue: list[tuple[float, int, Schedulable]] = field(default_factory=list)


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
    """Queue of entries by flow, with weighted fair turns; an idle flow saves up no turns.

    For one thread. An idle flow is forgotten once its clock is not ahead of the queue's: it would
    begin again at the clock of the queue, as a new flow does. One that has had more than others is
    remembered until they have caught up.
    """

    def __init__(self) -> None:
        self._accounts: dict[Flow, _Account] = {}
        self._clock = 0.0  # of the flow whose turn it is
        self._waiting = self._order = 0

    def __len__(self) -> int:
        return self._waiting

    @property
    def num_flows(self) -> int:
        """Flows that are remembered."""
        return len(self._accounts)

    def queue(self, entity: Schedulable, first: bool = False) -> None:
        """It is to take a turn, before all others of its flow if it is `first`."""
        if entity.queued:
            return
        entity.queued = True
        account = self._accounts.get(entity.flow)
        if account is None:
            account = self._accounts[entity.flow] = _Account()
        if not account.queue:
            account.clock = max(account.clock, self._clock)
        entity.clock = account.now if first else max(entity.clock, account.now)
        self._order += 1
        order = -self._order if first else self._order
        heappush(account.queue, (entity.clock, order, entity))
        self._waiting += 1

    def take(self) -> Schedulable | None:
        """Return what is next: of the flow that has had least, the entry that has had least."""
        # Between turns all that a flow has begun waits in its queue, so an idle one has nothing.
        self._accounts = {
            flow: its
            for flow, its in self._accounts.items()
            if its.queue or its.clock > self._clock
        }
        waiting = [its for its in self._accounts.values() if its.queue]
        if not waiting:
            return None
        account = min(waiting, key=_clock_of)
        _, _, entity = heappop(account.queue)
        entity.queued = False
        self._waiting -= 1
        self._clock, account.now = account.clock, entity.clock
        return entity

    def charge(self, entity: Schedulable, requests: int, seconds: float) -> None:
        """Account for a turn of `requests` requests that took `seconds`."""
        flow = entity.flow
        account = self._accounts[flow]
        others = [each for each, its in self._accounts.items() if its.queue and each != flow]
        # An owner with several flows in the queue divides one share among them, by their weights.
        owned = flow.weight + sum(other.weight for other in others if other.owner == flow.owner)
        account.clock += seconds * max(owned, 1.0) / flow.weight
        entity.clock += seconds / requests
        if not others:  # what it had while none of them waited is free
            self._clock = account.clock


def _clock_of(account: _Account) -> float:
    return account.clock
