"""Requests side by side: none is lost, doubled, mixed with another or kept longer than it lives."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import CancelledError, Future
from contextlib import contextmanager
from dataclasses import dataclass

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from models.base import Architecture, DynamicsParams
from models.dynamics import StopReason
from models.sampling import RunInterruptedError
from service.engine.memory_budget import BUDGET_TOKENS
from service.engine.scheduler import Scheduler
from service.engine.tasks import Task
from tests.support.scheduler_work import Failed, example, work_of

_THREADS = 1


@contextmanager
def _as_many_threads() -> Iterator[None]:
    """As the scheduler has: among others sums are shared out otherwise, and so rounded."""
    before = torch.get_num_threads()
    torch.set_num_threads(_THREADS)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@dataclass
class _Posed:
    """A run, what it asks for, and what has been done to it."""

    run: Task
    network: Architecture
    item: object
    params: DynamicsParams
    fails: bool
    stopped: bool = False


class Engine(RuleBasedStateMachine):
    """Submit, cancel, fail, hold everything up, swap a model for another, and look at it all."""

    @initialize()
    def start(self) -> None:
        self.over: list[Future] = []
        self.runs: list[weakref.ref] = []
        self.scheduler = Scheduler(_THREADS)
        self.models = [example(0), example(1)]
        self.posed: list[_Posed] = []
        self.gate: threading.Event | None = None

    @rule(
        model=st.integers(0, 1),
        item=st.integers(0, 2),
        steps=st.integers(0, 30),
        noise=st.sampled_from([0.0, 0.1]),
        tolerance=st.sampled_from([0.0, 0.05]),
        solver=st.sampled_from(["euler", "nesterov", "descent"]),
        alone=st.booleans(),
        job=st.booleans(),
        fails=st.sampled_from([False, False, False, True]),
        size=st.sampled_from([0, 0, BUDGET_TOKENS // 2, 2 * BUDGET_TOKENS]),
    )
    def submit(self, model, item, steps, noise, tolerance, solver, alone, job, fails, size) -> None:
        network, items = self.models[model]
        seed = len(self.posed)
        params = DynamicsParams(
            steps=steps,
            noise=noise,
            tolerance=tolerance,
            seed=seed,
            solver="euler" if noise else solver,
            deterministic=alone,
        )
        work = work_of(network, items[item], params, fails)
        weight = 0.25 if job else 1.0
        run = self._submit(work, (model, job), weight, alone, size)
        self.posed.append(_Posed(run, network, items[item], params, fails))

    @precondition(lambda self: self.posed)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        posed = data.draw(st.sampled_from(self.posed))
        posed.stopped = True
        posed.run.stop(data.draw(st.sampled_from([StopReason.CANCELLED, StopReason.DEADLINE])))

    @rule(model=st.integers(0, 1), seed=st.integers(2, 5))
    def swap(self, model: int, seed: int) -> None:
        """What is under way goes on with the weights it began with."""
        self.models[model] = example(seed)

    @precondition(lambda self: self.gate is None)
    @rule()
    def hold(self) -> None:
        """The thread is busy: what comes now will begin together."""
        self.gate = threading.Event()
        self._submit(lambda control, gate=self.gate: gate.wait(30), "gate")

    @precondition(lambda self: self.gate is not None)
    @rule()
    def release(self) -> None:
        assert self.gate is not None
        self.gate.set()
        self.gate = None

    @rule()
    def wait(self) -> None:
        time.sleep(0.002)

    def teardown(self) -> None:
        if self.gate is not None:
            self.gate.set()
        self.scheduler.close()
        while self.posed:
            self._check(self.posed.pop())
        assert len(self.over) == len(self.runs)
        assert len(set(map(id, self.over))) == len(self.over)
        assert not len(self.scheduler.queue)
        assert not self.scheduler.shared_tasks
        assert not self.scheduler.memory._taken
        assert not self.scheduler.memory._waiting
        self.over.clear()
        gc.collect()
        assert not any(ref() for ref in self.runs)

    def _submit(
        self,
        work: Callable,
        flow: Hashable,
        weight: float = 1.0,
        alone: bool = False,
        size: int = 0,
    ) -> Task:
        run = self.scheduler.submit(work, flow, weight, alone, size=size)
        run.future.add_done_callback(self.over.append)
        self.runs.append(weakref.ref(run))
        return run

    def _check(self, posed: _Posed) -> None:
        assert posed.run.future.done()
        try:
            logits, solutions = posed.run.future.result()
        except CancelledError:
            assert posed.stopped
            return
        except RunInterruptedError:
            assert posed.stopped
            return
        except Failed:
            assert posed.fails
            return
        assert not posed.fails
        reasons = {reason for s in solutions for reason in s.stop_reasons}
        if reasons & {StopReason.CANCELLED, StopReason.DEADLINE}:
            assert posed.stopped
            return
        with _as_many_threads():
            alone = posed.network.infer(posed.network.pack([posed.item]), [posed.params])
        rounded = 0.0 if posed.params.deterministic else 1e-4
        close = {"rtol": rounded, "atol": rounded}
        torch.testing.assert_close(logits, alone.logits, **close)
        for mine, theirs in zip(solutions, alone.solutions, strict=True):
            assert mine.steps_R.tolist() == theirs.steps_R.tolist()
            assert mine.stop_reasons == theirs.stop_reasons
            torch.testing.assert_close(mine.x_ND, theirs.x_ND, **close)


TestEngine = Engine.TestCase
TestEngine.settings = settings(max_examples=5, stateful_step_count=30, deadline=None)


@pytest.mark.slow
class TestEngineAtLength(TestEngine):
    settings = settings(max_examples=100, stateful_step_count=30, deadline=None)
