"""Client of the shared Redis, which may be unavailable."""

from __future__ import annotations

import asyncio
import secrets
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any, Literal, final

import structlog
from redis import Redis
from redis import asyncio as redis_asyncio
from redis import exceptions as faults
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.retry import Retry

from service.observability.redis_metrics import RedisEvent
from service.storage.redis_server_id import RedisReplacedError, read_run_id, read_run_id_async
from service.storage.redis_settings import check_redis_settings

_PROBE_S, _AGAIN_S = 1.0, 0.02
_CONNECTIONS, _LATE = 64, 64
_DAMAGED = 1024  # keys that are remembered, so that each is logged once
_AWAY = (
    faults.ConnectionError,
    faults.TimeoutError,
    faults.BusyLoadingError,
    faults.AuthenticationError,
    OSError,
)
PREFIX = "basin:"  # of all keys
HISTORY = f"{PREFIX}history"  # a random id; what Redis holds without it is of another history
Count = Callable[[RedisEvent, str, int], object]
_RESTORING = ContextVar("restoring", default=False)


class RedisUnavailableError(Exception):
    """Redis is unavailable, or refused a command."""


def is_wrong_type(error: Exception) -> bool:
    """Whether a command, or one of a script or pipeline, was refused because a key holds a value of
    another type."""
    return "WRONGTYPE" in str(error)


