"""What the scheduler gives turns to: the work of one request, or a batch of steps of several."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from functools import partial
from traceback import clear_frames
from typing import TYPE_CHECKING, Any, final

import structlog
from greenlet import GreenletExit, greenlet

from models.dynamics import Relaxation, RelaxationBatch, StepControl, StopReason
from models.sampling import RunInterruptedError
from service.engine.fair_queue import Flow, Schedulable
from service.observability.progress import Progress

if TYPE_CHECKING:
    from service.engine.scheduler import Scheduler


@final
class Task(Schedulable, StepControl):
    """The work of one request, and its `StepControl`: each step is a chance for others to run.

    Attributes:
        alone: its rows never step with those of other tasks, so that sums are rounded alike.
        progresses: of its requests; each counts the steps of the relaxation.
        future: what the work returns or raises; cancelled if it is stopped before it begins.
        size: tokens and edges in memory at a time.
        turns_s: seconds of compute of the turns that have ended; of shared steps its share by
            tokens.
    """

    def __init__(
        self,
        work: Callable[[Task], Any],
        flow: Flow,
        scheduler: Scheduler,
        alone: bool,
        progress: Progress,
        size: int,
    ) -> None:
        self.flow, self.alone, self.progresses = flow, alone, [progress]
        self.size = size
        self.future: Future[Any] = Future()
        self.submitted = time.perf_counter()
        self.turns_s = 0.0
        self._turn_began: float | None = None
        self.waits = False
        self.failure: Exception | None = None
        self._work: Callable[[Task], Any] | None = work
        self._outcome: Callable[[], object] = self.future.cancel
        self._scheduler = scheduler
        self.requested_stop: StopReason | None = None
        self._greenlet: greenlet | None = None

    def __len__(self) -> int:
        return len(self.progresses)

    def count_step(self) -> None:
        for progress in self.progresses:
            progress.relaxation_steps += 1

    def stop_reason(self) -> StopReason | None:
        """Why it should stop; other tasks may have run when this returns."""
        self._scheduler.yield_turn(self)
        return self.requested_stop

    def drive(self, relaxation: Relaxation) -> None:
        """Step `relaxation`, in one batch with those of other tasks where that is possible."""
        self._scheduler.drive(self, relaxation)

    def stop(self, why: StopReason) -> None:
        """Stop within one step, from any thread; a task that has not begun drops its work now."""
        self.requested_stop = why
        if self._greenlet is None:
            self._work = None

    @property
    def ran_s(self) -> float:
        """Seconds of compute so far; any thread."""
        began = self._turn_began
        return self.turns_s + (0.0 if began is None else time.perf_counter() - began)

    def run_turn(self) -> bool:
        started = self._turn_began = time.perf_counter()
        if self._greenlet is None:
            self._greenlet = self._scheduler.take_greenlet()
            over = self._greenlet.switch(self)
        else:
            over = self._greenlet.switch()
        self._turn_began = None
        self.turns_s += time.perf_counter() - started
        if over:
            self._scheduler.spare = self._greenlet
            self._end()
            return False
        return not self.waits

    def run(self) -> None:
        """Run the work to its end, in its greenlet."""
        work, self._work = self._work, None
        if work is None or self.requested_stop is not None:
            return
        try:
            value = work(self)
        except GreenletExit:  # the greenlet was dropped
            raise
        except BaseException as error:
            clear_frames(error.__traceback__)  # which hold what it computed with
            del work  # as does this one
            self._outcome = partial(self.future.set_exception, error)
        else:
            self._outcome = partial(self.future.set_result, value)

    def fail(self, error: Exception) -> bool:
        self._scheduler.memory.release(self)
        if not self.future.done():
            self.future.set_exception(error)
        return False

    def require_wanted(self) -> None:
        """
        Raises:
            RunInterruptedError: its result is no longer needed.
        """
        if self.failure is not None:
            raise self.failure
        if self.requested_stop is not None:
            raise RunInterruptedError(self.requested_stop)

    def _end(self) -> None:
        """Free its memory, then set the future."""
        outcome, self._outcome, self._greenlet = self._outcome, self.future.cancel, None
        self._scheduler.memory.release(self)
        outcome()


@final
class SharedStepTask(Schedulable):
    """Relaxations of several tasks that step as one batch while the tasks wait."""

    def __init__(self, flow: Flow, scheduler: Scheduler, kind: Hashable) -> None:
        self.flow, self._scheduler, self._kind = flow, scheduler, kind
        scheduler.shared_tasks.setdefault((flow.kind, kind), []).append(self)
        self.relaxations = RelaxationBatch()
        self._runs: dict[int, tuple[Relaxation, Task]] = {}
        self._fresh: set[int] = set()  # their next step is the first one, which moves nothing

    def __len__(self) -> int:
        return max(sum(len(run) for _, run in self._runs.values()), 1)

    def add(self, relaxation: Relaxation, run: Task) -> None:
        self.relaxations.add(relaxation)
        self._runs[id(relaxation)] = relaxation, run
        if not relaxation.trace:
            self._fresh.add(id(relaxation))

    def run_turn(self) -> bool:
        for relaxation, run in list(self._runs.values()):
            if run.requested_stop is not None:
                self._part(relaxation)
        if self._runs:
            self._step()
        if not self._runs:
            self._disband()
        return bool(self._runs)

    def fail(self, error: Exception) -> bool:
        for relaxation, run in list(self._runs.values()):
            run.failure = error
            self._release(relaxation)
        self._disband()
        return False

    def _step(self) -> None:
        running, tokens = list(self._runs.values()), self.relaxations.num_tokens
        started = time.perf_counter()
        try:
            over = self.relaxations.step()
        except Exception as error:
            # For example out of memory: each goes on alone and may fail with an error of its own.
            # A relaxation that has drawn noise cannot draw it again, so it fails now.
            structlog.get_logger().exception("a batch failed; its requests go on one by one")
            for relaxation, run in running:
                run.failure = error if any(relaxation.noise_generators) else None
                self._part(relaxation)
            return
        seconds = time.perf_counter() - started
        self._scheduler.on_step(self.flow.kind, sum(r.rows for r, _ in running), seconds)
        for relaxation, run in running:
            run.turns_s += seconds * len(relaxation.x_ND) / tokens
            if id(relaxation) not in self._fresh:
                run.count_step()
        self._fresh.clear()
        for relaxation in over:
            self._release(relaxation)

    def _part(self, relaxation: Relaxation) -> None:
        """Take a relaxation out of the batch; its task goes on with it alone."""
        _, run = self._runs[id(relaxation)]
        try:
            self.relaxations.remove(relaxation)
        except Exception as error:
            run.failure = error
        self._release(relaxation)

    def _disband(self) -> None:
        """Forget this batch, for its model may be unloaded."""
        place, together = (self.flow.kind, self._kind), self._scheduler.shared_tasks
        together[place].remove(self)
        if not together[place]:
            del together[place]

    def _release(self, relaxation: Relaxation) -> None:
        _, run = self._runs.pop(id(relaxation))
        self._fresh.discard(id(relaxation))
        run.waits = False
        self._scheduler.queue.queue(run, first=True)
