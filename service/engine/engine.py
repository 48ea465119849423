"""A bounded queue before the compute thread; a request that is cancelled stops its work."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar
from weakref import WeakValueDictionary

from models.base import StepControl
from models.dynamics import StopReason
from service.engine.admission import Admission
from service.engine.load_estimator import LoadEstimator, PendingRequest
from service.engine.memory_budget import SMALL
from service.engine.request_batch import BatchableRequest, RequestBatch, RetryIndividually
from service.engine.scheduler import NICENESS, Scheduler, StepObserver
from service.engine.tasks import Task
from service.observability.progress import Progress
from service.supervisor import Supervisor

T = TypeVar("T")
_ENOUGH = 16  # a batch of this size begins without waiting; half of what keeps both threads busy
_LATEST_S = 0.05  # the longest that a batch waits for the one before it
_JOB_WEIGHT = 0.25  # share of a job's flow, relative to one that a client waits for


@dataclass(frozen=True)
class Workload:
    """What the engine has to know to queue a computation.

    Attributes:
        flow: what it shares the machine under: the name of a model, or `sample`.
        cost: tokens x steps of all passes, edges count as tokens; what quotas are charged.
        size: tokens and edges in memory at a time; 0 where that does not matter.
        is_isolated: its rows never step together with those of other requests, so that every sum
            is rounded as if it ran alone.
        batchable: how to compute it together with requests of the same key, if it can be.
    """

    flow: str = ""
    cost: float = 1.0
    size: int = 0
    is_isolated: bool = False
    batchable: BatchableRequest | None = None


@dataclass(frozen=True)
class Outcome(Generic[T]):
    """What the work returned, and the seconds that it waited and computed."""

    value: T
    queued_s: float
    ran_s: float


class Engine:
    """Runs the work of requests side by side; admits `queue_size` of them beside one.

    A step cannot be interrupted, and one of a large graph takes as long as thousands of small
    requests. So what is large is computed on a second thread, and small requests never wait for it:
    the operating system divides the cores between the two.

    Args:
        steps: requests take turns step by step, see `service.engine.scheduler`; False runs each to
            its end before the next one begins.
        max_per_model: requests of one model that may run or wait; no limit if None.
        on_step: called after each step of a batch, on a compute thread.
        has_large_lane: whether there is the second thread; a GPU is used by one thread alone.
    """

    def __init__(
        self,
        queue_size: int,
        threads: int | None,
        steps: bool = True,
        max_per_model: int | None = None,
        on_step: StepObserver = lambda flow, rows, seconds: None,
        supervisor: Supervisor | None = None,
        has_large_lane: bool = False,
    ) -> None:
        self._load = LoadEstimator(has_large_lane)
        self.admission = Admission(queue_size, max_per_model, self._load)
        make_scheduler = partial(Scheduler, threads, steps, on_step=on_step, supervisor=supervisor)
        self._scheduler = make_scheduler()
        self._large_scheduler = (
            make_scheduler(name="compute-large", niceness=2 * NICENESS, neighbor=self._scheduler)
            if has_large_lane
            else self._scheduler
        )
        self._open_batches: dict[Hashable, RequestBatch] = {}  # that may not have begun
        self._last_batch = WeakValueDictionary[Hashable, RequestBatch]()

    @property
    def backlog_s(self) -> float:
        """Seconds of compute until all that is admitted is done, as far as is known."""
        return self._load.backlog_s

    async def run(
        self,
        work: Callable[[StepControl], T],
        workload: Workload,
        *,
        deadline_s: float = math.inf,
        is_job: bool = False,
        progress: Progress | None = None,
        key: str = "",
    ) -> Outcome[T]:
        """Run `work` and wait for its result. Cancelling the wait cancels the work.

        Args:
            deadline_s: a request that is expected to take longer, with what is queued before it, is
                refused; jobs never are.
            is_job: no client waits for it, so it gets a smaller share of the machine.
            progress: counts its steps.
            key: name of the API key that it is for. Keys have equal shares of the machine, so their
                requests never step together.

        Raises:
            Problem: `queue-full`, for the model or because the deadline would be missed.
        """
        weight = _JOB_WEIGHT if is_job else 1.0
        cost, size = workload.cost, workload.size
        self.admission.require_turn(workload.flow, is_job, weight, cost, deadline_s, size, key)
        kind = workload.flow, is_job  # the jobs of a model take turns with its other requests
        flow = *kind, key
        progress = progress or Progress()
        with (
            self.admission.hold_turn(workload.flow, key),
            self._load.track(kind, weight, cost, size, key) as pending,
        ):
            started = time.perf_counter()
            result = None
            if workload.batchable is not None and not workload.is_isolated:
                result = await self._run_batched(workload, flow, weight, progress, key, pending)
            if result is None:
                scheduler = self._large_scheduler if size > SMALL else self._scheduler
                task = scheduler.submit(
                    work, flow, weight, workload.is_isolated, progress, size, key
                )
                pending.ran_s = lambda: task.ran_s
                value = await _wait_for(task.future, partial(task.stop, StopReason.CANCELLED))
                result = value, task.ran_s
            value, ran_s = result
            pending.took_s = ran_s
        queued_s = time.perf_counter() - started - ran_s
        return Outcome(value, max(queued_s, 0.0), ran_s)

    async def _run_batched(
        self,
        workload: Workload,
        flow: Hashable,
        weight: float,
        progress: Progress,
        owner: str,
        pending: PendingRequest,
    ) -> tuple[Any, float] | None:
        """The outcome and its seconds of compute; None if the request must be run by itself."""
        request = workload.batchable
        assert request is not None
        key = flow, request.key
        batch = self._open_batches.get(key)
        entry = None if batch is None else batch.add(request, progress, workload.cost)
        if batch is None or entry is None:
            batch = self._open_batches[key] = RequestBatch(request)
            entry = batch.add(request, progress, workload.cost)
            assert entry is not None
            submit = partial(self._scheduler.submit, flow=flow, weight=weight, owner=owner)
            self._arrange(batch, key, submit)
        pending.ran_s = partial(batch.measure_share, entry)
        try:
            return await entry.outcome, entry.ran_s
        except RetryIndividually:
            return None
        except asyncio.CancelledError:
            batch.remove(entry)
            raise
        finally:
            if batch.is_closed and self._open_batches.get(key) is batch:
                del self._open_batches[key]

    def _arrange(
        self, batch: RequestBatch, key: Hashable, submit: Callable[[RequestBatch], Task]
    ) -> None:
        """Begin the batch when the one before it is done, so that one is computed while the next is
        read; without one before it, once no more requests join."""
        begin, before = partial(batch.start, submit), self._last_batch.get(key)
        self._last_batch[key] = batch
        if before is not None and before.then(begin):
            asyncio.get_running_loop().call_later(_LATEST_S, begin)
        else:
            _gather(batch, begin)

    def close(self) -> None:
        """Wait for what runs."""
        for scheduler in (self._scheduler, self._large_scheduler):
            scheduler.close()


def _gather(
    batch: RequestBatch, start_batch: Callable[[], object], last_size: int = 0, quiet_turns: int = 0
) -> None:
    """Begin the batch once no request has joined it for two turns of the event loop.

    Otherwise the first of several requests that arrive together would begin alone, and its
    computation would take the interpreter from parsing the others.
    """
    quiet = quiet_turns + 1 if len(batch) == last_size else 0
    # Two: a request that joins in this turn of the loop may be scheduled behind this call.
    if quiet < 2 and 0 < len(batch) < _ENOUGH:
        asyncio.get_running_loop().call_soon(_gather, batch, start_batch, len(batch), quiet)
    else:
        start_batch()


async def _wait_for(future: Future[Any], give_up: Callable[[], object]) -> Any:
    """Wait for `future`; call `give_up` if the wait is cancelled."""
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[Any] = loop.create_future()

    def over(done: Future[Any]) -> None:  # on the thread that computes
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(_hand_over, done, outcome)

    future.add_done_callback(over)
    try:
        return await outcome
    finally:
        if not future.done():
            give_up()


def _hand_over(done: Future[Any], outcome: asyncio.Future[Any]) -> None:
    if outcome.done():  # the client has gone
        return
    if done.cancelled():
        outcome.cancel()
    elif (error := done.exception()) is not None:
        outcome.set_exception(error)
    else:
        outcome.set_result(done.result())
