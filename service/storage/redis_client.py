"""Client of the shared Redis, which may be unavailable."""

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

from service.storage.redis_settings import check_redis_settings

_PROBE_S, _AGAIN_S = 1.0, 0.02
_CONNECTIONS, _LATE = 64, 64
_MAX_REPORTS = 1000  # damaged values that are logged; all are counted
_AWAY = (
    faults.ConnectionError,
    faults.TimeoutError,
    faults.BusyLoadingError,
    faults.AuthenticationError,
    OSError,
)
PREFIX = "basin:"  # of all keys
PARTS = ("cache", "limits", "jobs", "memories", "graphs")  # of the server that use Redis


class RedisUnavailableError(Exception):
    """Redis is unavailable, or refused a command."""


def is_wrong_type(error: faults.ResponseError) -> bool:
    """Whether a command was refused because the key holds a value of another type."""
    return str(error).startswith("WRONGTYPE")


@final
class RedisClient:
    """Three clients of one Redis, all used within `guard`.

    After the first timeout no caller waits for Redis, until a probe succeeds; probes run
    immediately and then every second. So a Redis that hangs delays few requests, by `timeout_s`.

    `async_client` and, in threads, `sync_client` are for what a request waits for, with
    `timeout_s`; `blocking_client` has a long timeout, for threads that transfer much.
    """

    def __init__(
        self,
        url: str,
        timeout_s: float,
        on_failure: Callable[[str], object] = lambda part: None,
        on_damage: Callable[[str], object] = lambda part: None,
    ) -> None:
        # Reconnect once if a restart of Redis closed the connection; never retry a timeout.
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
        self._on_damage = on_damage
        self._damaged = set[tuple[str, str]]()  # those that were logged
        self.is_available = True  # until a command fails
        self._has_checked_settings = False  # of the Redis that answers now
        self._warnings: list[str] = []  # about its settings, so that they are logged once
        self._refusal = ("", "")  # the last one, so that it is logged once
        self._doubt = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None  # of `watch`
        self._late: set[asyncio.Task[None]] = set()

    @contextmanager
    def guard(self, part: str) -> Iterator[None]:
        """Run commands in this context.

        Args:
            part: of the server, for metrics and logs.

        Raises:
            RedisUnavailableError: Redis is unavailable, or refused a command.
        """
        if not self.is_available:
            raise RedisUnavailableError("Redis is unavailable")
        try:
            yield
        except (faults.RedisError, OSError) as error:
            self._on_failure(part)
            if str(error) == "No connection available.":
                pass  # all connections of the pool are in use: this server is busy, not Redis
            elif isinstance(error, _AWAY):
                self._set(False, str(error))
                self._look_again()  # it may have been slow only once
            elif (refusal := (part, str(error))) != self._refusal:
                # Full or read-only: Redis is available, but refuses this command.
                self._refusal = refusal
                structlog.get_logger().warning("redis refuses", part=part, reason=str(error))
            raise RedisUnavailableError(str(error)) from error

    def report_damaged(self, part: str, what: str) -> None:
        """Count a value that was read and is not what a server wrote; log it once.

        Args:
            part: of the server, for metrics and logs.
            what: the key, or another name of the value; never its content.
        """
        self._on_damage(part)
        if (part, what) in self._damaged or len(self._damaged) >= _MAX_REPORTS:
            return
        self._damaged.add((part, what))
        structlog.get_logger().error("redis value is damaged", part=part, key=what)

    async def watch(self) -> None:
        """Probe Redis every second, and immediately after a failure, until cancelled."""
        self._loop = asyncio.get_running_loop()
        while True:
            self._doubt.clear()
            try:
                await self.probe()
            except Exception as error:  # keep probing
                self._set(False, repr(error))
            with suppress(TimeoutError):
                await asyncio.wait_for(self._doubt.wait(), _PROBE_S)
                await asyncio.sleep(_AGAIN_S)

    async def probe(self) -> None:
        try:
            await self.async_client.ping()
            if not self._has_checked_settings:
                await self._check_settings()
        except (faults.RedisError, OSError) as error:
            self._set(False, str(error))
        else:
            self._set(True, "")

    def fire_and_forget(self, work: Coroutine[Any, Any, None]) -> None:
        """Run `work` in the background; drop it if `_LATE` others are running."""
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

    async def _check_settings(self) -> None:
        """Log warnings about the settings, unless they are those of the last time."""
        warnings = await check_redis_settings(self.async_client)
        self._has_checked_settings = True
        if warnings != self._warnings:
            for warning in warnings:
                structlog.get_logger().warning("redis settings", reason=warning)
            self._warnings = warnings

    def _look_again(self) -> None:
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._doubt.set)

    def _set(self, is_available: bool, reason: str) -> None:
        if is_available != self.is_available:
            self.is_available = is_available
            if is_available:
                structlog.get_logger().info("redis is back")
            else:
                self._has_checked_settings = False  # another one may come back
                structlog.get_logger().error("redis is away", reason=reason)
