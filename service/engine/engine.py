"""One compute thread with a bounded queue; whoever stops waiting stops the work."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch

from models.contract import Interrupt
from models.dynamics import StopReason
from service.errors import Problem

T = TypeVar("T")
_SMOOTHING = 0.2  # weight of the latest job in the mean time of one


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

    def stop(self, forget: bool) -> None:
        """End the work; `forget` it where it was never begun, for the pool keeps its jobs."""
        self._reason = StopReason.CANCELLED
        if forget:
            del self._work

    def run(self) -> Done[T]:
        started = time.perf_counter()
        if self._reason is not None:
            raise _Stopped
        value = self._work(lambda: self._reason)
        if self._reason is not None:
            raise _Stopped
        return Done(value, started - self._submitted, time.perf_counter() - started)


class Engine:
    """Runs jobs one after the other; admits `queue_size` requests beside the one that runs.

    Each job has the machine's cores to itself, and its result cannot depend on any other.
    """

    def __init__(self, queue_size: int, threads: int | None) -> None:
        self._limit = queue_size + 1
        self._admitted, self._mean_s = 0, 0.0  # counted on the loop, measured on the thread
        self._pool = ThreadPoolExecutor(
            1,
            thread_name_prefix="compute",
            initializer=lambda: torch.set_num_threads(threads) if threads else None,
        )

    @property
    def admitted(self) -> int:
        """Requests that wait or run."""
        return self._admitted

    def require_room(self) -> None:
        """Refuse with 429 while the queue is full; Retry-After is the time it takes to drain."""
        if self._admitted < self._limit:
            return
        seconds = max(math.ceil(self._admitted * self._mean_s), 1)
        detail = f"{self._admitted} requests are being computed or wait"
        raise Problem("queue-full", detail, headers={"retry-after": str(seconds)})

    @contextmanager
    def admission(self) -> Iterator[None]:
        """A place in the queue for as long as the context lasts; a problem where there is none."""
        self.require_room()
        self._admitted += 1
        try:
            yield
        finally:
            self._admitted -= 1

    async def run(self, work: Callable[[Interrupt], T]) -> Done[T]:
        """Run `work` and wait for it; where the wait is cancelled, so is the work."""
        job = _Job(work)
        queued = self._pool.submit(self._timed, job)
        result = asyncio.wrap_future(queued)
        try:
            return await asyncio.shield(result)
        finally:
            if not result.done():
                job.stop(forget=queued.cancel())
                result.add_done_callback(_taken)

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


def _taken(result: asyncio.Future[Done[Any]]) -> None:
    """Take the outcome nobody waits for, so that asyncio does not report it."""
    if not result.cancelled():
        result.exception()
