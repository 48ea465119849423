"""The way to one Redis, which may be away."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import Any, final

import structlog
from redis import Redis
from redis import asyncio as redis_asyncio
from redis import exceptions as faults
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.retry import Retry

_PROBE_S, _AGAIN_S = 1.0, 0.02
_CONNECTIONS, _LATE = 64, 64
_AWAY = (
    faults.ConnectionError,
    faults.TimeoutError,
    faults.BusyLoadingError,
    faults.AuthenticationError,
    OSError,
)
PREFIX = "basin:"  # of all keys


class RedisUnavailableError(Exception):
    """Redis did not do what it was asked: it is away, or it refuses."""


@final
class RedisClient:
    """Whoever asks Redis does so within `asking`, and is told `Unavailable` where it fails.

    After the first time that it does not answer nobody waits for it again: until a probe, one at
    once and then one each second, finds it there. So a Redis that hangs costs a few requests
    `timeout_s`, and no other.

    `swift` is for what a request waits for, in at most `timeout_s`, and `prompt` for the same in a
    thread; `patient` blocks, and is for threads that carry much.
    """

    def __init__(
        self, url: str, timeout_s: float, on_failure: Callable[[str], object] = lambda part: None
    ) -> None:
        # A connection that a restart has cut is opened again once; who waits too long is not asked
        # twice.
        again = {"retry_on_error": [faults.ConnectionError], "health_check_interval": 0}
        brief = {"socket_timeout": timeout_s, "socket_connect_timeout": timeout_s}
        long_s = max(20 * timeout_s, 5.0)
        once = (NoBackoff(), 1, (faults.ConnectionError,))
        pool = redis_asyncio.BlockingConnectionPool.from_url(
            url,
            max_connections=_CONNECTIONS,
            timeout=timeout_s,
            retry=AsyncRetry(*once),
            **again,
            **brief,
        )
        self.async_client = redis_asyncio.Redis.from_pool(pool)
        self.sync_client = Redis.from_url(url, retry=Retry(*once), **again, **brief)
        self.blocking_client = Redis.from_url(
            *(url,),
            retry=Retry(*once),
            socket_timeout=long_s,
            socket_connect_timeout=max(4 * timeout_s, 1.0),
            **again,
        )
        self._on_failure = on_failure
        self.is_available = True  # until it is found that it is not
        self._refusal = ("", "")  # the last one, which is told once
        self._doubt = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None  # where it is watched
        self._late: set[asyncio.Task[None]] = set()

    @contextmanager
    def guard(self, part: str) -> Iterator[None]:
        """
        Args:
            part: of the server, for whoever looks at what failed.

        Raises:
            Unavailable: Redis is away, or refuses.
        """
        if not self.is_available:
            raise RedisUnavailableError("Redis is unavailable")
        try:
            yield
        except (faults.RedisError, OSError) as error:
            self._on_failure(part)
            if str(error) == "No connection available.":
                pass  # all that there may be are used, and it is this server that is busy
            elif isinstance(error, _AWAY):
                self._set(False, str(error))
                self._look_again()  # it may have been slow this once
            elif (refusal := (part, str(error))) != self._refusal:
                # Full, or read only: it is there, and this it will not do.
                self._refusal = refusal
                structlog.get_logger().warning("redis refuses", part=part, reason=str(error))
            raise RedisUnavailableError(str(error)) from error

    async def watch(self) -> None:
        """Look again and again whether it is there, and at once where it seems that it is not."""
        self._loop = asyncio.get_running_loop()
        while True:
            self._doubt.clear()
            try:
                await self.probe()
            except Exception as error:  # whatever it is, the next time it may not be
                self._set(False, repr(error))
            with suppress(TimeoutError):
                await asyncio.wait_for(self._doubt.wait(), _PROBE_S)
                await asyncio.sleep(_AGAIN_S)

    async def probe(self) -> None:
        try:
            await self.async_client.ping()
        except (faults.RedisError, OSError) as error:
            self._set(False, str(error))
        else:
            self._set(True, "")

    def fire_and_forget(self, work: Coroutine[Any, Any, None]) -> None:
        """Do it for nobody who waits; not at all where as much as may be is being done already."""
        if len(self._late) >= _LATE:
            work.close()
            return
        task = asyncio.create_task(work)
        self._late.add(task)
        task.add_done_callback(self._late.discard)

    async def close(self) -> None:
        for task in self._late:
            task.cancel()
        await asyncio.gather(*self._late, return_exceptions=True)
        await self.async_client.aclose()
        self.sync_client.close()
        self.blocking_client.close()

    def _look_again(self) -> None:
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._doubt.set)

    def _set(self, is_available: bool, reason: str) -> None:
        if is_available != self.is_available:
            self.is_available = is_available
            if is_available:
                structlog.get_logger().info("redis is back")
            else:
                structlog.get_logger().error("redis is away", reason=reason)
