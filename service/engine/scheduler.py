"""Tasks take turns on one compute thread, one step of their dynamics at a time.

The work of a task runs in a greenlet. It calls its `StepControl` before each step, where the
scheduler may switch to another task. Relaxations of several tasks on the same energy step together
as one batch.
"""

from __future__ import annotations

import math
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable
from contextlib import suppress
from functools import partial
from typing import Any, final

import structlog
import torch
from greenlet import getcurrent, greenlet

from models.dynamics import (
    Relaxation,
    StopReason,
    batch_key,
    run_to_completion,
    should_compact,
)
from service.engine.fair_queue import FairQueue, Flow, Schedulable
from service.engine.memory_budget import MemoryBudget
from service.engine.tasks import SharedStepTask, Task
from service.observability.progress import Progress
from service.supervisor import Supervisor

StepObserver = Callable[[Hashable, int, float], object]

_SLICE_S = 0.0005
"""A turn is at least one step, and as many as fit into this time, for switching costs time."""
_FIRST_S = 0.005
"""The first turn of a task, longer so that it soon reaches a relaxation that can be batched."""
NICENESS = 5
"""Niceness of the compute thread above that of the process, so that requests are read, and refused,
before others are computed where cores are few. Threads that torch starts from it inherit it."""
_RECENT_S = 1.0
"""A scheduler that had a turn within this time may have another one any moment."""
_ROOM = 1 << 14
"""Maximum tokens of one batch; a larger one is no cheaper per token and delays others."""


@final
class Scheduler:
    """One thread that computes.

    Args:
        threads: of torch for a step; all cores if None.
        steps: False runs each task to its end before the next one begins.
        on_step: called after each step of a batch with its flow, number of rows and seconds.
        name: of the thread, for the supervisor.
        niceness: of the thread, beyond that of the process.
        neighbor: leaves a core to this scheduler while it computes. Its small operations end when
            all of their threads have, so one that has to wait for a core makes them wait too.
    """

    def __init__(
        self,
        threads: int | None,
        steps: bool = True,
        on_step: StepObserver = lambda kind, rows, seconds: None,
        supervisor: Supervisor | None = None,
        name: str = "compute",
        niceness: int = NICENESS,
        neighbor: Scheduler | None = None,
    ) -> None:
        self.on_step, self._steps = on_step, steps
        self.queue = FairQueue()
        self.memory = MemoryBudget[Task](self.queue.queue)
        self.shared_tasks: dict[
            tuple[Hashable, Hashable], list[SharedStepTask]
        ] = {}  # by flow and company
        self._inbox: deque[Task] = deque()
        self._changed = threading.Condition()
        self._closing = False
        self._turn_s = -math.inf  # when the turn at hand, or the last one, began
        self._neighbor, self._num_threads = neighbor, 0  # of torch, while this has a turn
        self._hub: greenlet | None = None
        self.spare: greenlet | None = None  # whose run is over
        self._supervisor = supervisor or Supervisor()
        self._thread = threading.Thread(
            target=self._loop, args=(threads, niceness), name=name, daemon=True
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
        place = Flow(flow, weight, owner)
        run = Task(work, place, self, alone, progress or Progress(), size)
        with self._changed:  # the queue is of the compute thread alone
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

    def _loop(self, threads: int | None, niceness: int) -> None:
        if sys.platform == "linux":  # where threads have priorities of their own
            # The call, or a lower niceness than the current one, may be forbidden.
            with suppress(OSError):
                own = os.getpriority(os.PRIO_PROCESS, 0)
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), own + niceness)
        if threads:
            torch.set_num_threads(threads)
        self._num_threads = torch.get_num_threads()
        self._hub = getcurrent()
        # Set once for the thread: greenlets would reset each other. A tenth faster on small graphs
        # than `no_grad`.
        with torch.inference_mode():
            self._supervisor.run_in_thread(self._thread.name, self._run_turns)
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
        if self._neighbor is not None:
            is_beside = self._turn_s - self._neighbor._turn_s < _RECENT_S
            threads = max(self._num_threads - is_beside, 1)
            if threads != torch.get_num_threads():
                torch.set_num_threads(threads)
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
