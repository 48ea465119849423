"""Rate limits and quotas of API keys."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from typing import final

from service.auth.keys import ApiKey
from service.errors import Problem
from service.observability.metrics import Metrics
from service.storage.limiter import Limiter


@final
class UsageLimits:
    """Counts by the name of a key, so that a rotated secret keeps what is left."""

    def __init__(self, limiter: Limiter, metrics: Metrics) -> None:
        self._limiter, self._metrics = limiter, metrics

    async def check_rate(self, caller: ApiKey) -> None:
        """Count one request.

        Raises:
            Problem: `rate-exceeded`.
        """
        if caller.rate is None:
            return
        late_s = await self._limiter.take(f"rate:{caller.name}", 1, caller.rate.bucket)
        if late_s:
            detail = (
                f"The rate limit of this API key is exceeded: {caller.rate.per_second:g} "
                f"requests per second. Retry after {math.ceil(late_s)} s."
            )
            raise Problem("rate-exceeded", detail, headers=_after(late_s))

    def charge_quota(self, caller: ApiKey, cost: float) -> AbstractAsyncContextManager[None]:
        """Charge `cost` for the work in the context; refund it if that raises `queue-full`.

        Raises:
            Problem: `quota-exceeded`.
        """
        return self._charged(caller, cost) if caller.name else nullcontext()

    @asynccontextmanager
    async def _charged(self, caller: ApiKey, cost: float) -> AsyncIterator[None]:
        name, limit = f"quota:{caller.name}", caller.quota.bucket if caller.quota else None
        if limit is not None and (late_s := await self._limiter.take(name, cost, limit)):
            if math.isinf(late_s):
                detail = (
                    f"This request costs {cost:g}; the quota of this key is {limit.capacity:g}. "
                    "Lower `steps`, include less, or send fewer items."
                )
                raise Problem("quota-exceeded", detail)
            detail = (
                f"This request costs {cost:g}, more than is left of the quota of this key. "
                f"Retry after {math.ceil(late_s)} s."
            )
            raise Problem("quota-exceeded", detail, headers=_after(late_s))
        try:
            yield
        except Problem as problem:
            if problem.kind == "queue-full":
                if limit is not None:
                    await self._limiter.refund(name, cost, limit)
                cost = 0.0
            raise
        finally:
            self._metrics.key_cost.labels(caller.name).inc(cost)


def _after(seconds: float) -> dict[str, str]:
    return {"retry-after": str(math.ceil(seconds))}
