"""How much of something there may be, and how fast it comes back."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import final


@dataclass(frozen=True)
class TokenBucket:
    """At most `most` at once, which comes back at `per_second`: a bucket of tokens."""

    capacity: float
    refill_per_s: float


class Limiter(ABC):
    """Counts what was taken under a name."""

    @abstractmethod
    async def take(self, name: str, amount: float, limit: TokenBucket) -> float:
        """0 where it was taken; else nothing was, and it can be after so many seconds, which are
        infinite where it is more than there ever is."""

    @abstractmethod
    async def refund(self, name: str, amount: float, limit: TokenBucket) -> None:
        """It was taken, but not used."""


@final
class LocalLimiter(Limiter):
    """In this process. Of each name it keeps when its bucket will be full again, and no more."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._full: dict[str, float] = {}

    async def take(self, name: str, amount: float, limit: TokenBucket) -> float:
        if amount > limit.capacity:
            return float("inf")
        now = self._clock()
        full = max(self._full.get(name, now), now) + amount / limit.refill_per_s
        late_s = full - now - limit.capacity / limit.refill_per_s
        if late_s > 1e-9 * (full - now):  # or it is but rounding
            return late_s
        self._full[name] = full
        return 0.0

    async def refund(self, name: str, amount: float, limit: TokenBucket) -> None:
        if name in self._full:
            self._full[name] -= amount / limit.refill_per_s
