"""Starts background work again that has ended unexpectedly."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Awaitable, Callable
from typing import final

import structlog
from prometheus_client import CollectorRegistry, Counter

from service.errors import Problem

_FIRST_PAUSE_S, _MAX_PAUSE_S = 0.5, 30.0
_STEADY_S = 60.0  # work that ran for so long is started again after the first pause


@final
class Supervisor:
    """Runs tasks and threads that last as long as the server, which is not ready without one.

    One that raises, or a task that returns, is logged, counted and started again after a pause,
    which doubles each time and has jitter, since servers that share a store fail together.

    Args:
        registry: of the metric `basin_background_restarts`; none without it.
    """

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self._restarts = Counter(
            "basin_background_restarts",
            "Starts of background tasks that had ended unexpectedly.",
            ["task"],
            registry=registry,
        )
        self._down = set[str]()
        self._closing = threading.Event()

    def start(
        self,
        name: str,
        work: Callable[[], Awaitable[object]],
        is_over: Callable[[], bool] = lambda: False,
    ) -> asyncio.Task[None]:
        """Run `work` in a task until that is cancelled.

        Args:
            is_over: whether `work` may return; by default never.
        """
        self._restarts.labels(name)  # from 0 on, so that a first one is an increase
        return asyncio.create_task(self._keep_running(name, work, is_over), name=name)

    async def _keep_running(
        self, name: str, work: Callable[[], Awaitable[object]], is_over: Callable[[], bool]
    ) -> None:
        pauses = _Pauses()
        task = asyncio.current_task()
        assert task is not None
        while True:
            error = None
            try:
                await work()
            except asyncio.CancelledError as cancelled:
                if task.cancelling():
                    raise
                error = cancelled  # something that it awaited was cancelled, not this task
            except Exception as raised:
                error = raised
            if error is None and is_over():
                return
            pause_s = self._note_end(name, error, pauses)
            try:
                await asyncio.sleep(pause_s)
            finally:
                self._down.discard(name)

    def run_in_thread(self, name: str, work: Callable[[], object]) -> None:
        """Run `work` in this thread until it returns, or raises after `close`."""
        self._restarts.labels(name)
        pauses = _Pauses()
        while True:
            try:
                work()
                return
            except Exception as error:
                pause_s = self._note_end(name, error, pauses)
            is_closing = self._closing.wait(pause_s)
            self._down.discard(name)
            if is_closing:
                return

    def require_running(self) -> None:
        """
        Raises:
            Problem: `not-ready` while a task is down.
        """
        if self._down:
            names = ", ".join(sorted(self._down))
            detail = (
                f"A background task ended unexpectedly: {names}. It starts again within "
                f"{_MAX_PAUSE_S:g} s; the server log has the reason."
            )
            raise Problem("not-ready", detail, headers={"retry-after": "1"})

    def close(self) -> None:
        """Start no thread's work again: the server shuts down."""
        self._closing.set()

    def _note_end(self, name: str, error: BaseException | None, pauses: _Pauses) -> float:
        """Log and count an end; return the pause."""
        pause_s = pauses.next_s()
        self._down.add(name)
        self._restarts.labels(name).inc()
        structlog.get_logger().error(
            "background task ended",
            task=name,
            reason="it returned" if error is None else repr(error),
            again_s=round(pause_s, 1),
            exc_info=error,
        )
        return pause_s


class _Pauses:
    """The pauses of one task."""

    def __init__(self) -> None:
        self._pause_s, self._started = _FIRST_PAUSE_S, time.monotonic()

    def next_s(self) -> float:
        """Return the pause of a task that ended now."""
        if time.monotonic() - self._started > _STEADY_S:
            self._pause_s = _FIRST_PAUSE_S
        pause_s = random.uniform(0.5, 1.0) * self._pause_s
        self._pause_s = min(2 * self._pause_s, _MAX_PAUSE_S)
        self._started = time.monotonic() + pause_s
        return pause_s
