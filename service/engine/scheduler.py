"""Tasks take turns on one compute thread, one step of their dynamics at a time.

The work of a task runs in a greenlet. It calls its `StepControl` before each step, where the
scheduler may switch to another task. Relaxations of several tasks on the same energy step together
as one batch.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from traceback import clear_frames
from typing import Any, final

import structlog
import torch
from greenlet import GreenletExit, getcurrent, greenlet

from models.dynamics import (
    Relaxation,
    RelaxationBatch,
    StepControl,
    StopReason,
    batch_key,
    run_to_completion,
    should_compact,
)
from models.sampling import RunInterruptedError
from service.engine.fair_queue import FairQueue, Flow, Schedulable
from service.engine.memory_budget import MemoryBudget
from service.observability.progress import Progress
from service.supervisor import Supervisor

StepObserver = Callable[[Hashable, int, float], object]

_SLICE_S = 0.0005
"""A turn is at least one step, and as many as fit into this time, for switching costs time."""
_FIRST_S = 0.005
"""The first turn of a task, longer so that it soon reaches a relaxation that can be batched."""
_NICE = 5
"""Niceness of the compute thread above that of the process, so that requests are read, and refused,
before others are computed where cores are few. Threads that torch starts from it inherit it."""
_ROOM = 1 << 14
"""Maximum tokens of one batch; a larger one is no cheaper per token and delays others."""


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
        """Free its memory and account for it, then set the future."""
        outcome, self._outcome, self._greenlet = self._outcome, self.future.cancel, None
        self._scheduler.memory.release(self)
        self._scheduler.on_end(self)
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


@final
class Scheduler:
    """One thread that computes.

    Args:
        threads: of torch for a step; all cores if None.
        steps: False runs each task to its end before the next one begins.
        on_over: called with each task that has ended, on the compute thread.
        on_step: called after each step of a batch with its flow, number of rows and seconds.
    """

    def __init__(
        self,
        threads: int | None,
        steps: bool = True,
        on_over: Callable[[Task], object] = lambda run: None,
        on_step: StepObserver = lambda kind, rows, seconds: None,
        supervisor: Supervisor | None = None,
    ) -> None:
        self.on_end, self.on_step, self._steps = on_over, on_step, steps
        self.queue = FairQueue()
        self.memory = MemoryBudget[Task](self.queue.queue)
        self.shared_tasks: dict[
            tuple[Hashable, Hashable], list[SharedStepTask]
        ] = {}  # by flow and company
        self._inbox: deque[Task] = deque()
        self._changed = threading.Condition()
        self._closing = False
        self._turn_s = 0.0  # when the turn at hand began
        self._hub: greenlet | None = None
        self.spare: greenlet | None = None  # whose run is over
        self._supervisor = supervisor or Supervisor()
        self._thread = threading.Thread(
            target=self._loop, args=(threads,), name="compute", daemon=True
        )
        self._thread.start()

    def submit(
        self,
        work: Callable[[Task], Any],
        flow: Hashable = None,
        weight: float = 1.0,
        alone: bool = False,
        progress: Progress | None = None,
        size: int = 0,
        owner: str = "",
    ) -> Task:
        """Queue `work`. Any thread."""
        with self._changed:
            place = self.queue.flow(flow, weight, owner)
            run = Task(work, place, self, alone, progress or Progress(), size)
            self._inbox.append(run)
            self._changed.notify()
        return run

    def close(self) -> None:
        """Finish all tasks, then end the thread."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join()

    def yield_turn(self, run: Task) -> None:
        """Switch to other tasks if there are any and this turn is over. Called inside `run`."""
        if not (self._steps and (self.queue or self._inbox)):
            return
        lasted = time.perf_counter() - self._turn_s
        if lasted >= (_SLICE_S if run.turns_s else _FIRST_S):
            self._switch()

    def drive(self, run: Task, relaxation: Relaxation) -> None:
        """Take all steps of a relaxation, in a batch if there are others. Called inside `run`."""
        run.require_wanted()
        kind = batch_key(relaxation)
        tokens = len(relaxation.x_ND)
        if self._steps and not run.alone and kind is not None and tokens < _ROOM:
            self._lead(run, relaxation)
            run.require_wanted()
            if not relaxation.moving_rows:
                return
            tasks = self.shared_tasks.get((run.flow.kind, kind), [])
            fitting = (t for t in tasks if t.relaxations.num_tokens + tokens <= _ROOM)
            together = next(fitting, None) or SharedStepTask(run.flow, self, kind)
            together.add(relaxation, run)
            self.queue.queue(together)
            run.waits = True
            self._switch()
            run.require_wanted()
        if relaxation.moving_rows:
            run_to_completion(relaxation, partial(_count_step, run))

    def _lead(self, run: Task, relaxation: Relaxation) -> None:
        """Step a relaxation alone while no other task waits and few of its rows have stopped.

        Joining a batch costs a small relaxation as much as half of its steps.
        """
        while not (self.queue or self._inbox or run.requested_stop or should_compact(relaxation)):
            begun, started = bool(relaxation.trace), time.perf_counter()
            relaxation.step()
            self.on_step(run.flow.kind, relaxation.rows, time.perf_counter() - started)
            if begun:
                run.count_step()

    def take_greenlet(self) -> greenlet:
        """Return the spare greenlet, or a new one, whose stack must be allocated first."""
        found, self.spare = self.spare, None
        if found is None:
            found = greenlet(self._runs)
            found.switch()  # to where it waits; the arguments of its first call stay referenced
        return found

    def _runs(self) -> None:
        """Run tasks one after another; return to the hub after each."""
        assert self._hub is not None
        while True:
            run: Task = self._hub.switch(True)
            run.run()
            del run  # no reference to a finished task

    def _switch(self) -> None:
        assert self._hub is not None
        self._hub.switch(False)

    def _loop(self, threads: int | None) -> None:
        if sys.platform == "linux":  # where threads have priorities of their own
            # The call, or a lower niceness than the current one, may be forbidden.
            with suppress(OSError):
                own = os.getpriority(os.PRIO_PROCESS, 0)
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), own + _NICE)
        if threads:
            torch.set_num_threads(threads)
        self._hub = getcurrent()
        # Set once for the thread: greenlets would reset each other. A tenth faster on small graphs
        # than `no_grad`.
        with torch.inference_mode():
            self._supervisor.run_in_thread("compute", self._run_turns)
        self.spare = None  # it ends on this thread

    def _run_turns(self) -> None:
        while (entity := self._next()) is not None:
            try:
                self._turn(entity)
            except Exception as error:
                entity.fail(error)
                raise
            del entity  # no reference while the queue is empty

    def _turn(self, entity: Schedulable) -> None:
        requests, self._turn_s = len(entity), time.perf_counter()
        try:
            again = entity.run_turn()
        except Exception as error:  # whatever it is, the thread must go on
            structlog.get_logger().exception("a turn failed")
            again = entity.fail(error)
        self.queue.charge(entity, requests, time.perf_counter() - self._turn_s)
        if again:
            self.queue.queue(entity)

    def _next(self) -> Schedulable | None:
        """The next to have a turn; None once the scheduler is closed and idle."""
        with self._changed:
            while not (self._inbox or self.queue or self._closing):
                self._changed.wait()
            while self._inbox:
                run = self._inbox.popleft()
                try:
                    self.memory.acquire(run)
                except Exception as error:
                    run.fail(error)
                    raise
            return self.queue.take()


def _count_step(run: Task) -> StopReason | None:
    """The stop reason of `run`; without one, count the step that follows."""
    why = run.stop_reason()
    if why is None:
        run.count_step()
    return why
