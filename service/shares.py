"""Divide a limit among clients, so that one that takes all it can leaves room for the others."""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import final


@final
class Shares:
    """Units of one limit, counted by client. For one thread.

    A client may hold as much as it leaves free: alone half of the total, two at their limits a
    third each, n of them 1 / (n + 1) each, and that is what a further client finds free. This is
    the threshold that switches use for shared packet buffers (Choudhury and Hahne, Dynamic Queue
    Length Thresholds, 1998). Unlike a fixed part for each client it needs no list of clients. The
    client without a name has no share: it may take all that is free.

    Attributes:
        total: units of all clients together.
        used: units that are held now.
    """

    def __init__(self, total: int) -> None:
        self.total, self.used = total, 0
        self._held: dict[str, int] = {}

    def held_by(self, client: str) -> int:
        return self._held.get(client, 0)

    def has_room(self, amount: int = 1) -> bool:
        """Whether `amount` more fits into the total."""
        return self.used + amount <= self.total

    def may_take(self, client: str, amount: int = 1) -> bool:
        """Whether `amount` more fits into the total and the share of `client`.

        A client that holds nothing may always take one unit that is free.
        """
        free = self.total - self.used - amount
        return free >= 0 and (not client or self.held_by(client) + amount <= max(free, 1))

    def take(self, client: str, amount: int = 1) -> None:
        """Count `amount`; what `may_take` says is for the caller to obey."""
        self.used += amount
        self._held[client] = self.held_by(client) + amount

    def release(self, client: str, amount: int = 1) -> None:
        """Undo `take`."""
        self.used -= amount
        left = self._held.get(client, 0) - amount
        if left:
            self._held[client] = left
        else:
            self._held.pop(client, None)

    @contextmanager
    def hold(self, client: str, amount: int = 1) -> Iterator[None]:
        """Count `amount` while the context lasts."""
        self.take(client, amount)
        try:
            yield
        finally:
            self.release(client, amount)


@final
class FairSemaphore:
    """A semaphore of which a free place goes to the waiting client that holds fewest places; among
    equals to the one that has waited longest. For one event loop.

    Args:
        places: holders at a time.
        max_per_client: places of one client; no limit if None, or for the client without a name.
        alone_after_s: a client has no limit while no other one has come for as many seconds.
    """

    def __init__(
        self,
        places: float,
        max_per_client: int | None = None,
        alone_after_s: float = math.inf,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._free, self._max_per_client = places, max_per_client
        self._alone_after_s, self._clock = alone_after_s, clock
        self._latest, self._latest_s = "", -math.inf  # the client that came last, and when
        self._other_s = -math.inf  # when a client other than that one came last
        self._held = Counter[str]()
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}

    @asynccontextmanager
    async def reserve(self, client: str = "") -> AsyncIterator[None]:
        """Wait for a place, and hold it while the context lasts."""
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._note(client)
        self._waiting.setdefault(client, deque()).append(granted)
        self._grant()
        try:
            await granted
        except asyncio.CancelledError:
            if not granted.cancelled():  # it was granted before the cancellation arrived
                self._release(client)
            raise
        try:
            yield
        finally:
            self._release(client)

    def _release(self, client: str) -> None:
        self._free += 1
        self._held[client] -= 1
        if not self._held[client]:
            del self._held[client]
        self._grant()

    def _grant(self) -> None:
        while self._free:
            able = [client for client in self._waiting if self._may_hold_more(client)]
            if not able:
                return
            client = min(able, key=self._held.__getitem__)  # the first of equals
            queue = self._waiting.pop(client)
            granted = queue.popleft()
            if queue:
                self._waiting[client] = queue  # behind the others
            if not granted.cancelled():
                self._free -= 1
                self._held[client] += 1
                granted.set_result(None)

    def _may_hold_more(self, client: str) -> bool:
        limit = self._max_per_client
        if not client or limit is None or self._held[client] < limit:
            return True
        others_s = self._other_s if client == self._latest else self._latest_s
        return self._clock() - others_s > self._alone_after_s

    def _note(self, client: str) -> None:
        if client != self._latest:
            self._latest, self._other_s = client, self._latest_s
        self._latest_s = self._clock()
