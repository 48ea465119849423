"""Requests of one kind that arrive together are computed as one batch."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, final

from models.base import StepControl
from models.dynamics import StopReason
from models.sampling import RunInterruptedError
from service.engine.tasks import Task
from service.observability.progress import Progress

_MOST = 64


@dataclass(frozen=True)
class BatchableRequest:
    """A request that can be computed together with others of the same `key`.

    Attributes:
        many: computes the `item` of each request of the batch and returns an outcome for each, in
            order. An outcome that is an exception is raised for that request alone. Outcomes must
            equal those of each item computed alone, up to rounding.
    """

    key: Hashable
    item: Any
    many: Callable[[Sequence[Any], StepControl], Sequence[Any]]


class RetryIndividually(Exception):  # noqa: N818
    """The batch failed as a whole; each request is tried again by itself."""


@dataclass(eq=False)
class BatchEntry:
    """One request of a batch; `outcome` is cancelled when its client has gone.

    Attributes:
        ran_s: seconds of compute, once the batch is done: its share of those of the batch, by cost.
    """

    item: Any
    progress: Progress
    outcome: asyncio.Future[Any]
    cost: float
    ran_s: float = 0.0


@final
class RequestBatch:
    """Requests of one key; more may join until it begins. The scheduler calls it.

    Every other method is for the event loop on which the batch was made.
    """

    def __init__(self, request: BatchableRequest) -> None:
        self._compute_all, self._loop = request.many, asyncio.get_running_loop()
        self._entries: list[BatchEntry] = []
        self._lock = threading.Lock()
        self._begun = self._over = False
        self._run: Task | None = None
        self._next: Callable[[], object] | None = None

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def is_closed(self) -> bool:
        """Whether it has begun, or has no requests left."""
        return self._begun or not self._entries

    def add(
        self, request: BatchableRequest, progress: Progress, cost: float = 1.0
    ) -> BatchEntry | None:
        """Add a request; None if the batch has begun or is full."""
        with self._lock:
            if self._begun or len(self._entries) >= _MOST:
                return None
            outcome = self._loop.create_future()
            self._entries.append(BatchEntry(request.item, progress, outcome, cost))
            return self._entries[-1]

    def start(self, submit: Callable[[RequestBatch], Task]) -> None:
        """Submit the batch to the scheduler, unless that was done or it is closed. Any thread."""
        with self._lock:
            if self._run is not None or self.is_closed:
                return
            self._run = submit(self)
        self._run.future.add_done_callback(self._end)

    def then(self, begin: Callable[[], object]) -> bool:
        """Call `begin` of the next batch once this one is done, on the compute thread.

        Returns:
            False if this batch is done or will never run.
        """
        with self._lock:
            if self._over or not (self._begun or self._entries):
                return False
            self._next = begin
            return True

    def remove(self, entry: BatchEntry) -> None:
        """Drop a request whose client has gone; without any request left the computation stops."""
        if not entry.outcome.cancel() and not entry.outcome.cancelled():
            entry.outcome.exception()  # so that asyncio does not report it
        with self._lock:
            if self._begun:
                last = all(other.outcome.done() for other in self._entries)
            else:  # others may still join, for as long as it has a guest
                self._entries.remove(entry)
                last = not self._entries
        if last and self._run is not None:
            self._run.stop(StopReason.CANCELLED)

    def measure_share(self, entry: BatchEntry) -> float:
        """Return the seconds that the batch has computed so far of a request: its share by cost."""
        if self._run is None:
            return entry.ran_s
        return self._run.ran_s * entry.cost / (sum(each.cost for each in self._entries) or 1.0)

    def __call__(self, run: Task) -> Sequence[Any]:
        with self._lock:
            self._begun = True
        if not self._entries:
            return []
        run.progresses = [entry.progress for entry in self._entries]
        return self._compute_all([entry.item for entry in self._entries], run)

    def _end(self, future: Future[Any]) -> None:
        """Called on the compute thread when the batch is done."""
        with self._lock:
            self._begun = self._over = True
            start_next, self._next = self._next, None
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._hand_out, future)
        if start_next is not None:
            start_next()

    def _hand_out(self, future: Future[Any]) -> None:
        """Set the outcome of each request, on the event loop."""
        for entry in self._entries:
            entry.ran_s = self.measure_share(entry)
        entries = self._entries
        self._entries, self._run = [], None
        outcomes: Sequence[Any]
        if future.cancelled():
            outcomes = [RunInterruptedError(StopReason.CANCELLED)] * len(entries)
        elif (error := future.exception()) is None:
            outcomes = future.result()
        else:
            retry = len(entries) > 1 and not isinstance(error, RunInterruptedError)
            outcomes = [RetryIndividually() if retry else error for _ in entries]
        for entry, outcome in zip(entries, outcomes, strict=True):
            if entry.outcome.done():
                continue
            if isinstance(outcome, BaseException):
                entry.outcome.set_exception(outcome)
            else:
                entry.outcome.set_result(outcome)
