"""One compute thread with a bounded queue; whoever stops waiting stops the work."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch

from models.contract import Interrupt
from models.dynamics import StopReason
from service.errors import Problem

T = TypeVar("T")
_SMOOTHING = 0.2  # weight of the latest job in the mean time of one


class Disconnected(Exception):  # noqa: N818
    """The client has gone; there is no one to answer."""


class _Stopped(Exception):  # noqa: N818
    """The job was interrupted."""


@dataclass(frozen=True)
class Done(Generic[T]):
    """What a job returned, and the seconds it waited and ran."""

    value: T
    queued_s: float
    ran_s: float


class _Job(Generic[T]):
    """Work on the compute thread, which `stop` ends within a step of the dynamics."""

    def __init__(self, work: Callable[[Interrupt], T]) -> None:
        self._work = work
        self._reason: StopReason | None = None
        self._submitted = time.perf_counter()

    def stop(self, reason: StopReason) -> None:
        self._reason = self._reason or reason

    def run(self) -> Done[T]:
        started = time.perf_counter()
        if self._reason is not None:
            raise _Stopped
        value = self._work(lambda: self._reason)
        if self._reason is not None:
            raise _Stopped
        return Done(value, started - self._submitted, time.perf_counter() - started)


class Engine:
    """Runs jobs one after the other; admits `queue_size` beside the one that runs.

    Each job has the machine's cores to itself, and its result cannot depend on any other.
    """

    def __init__(self, queue_size: int, deadline_s: float, threads: int | None) -> None:
        self._limit, self._deadline_s = queue_size + 1, deadline_s
        self._admitted, self._mean_s = 0, 0.0  # counted on the loop, measured on the thread
        self._pool = ThreadPoolExecutor(
            1,
            thread_name_prefix="compute",
            initializer=lambda: torch.set_num_threads(threads) if threads else None,
        )

    @property
    def admitted(self) -> int:
        """Jobs that wait or run."""
        return self._admitted

    def require_room(self) -> None:
        """Refuse with 429 while the queue is full; Retry-After is the time it takes to drain."""
        if self._admitted < self._limit:
            return
        seconds = max(math.ceil(self._admitted * self._mean_s), 1)
        detail = f"{self._admitted} requests are being computed or wait"
        raise Problem("queue-full", detail, headers={"retry-after": str(seconds)})

    async def run(
        self, work: Callable[[Interrupt], T], disconnected: Callable[[], Awaitable[object]]
    ) -> Done[T]:
        """Run `work` and wait for it.

        Raises:
            Problem: the queue is full, or the deadline passed.
            Disconnected: `disconnected` returned first.
        """
        self.require_room()
        job = _Job(work)
        queued = self._pool.submit(self._timed, job)
        result = asyncio.wrap_future(queued)
        self._admitted += 1
        result.add_done_callback(self._leave)
        watch = asyncio.ensure_future(disconnected())
        try:
            await asyncio.wait(
                {result, watch}, timeout=self._deadline_s, return_when=asyncio.FIRST_COMPLETED
            )
            if result.done():
                return result.result()
            if watch.done():
                raise Disconnected
            job.stop(StopReason.DEADLINE)
            detail = f"not done after {self._deadline_s:g} s; ask for fewer steps, or of less"
            raise Problem("deadline", detail)
        finally:  # also where this coroutine is cancelled
            watch.cancel()
            if not result.done():
                job.stop(StopReason.CANCELLED)
                queued.cancel()

    def close(self) -> None:
        """Wait for the job that runs; those that wait are dropped."""
        self._pool.shutdown(cancel_futures=True)

    def _timed(self, job: _Job[T]) -> Done[T]:
        started = time.perf_counter()
        try:
            return job.run()
        finally:
            ran_s = time.perf_counter() - started
            weight = _SMOOTHING if self._mean_s else 1.0
            self._mean_s += weight * (ran_s - self._mean_s)

    def _leave(self, result: asyncio.Future[Done[T]]) -> None:
        self._admitted -= 1
        if not result.cancelled():
            result.exception()  # taken, so that asyncio does not report one nobody waits for