@final
class RedisClient:
    """Three clients of one Redis, all used within `guard`.

    After the first timeout no caller waits for Redis, until a probe succeeds; probes run
    immediately and then every second. So a Redis that hangs delays few requests, by `timeout_s`.

    `async_client` and, in threads, `sync_client` are for what a request waits for, with
    `timeout_s`; `blocking_client` has a long timeout, for threads that transfer much.

    A Redis that was restarted, replaced or emptied may be older than what this server holds. Each
    new connection compares the id of its process, each probe that of its history (`HISTORY`) too.
    Where one differs, no command is sent but those of the functions of `add_restore`, until these
    are done.

    Args:
        count: see `RedisMetrics.count`.
    """

    def __init__(
        self, url: str, timeout_s: float, count: Count = lambda event, part, number: None
    ) -> None:
        # Reconnect once if a restart of Redis closed the connection; never retry a timeout.
        again = {"retry_on_error": [faults.ConnectionError], "health_check_interval": 0}
        brief: dict[str, Any] = {"socket_timeout": timeout_s, "socket_connect_timeout": timeout_s}
        long_s = max(20 * timeout_s, 5.0)
        check: dict[str, Any] = {"redis_connect_func": self._check_connection}
        once = (NoBackoff(), 1, (faults.ConnectionError,))
        pool = redis_asyncio.BlockingConnectionPool.from_url(
            url,
            max_connections=_CONNECTIONS,
            timeout=timeout_s,
            retry=AsyncRetry(*once),
            redis_connect_func=self._check_async_connection,
            **again,
            **brief,
        )
        self.async_client = redis_asyncio.Redis.from_pool(pool)
        self._prober = redis_asyncio.Redis.from_url(url, retry=AsyncRetry(*once), **again, **brief)
        self.sync_client = Redis.from_url(url, retry=Retry(*once), **check, **again, **brief)
        self.blocking_client = Redis.from_url(
            *(url,),
            retry=Retry(*once),
            socket_timeout=long_s,
            socket_connect_timeout=max(4 * timeout_s, 1.0),
            **check,
            **again,
        )
        self.count = count
        self._run_id: str | None = None  # of the process of Redis; None until there was one
        self._restored: tuple[str, str] | None = None  # process and history; None at first
        self._counted: tuple[str, str] | None = None  # the latest change that was counted
        self._leads_elsewhere = False  # whether a new connection met another process of Redis
        self._restores: list[Callable[[], object]] = []
        self._restores_of_refused: list[Callable[[], object]] = []
        self.is_restoring = False
        self.is_available = True  # until a command fails
        self._has_checked_settings = False  # of the Redis that answers now
        self._warnings: list[str] = []  # about its settings, so that they are logged once
        self._refusals: dict[str, str] = {}  # the last one of each part, so that it is logged once
        self._damaged: OrderedDict[str, None] = OrderedDict()  # keys that were logged
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
        if not self.is_available and not _RESTORING.get():
            raise RedisUnavailableError("Redis is unavailable")
        try:
            yield
        except (faults.RedisError, OSError) as error:
            self.count("failures", part, 1)
            if str(error) == "No connection available.":
                pass  # all connections of the pool are in use: this server is busy, not Redis
            elif isinstance(error, _AWAY):
                self._set(False, str(error))
                self._look_again()  # it may have been slow only once
            elif self._refusals.get(part) != str(error):
                # Full or read-only: Redis is available, but refuses this command.
                self._refusals[part] = str(error)
                structlog.get_logger().warning("redis refuses", part=part, reason=str(error))
            raise RedisUnavailableError(str(error)) from error

    @property
    def state(self) -> Literal["up", "away", "restoring"]:
        """Whether Redis answers, or gets back from this server what it lost."""
        return "up" if self.is_available else "restoring" if self.is_restoring else "away"

    @property
    def history(self) -> str:
        """The history of Redis that this server knows; empty before the first probe. A script that
        is given it can refuse to write to another one."""
        return "" if self._restored is None else self._restored[1]

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
        """Find out whether Redis is available, and restore what it has lost."""
        try:
            if self._leads_elsewhere:
                await self._prober.connection_pool.disconnect()
                self._leads_elsewhere = False
            identity = await self._read_identity()
            if identity != self._restored:
                await self._restore(*identity)
                self._restored = identity
            else:
                for restore_refused in self._restores_of_refused:
                    await self._call_restore(restore_refused)
            if not self._has_checked_settings:
                await self._check_settings()
        except (faults.RedisError, OSError, RedisUnavailableError) as error:
            self._set(False, str(error))
        else:
            self._set(True, "")

    def add_restore(
        self, restore: Callable[[], object], restore_refused: Callable[[], object] | None = None
    ) -> None:
        """Add a function that compares what this server holds with what Redis holds, and writes
        what only this server has. It is called in a thread at the first probe, and whenever Redis
        may have lost something; within it, use `guard` and `allow_restore`.

        Args:
            restore_refused: called in a thread at each other probe, to write again what Redis has
                refused, as where it was full.
        """
        self._restores.append(restore)
        if restore_refused is not None:
            self._restores_of_refused.append(restore_refused)

    def report_damaged(self, part: str, key: str, reason: str) -> None:
        """Count, and log once, a value that is not what a server wrote."""
        self.count("damaged", part, 1)
        if key not in self._damaged:
            self._damaged[key] = None
            if len(self._damaged) > _DAMAGED:
                self._damaged.popitem(last=False)
            structlog.get_logger().error(
                "redis value is damaged", part=part, key=key, reason=reason
            )

    @contextmanager
    def allow_restore(self) -> Iterator[None]:
        """Let commands of this thread through `guard` although this server is restoring."""
        token = _RESTORING.set(True)
        try:
            yield
        finally:
            _RESTORING.reset(token)

    def require_history(self) -> None:
        """Check, within `guard`, that what is absent in Redis was deleted and is not lost.

        Raises:
            RedisReplacedError: Redis has lost its history; a probe follows.
        """
        if self._restored is None:
            return
        if self.sync_client.get(HISTORY) != self._restored[1].encode():
            raise RedisReplacedError("Redis has lost what it held")

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
        await self._prober.aclose()
        self.sync_client.close()
        self.blocking_client.close()

    async def _read_identity(self) -> tuple[str, str]:
        """Return the ids of the process of Redis and of the history of what it holds."""
        try:
            run_id = str((await self._prober.info("server")).get("run_id", ""))
        except faults.NoPermissionError:  # of this user: a restart is then seen by no id
            run_id = ""
        try:
            history: Any = await self._prober.get(HISTORY)
        except faults.ResponseError as error:
            if not is_wrong_type(error):
                raise
            await self._prober.delete(HISTORY)  # what was there is lost
            history = None
        if history is None:
            await self._prober.set(HISTORY, secrets.token_hex(8), nx=True)
            history = await self._prober.get(HISTORY) or b""
        return run_id, history.decode(errors="replace")

    async def _restore(self, run_id: str, history: str) -> None:
        """Call the functions of `add_restore`, while `guard` refuses others.

        Raises:
            RedisUnavailableError: Redis went away meanwhile, so this must be done again.
        """
        if self._restored is not None:  # else this server has seen no other
            change = "restarted" if history == self._restored[1] else "replaced"
            self._set(False, f"Redis was {change}; restoring what it lost")
            if (run_id, history) != self._counted:  # and not a second try
                self._counted = run_id, history
                self.count("changes", change, 1)
            await self._disconnect()  # from the one before, which may still answer
        self._run_id, self.is_restoring = run_id, True
        try:
            for restore in self._restores:
                await self._call_restore(restore)
        finally:
            self.is_restoring = False

    async def _call_restore(self, restore: Callable[[], object]) -> None:
        try:
            with self.allow_restore():
                await asyncio.to_thread(restore)
        except (RedisUnavailableError, *_AWAY):
            raise
        except Exception:  # the others are to be restored, and requests answered
            structlog.get_logger().exception("not restored")
            self.count("failures", "restore", 1)

    async def _disconnect(self) -> None:
        """Close idle connections, and each other one after its command, which fails while no
        connection is admitted. Where a thread closes a connection that another one reads, redis-py
        raises errors of other kinds."""
        await self.async_client.connection_pool.update_active_connections_for_reconnect()
        await self.async_client.connection_pool.disconnect(inuse_connections=False)
        for client in (self.sync_client, self.blocking_client):
            client.connection_pool.update_active_connections_for_reconnect()
            client.connection_pool.disconnect(inuse_connections=False)

    async def _check_settings(self) -> None:
        """Log warnings about the settings, unless they are those of the last time."""
        warnings = await check_redis_settings(self._prober)
        self._has_checked_settings = True
        if warnings != self._warnings:
            for warning in warnings:
                structlog.get_logger().warning("redis settings", reason=warning)
            self._warnings = warnings

    def _check_connection(self, connection: Any) -> None:
        connection.on_connect()
        self._admit(read_run_id(connection))

    async def _check_async_connection(self, connection: Any) -> None:
        await connection.on_connect()
        self._admit(await read_run_id_async(connection))

    def _admit(self, run_id: str) -> None:
        """Let a new connection through, if it leads to the Redis that is known and restored."""
        if not self.is_available and not _RESTORING.get():  # a command is sent a second time
            raise RedisReplacedError("Redis is unavailable")
        if self._run_id is None:
            self._run_id = run_id
        if run_id != self._run_id:
            self._leads_elsewhere = True
            raise RedisReplacedError("Redis was restarted or replaced")

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
