"""A bounded queue before the thread that computes; whoever stops waiting stops the work."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar
from weakref import WeakValueDictionary

from models.base import Interrupt
from models.dynamics import StopReason
from service.engine.load_estimator import LoadEstimator
from service.engine.progress import Progress
from service.engine.request_batch import BatchableRequest, RequestBatch, RetryIndividually
from service.engine.scheduler import Scheduler, Stepped, Task
from service.errors import Problem

T = TypeVar("T")
_SMOOTHING = 0.2  # weight of the latest request in the mean time of one
_ENOUGH = 16  # guests of a party that wait for no more; half of what would keep both threads busy
_LATEST_S = 0.05  # after which a party waits for no other
_JOBS = 0.25  # share of a job's flow, beside one that somebody waits for


@dataclass(frozen=True)
class Done(Generic[T]):
    """What work returned, the seconds it computed, and those that it waited to."""

    value: T
    queued_s: float
    ran_s: float


class Engine:
    """Runs the work of requests side by side; admits `queue_size` of them beside one.

    Args:
        steps: requests take turns step by step, see `service.engine.scheduler`; False runs each to
            its end before the next one begins.
        most: requests of one model that may run or wait; as many as there are places if None.
    """

    def __init__(
        self,
        queue_size: int,
        threads: int | None,
        steps: bool = True,
        most: int | None = None,
    ) -> None:
        self._limit, self._most = queue_size + 1, most
        self._backlog = LoadEstimator()
        self._admitted, self._mean_s = 0, 0.0  # counted on the loop, measured on the thread
        self._expected = 0
        self.on_step: Stepped = lambda kind, rows, seconds: None
        self._scheduler = Scheduler(threads, steps, self._measure, self._stepped)
        self._parties: dict[Hashable, RequestBatch] = {}  # that may not have begun
        self._latest = WeakValueDictionary[Hashable, RequestBatch]()

    @property
    def capacity(self) -> int:
        """How many may be."""
        return self._limit

    @property
    def admitted(self) -> int:
        """Requests that wait or run."""
        return self._admitted

    @property
    def backlog_s(self) -> float:
        """Seconds of compute until all that is admitted is done, as far as is known."""
        return self._backlog.seconds

    def pending(self, flow: str) -> int:
        """Requests of a model that run or wait to, jobs among them."""
        return sum(self._backlog.pending_count((flow, job)) for job in (False, True))

    def expect(self) -> None:
        """A request has come that may take a place once what its head set going has run: until then
        it has one, so that of those who come together no more are let in than there is room for."""
        self._expected += 1
        asyncio.get_running_loop().call_soon(self._expect_no_more)

    def _expect_no_more(self) -> None:
        self._expected -= 1

    @property
    def full(self) -> bool:
        """Is there no place for another request, whatever it is?"""
        return self._admitted + self._expected >= self._limit

    def queue_full_error(self) -> Problem:
        """429; Retry-After is the time it takes to drain."""
        there = min(self._admitted + self._expected, self._limit)
        seconds = max(math.ceil(there * self._mean_s), 1)
        detail = f"{there} requests are being computed or wait"
        return Problem("queue-full", detail, headers={"retry-after": str(seconds)})

    def require_room(self) -> None:
        """Raise the `refusal` where the queue is full."""
        if self._admitted >= self._limit:
            raise self.queue_full_error()

    @contextmanager
    def admission(self) -> Iterator[None]:
        """A place in the queue for as long as the context lasts; a problem where there is none."""
        self.require_room()
        self._admitted += 1
        try:
            yield
        finally:
            self._admitted -= 1

    async def run(
        self,
        work: Callable[[Interrupt], T],
        flow: str = "",
        cost: float = 1.0,
        *,
        size: int = 0,
        within_s: float = math.inf,
        job: bool = False,
        alone: bool = False,
        alike: BatchableRequest | None = None,
        progress: Progress | None = None,
    ) -> Done[T]:
        """Run `work` and wait for it; where the wait is cancelled, so is the work.

        Args:
            flow: the kind of work, which has its share of the machine: a model's name.
            cost: tokens x steps, with the edges between them.
            size: tokens and edges that are in memory at a time.
            within_s: seconds after which it comes too late: what surely would is not begun, but for
                jobs.
            job: nobody waits for it; what somebody waits for goes first.
            alone: its rows never step with those of other requests.
            alike: what may be done instead of `work`, with others of its key.
            progress: is told of its steps.

        Raises:
            Problem: there is so much to do already that it would be late.
        """
        if self._most is not None and self.pending(flow) >= self._most:
            detail = f"{self._most} requests of this model are being computed or wait"
            raise Problem("queue-full", detail, headers={"retry-after": "1"})
        weight, kind = (_JOBS if job else 1.0), (flow, job)
        late_s = 0.0 if job else self._backlog.expected_delay_s(kind, weight, cost, within_s)
        if late_s:
            headers = {"retry-after": str(math.ceil(late_s))}
            raise Problem("queue-full", "it would be late: too much is to be done", headers=headers)
        with self._backlog.track(kind, weight, cost) as took:
            started, progress = time.perf_counter(), progress or Progress()
            done = None
            if alike is not None and not alone:
                done = await self._run_batched(alike, kind, weight, progress)
            if done is None:
                run = self._scheduler.submit(work, kind, weight, alone, progress, size)
                value = await _outcome(run.future, partial(run.stop, StopReason.CANCELLED))
                done = value, run.ran_s
            value, ran_s = done
            took(ran_s)
        waited_s = time.perf_counter() - started - ran_s
        return Done(value, max(waited_s, 0.0), ran_s)

    async def _run_batched(
        self, alike: BatchableRequest, kind: Hashable, weight: float, progress: Progress
    ) -> tuple[Any, float] | None:
        """The outcome and the seconds it took; None where it is to be tried apart."""
        place = kind, alike.key
        party = self._parties.get(place)
        guest = None if party is None else party.join(alike, progress)
        if party is None or guest is None:
            party = self._parties[place] = RequestBatch(alike)
            guest = party.join(alike, progress)
            assert guest is not None
            self._arrange(party, place, partial(self._scheduler.submit, flow=kind, weight=weight))
        try:
            return await guest.outcome, party.share_s
        except RetryIndividually:
            return None
        except asyncio.CancelledError:
            party.leave(guest)
            raise
        finally:
            if party.closed and self._parties.get(place) is party:
                del self._parties[place]

    def _arrange(
        self, party: RequestBatch, place: Hashable, submit: Callable[[RequestBatch], Task]
    ) -> None:
        """It begins when the one before is over: so one is computed while the next one is read. If
        there is none, once it has gathered."""
        begin, before = partial(party.begin, submit), self._latest.get(place)
        self._latest[place] = party
        if before is not None and before.then(begin):
            asyncio.get_running_loop().call_later(_LATEST_S, begin)
        else:
            _gather(party, begin)

    def close(self) -> None:
        """Wait for what runs."""
        self._scheduler.close()

    def _stepped(self, kind: Hashable, rows: int, seconds: float) -> None:
        self.on_step(kind, rows, seconds)

    def _measure(self, run: Task) -> None:
        weight = _SMOOTHING if self._mean_s else 1.0
        self._mean_s += weight * (run.ran_s - self._mean_s)


def _gather(
    party: RequestBatch, begin: Callable[[], object], there: int = 0, turns: int = 0
) -> None:
    """Have it begin once nobody has joined it for a turn of the loop: of requests that arrive at
    about the same time the first would begin alone, and take the interpreter from the rest."""
    still = turns + 1 if len(party) == there else 0
    # The first of two may be the turn in which whoever joins in it comes behind.
    if still < 2 and 0 < len(party) < _ENOUGH:
        asyncio.get_running_loop().call_soon(_gather, party, begin, len(party), still)
    else:
        begin()


async def _outcome(future: Future[Any], give_up: Callable[[], object]) -> Any:
    """What it comes to; it is given up where the wait is cancelled."""
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[Any] = loop.create_future()

    def over(done: Future[Any]) -> None:  # on the thread that computes
        with suppress(RuntimeError):  # the loop has ended, and nobody waits
            loop.call_soon_threadsafe(_hand_over, done, outcome)

    future.add_done_callback(over)
    try:
        return await outcome
    finally:
        if not future.done():
            give_up()


def _hand_over(done: Future[Any], outcome: asyncio.Future[Any]) -> None:
    if outcome.done():  # nobody waits
        return
    if done.cancelled():
        outcome.cancel()
    elif (error := done.exception()) is not None:
        outcome.set_exception(error)
    else:
        outcome.set_result(done.result())
