"""Token buckets that all servers share, in Redis."""

from __future__ import annotations

from typing import final

from service.storage.limiter import Limiter, LocalLimiter, TokenBucket
from service.storage.redis_client import PREFIX, RedisClient, RedisUnavailableError

# As `LocalLimiter` does it: of each name, when its bucket will be full again; by the clock of
# Redis, which is one for all. Lua numbers become whole ones on the way out, text does not.
# Buckets are as many as names of keys, and stay: what has an end would make room for answers.
# What is stored is checked, since the clock may have been ahead, or another program wrote it: a
# bucket is at most empty, so nothing waits longer than it takes to fill, and one without a number
# is full. A second is what clocks are corrected by in normal use. Behind the time is how long the
# bucket took to fill, which tells a limit that was lowered from a clock that was ahead.
_TAKE = """
local time = redis.call('TIME')
local now = time[1] + time[2] / 1000000
local took, content = tonumber(ARGV[1]), tonumber(ARGV[2])
local stored, full, is_damaged = redis.pcall('GET', KEYS[1]), now, 0
if stored then
  local number, fills
  if type(stored) == 'string' then
    number, fills = string.match(stored, '^(%-?%d+%.?%d*) ?(%d*%.?%d*)$')
  end
  full = number and tonumber(number) or now
  if not number or full > now + (tonumber(fills) or content) + 1 then is_damaged = 1 end
  if full > now + content or not number then
    full = math.min(full, now + content)
    redis.call('SET', KEYS[1], string.format('%.6f %.6f', full, content))
  end
end
full = math.max(full, now) + took
local late = full - now - content
if late > 1e-6 + 1e-9 * (full - now) then
  return {string.format('%.6f', late), is_damaged}
end
redis.call('SET', KEYS[1], string.format('%.6f %.6f', full, content))
return {'0', is_damaged}
"""


@final
class RedisLimiter(Limiter):
    """Buckets in Redis; while it is unavailable each server uses local buckets."""

    def __init__(self, link: RedisClient) -> None:
        self._link, self._alone = link, LocalLimiter()
        self._script = link.async_client.register_script(_TAKE)

    async def take(self, name: str, amount: float, limit: TokenBucket) -> float:
        if amount > limit.capacity:
            return float("inf")
        try:
            return await self._take(name, amount, limit)
        except RedisUnavailableError:
            return await self._alone.take(name, amount, limit)

    async def refund(self, name: str, amount: float, limit: TokenBucket) -> None:
        try:
            await self._take(name, -amount, limit)
        except RedisUnavailableError:
            await self._alone.refund(name, amount, limit)

    async def _take(self, name: str, amount: float, limit: TokenBucket) -> float:
        """Raises RedisUnavailableError."""
        key = f"{PREFIX}{name}"
        seconds = amount / limit.refill_per_s, limit.capacity / limit.refill_per_s
        with self._link.guard("limits"):
            late_s, is_damaged = await self._script(keys=[key], args=seconds)
        if is_damaged:
            self._link.report_damaged(
                "limits", key, "it is no time that a bucket of this size can have"
            )
        return float(late_s)
