"""Token buckets for rate limits and quotas."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import final


@dataclass(frozen=True)
class TokenBucket:
    """Capacity in tokens, and refill rate in tokens per second."""

    capacity: float
    refill_per_s: float


class Limiter(ABC):
    """One token bucket per name."""

    @abstractmethod
    async def take(self, name: str, amount: float, limit: TokenBucket) -> float:
        """Take `amount` tokens and return 0; or take none, and return the seconds until there are
        enough (infinity if `amount` exceeds the capacity)."""

    @abstractmethod
    async def refund(self, name: str, amount: float, limit: TokenBucket) -> None:
        """Return tokens that were taken but not used."""


@final
class LocalLimiter(Limiter):
    """Buckets in this process; of each only the time at which it is full again is stored."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._full: dict[str, float] = {}

    async def take(self, name: str, amount: float, limit: TokenBucket) -> float:
        if amount > limit.capacity:
            return float("inf")
        now, content_s = self._clock(), limit.capacity / limit.refill_per_s
        # At most empty, also where the capacity was larger until now.
        full = min(max(self._full.get(name, now), now), now + content_s)
        full += amount / limit.refill_per_s
        late_s = full - now - content_s
        if late_s > 1e-9 * (full - now):  # more than rounding error
            return late_s
        self._full[name] = full
        return 0.0

    async def refund(self, name: str, amount: float, limit: TokenBucket) -> None:
        if name in self._full:
            self._full[name] -= amount / limit.refill_per_s
