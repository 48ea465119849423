"""Token buckets that all servers share, in Redis."""

from __future__ import annotations

from typing import final

from service.storage.limiter import Limiter, LocalLimiter, TokenBucket
from service.storage.redis_client import PREFIX, RedisClient, RedisUnavailableError

# As `LocalLimiter` does it: of each name, when its bucket will be full again; by the clock of
# Redis, which is one for all. Lua numbers become whole ones on the way out, text does not.
# Buckets are as many as names of keys, and stay: what has an end would make room for answers.
_TAKE = """
local time = redis.call('TIME')
local now = time[1] + time[2] / 1000000
local took, content = tonumber(ARGV[1]), tonumber(ARGV[2])
local full = math.max(tonumber(redis.call('GET', KEYS[1]) or now), now) + took
local late = full - now - content
if late > 1e-6 + 1e-9 * (full - now) then
  return string.format('%.6f', late)
end
redis.call('SET', KEYS[1], string.format('%.6f', full))
return '0'
"""
_GIVE_BACK = """
local full = tonumber(redis.call('GET', KEYS[1]))
if full then
  redis.call('SET', KEYS[1], string.format('%.6f', full - tonumber(ARGV[1])))
end
"""


@final
class RedisLimiter(Limiter):
    """Buckets in Redis; while it is unavailable each server uses local buckets."""

    def __init__(self, link: RedisClient) -> None:
        self._link, self._alone = link, LocalLimiter()
        self._take = link.async_client.register_script(_TAKE)
        self._give_back = link.async_client.register_script(_GIVE_BACK)

    async def take(self, name: str, amount: float, limit: TokenBucket) -> float:
        if amount > limit.capacity:
            return float("inf")
        took, content = amount / limit.refill_per_s, limit.capacity / limit.refill_per_s
        try:
            with self._link.guard("limits"):
                return float(await self._take(keys=[_key(name)], args=[took, content]))
        except RedisUnavailableError:
            return await self._alone.take(name, amount, limit)

    async def refund(self, name: str, amount: float, limit: TokenBucket) -> None:
        try:
            with self._link.guard("limits"):
                await self._give_back(keys=[_key(name)], args=[amount / limit.refill_per_s])
        except RedisUnavailableError:
            await self._alone.refund(name, amount, limit)


def _key(name: str) -> str:
    return f"{PREFIX}{name}"
