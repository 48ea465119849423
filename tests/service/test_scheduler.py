"""Requests side by side: none is lost, doubled, mixed with another or kept longer than it lives."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from contextlib import contextmanager
from dataclasses import dataclass

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from models.architectures.et import ET
from models.contract import Architecture, Interrupt, Knobs
from models.dynamics import Relaxation, Solution, StopReason, company
from models.sampling import Interrupted
from service.engine.scheduler import _ABREAST, _SLICE_S, _SMALL, Run, Scheduler


class _Failed(Exception):  # noqa: N818
    pass


@dataclass
class _Posed:
    """A run, what it asks for, and what has been done to it."""

    run: Run
    network: Architecture
    item: object
    knobs: Knobs
    fails: bool
    stopped: bool = False


def _example(seed: int) -> tuple[Architecture, list]:
    network, items = ET.example(seed)
    return network.eval(), items


def _work(network: Architecture, item: object, knobs: Knobs, fails: bool) -> Callable:
    def work(interrupt: Interrupt) -> tuple[torch.Tensor, list[Solution]]:
        output = network.infer(network.pack([item]), [knobs], interrupt)
        if fails:
            raise _Failed
        return output.logits, output.solutions

    return work


class Engine(RuleBasedStateMachine):
    """Submit, cancel, fail, hold everything up, swap a model for another, and look at it all."""

    @initialize()
    def start(self) -> None:
        self.over: list[Run] = []
        self.scheduler = Scheduler(1, on_over=self.over.append)
        self.models = [_example(0), _example(1)]
        self.posed: list[_Posed] = []
        self.gate: threading.Event | None = None
        self.submitted = 0

    @rule(
        model=st.integers(0, 1),
        item=st.integers(0, 2),
        steps=st.integers(0, 30),
        noise=st.sampled_from([0.0, 0.1]),
        tolerance=st.sampled_from([0.0, 0.05]),
        alone=st.booleans(),
        job=st.booleans(),
        fails=st.sampled_from([False, False, False, True]),
    )
    def submit(self, model, item, steps, noise, tolerance, alone, job, fails) -> None:
        network, items = self.models[model]
        seed = len(self.posed)
        knobs = Knobs(steps=steps, noise=noise, tolerance=tolerance, seed=seed, deterministic=alone)
        work = _work(network, items[item], knobs, fails)
        self.submitted += 1
        run = self.scheduler.submit(work, (model, job), 0.25 if job else 1.0, alone)
        self.posed.append(_Posed(run, network, items[item], knobs, fails))

    @precondition(lambda self: self.posed)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        posed = data.draw(st.sampled_from(self.posed))
        posed.stopped = True
        posed.run.stop(data.draw(st.sampled_from([StopReason.CANCELLED, StopReason.DEADLINE])))

    @rule(model=st.integers(0, 1), seed=st.integers(2, 5))
    def swap(self, model: int, seed: int) -> None:
        """What is under way goes on with the weights it began with."""
        self.models[model] = _example(seed)

    @precondition(lambda self: self.gate is None)
    @rule()
    def hold(self) -> None:
        """The thread is busy: what comes now will begin together."""
        self.gate = threading.Event()
        self.submitted += 1
        self.scheduler.submit(lambda interrupt, gate=self.gate: gate.wait(30), "gate")

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
        ended = [id(run) for run in self.over]
        assert len(ended) == len(set(ended))
        assert len(ended) == self.submitted
        assert all(not f.queue and not f.together for f in self.scheduler._flows.values())
        held = [weakref.ref(run) for run in self.over]
        self.over.clear()
        gc.collect()
        assert not any(ref() for ref in held)

    def _check(self, posed: _Posed) -> None:
        assert posed.run.future.done()
        try:
            logits, solutions = posed.run.future.result()
        except CancelledError:
            assert posed.stopped
            return
        except Interrupted:
            assert posed.stopped
            return
        except _Failed:
            assert posed.fails
            return
        assert not posed.fails
        reasons = {reason for s in solutions for reason in s.stop_reasons}
        if reasons & {StopReason.CANCELLED, StopReason.DEADLINE}:
            assert posed.stopped
            return
        alone = posed.network.infer(posed.network.pack([posed.item]), [posed.knobs])
        rounded = 0.0 if posed.knobs.deterministic else 1e-4
        close = {"rtol": rounded, "atol": rounded}
        torch.testing.assert_close(logits, alone.logits, **close)
        for mine, theirs in zip(solutions, alone.solutions, strict=True):
            assert mine.steps_R.tolist() == theirs.steps_R.tolist()
            assert mine.stop_reasons == theirs.stop_reasons
            torch.testing.assert_close(mine.x_ND, theirs.x_ND, **close)


TestEngine = Engine.TestCase
TestEngine.settings = settings(max_examples=10, stateful_step_count=30, deadline=None)


@pytest.mark.slow
class TestEngineAtLength(TestEngine):
    settings = settings(max_examples=100, stateful_step_count=30, deadline=None)


@pytest.fixture
def scheduler():
    scheduler = Scheduler(1)
    yield scheduler
    scheduler.close()


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the machine, who begins joins the others before they step."""
    monkeypatch.setattr("service.engine.scheduler._FIRST_S", 10.0)


@contextmanager
def held(scheduler: Scheduler) -> Iterator[None]:
    """What is submitted meanwhile begins together."""
    gate = threading.Event()
    scheduler.submit(lambda interrupt: gate.wait(30), "gate")
    try:
        yield
    finally:
        gate.set()


def _chain(steps: int, done: list[str], name: str, seconds: float = 2 * _SLICE_S) -> Callable:
    """Work whose every step is a turn."""

    def work(interrupt: Interrupt) -> None:
        for _ in range(steps):
            if interrupt() is not None:
                return
            done.append(name)
            time.sleep(seconds)

    return work


def test_the_short_do_not_wait_for_the_long(scheduler: Scheduler) -> None:
    done: list[str] = []
    with held(scheduler):
        long = scheduler.submit(_chain(100, done, "long"), "sample")
        scheduler.submit(_chain(3, done, "short"), "score").future.add_done_callback(
            lambda _: long.stop(StopReason.CANCELLED)
        )
    long.future.result(30)
    assert done.count("short") == 3
    assert done.count("long") <= 8


def test_within_a_flow_all_take_turns(scheduler: Scheduler) -> None:
    done: list[str] = []
    with held(scheduler):
        runs = [scheduler.submit(_chain(30, done, name), "one") for name in "abc"]
    for run in runs:
        run.future.result(30)
    halfway = [done[:45].count(name) for name in "abc"]
    assert min(halfway) >= 5  # 15, were sleep exact


def test_within_a_flow_turns_are_timed(scheduler: Scheduler) -> None:
    """Who takes small steps gets as much time as who takes large ones, so more turns."""
    done: list[str] = []
    with held(scheduler):
        large = scheduler.submit(_chain(20, done, "large", 0.02), "one")
        small = scheduler.submit(_chain(20, done, "small", 0.001), "one")
        small.future.add_done_callback(lambda _: large.stop(StopReason.CANCELLED))
    large.future.result(30)
    assert done.count("small") == 20
    assert done.count("large") <= 4


def test_a_job_gets_its_share_and_no_more(scheduler: Scheduler) -> None:
    done: list[str] = []
    with held(scheduler):
        job = scheduler.submit(_chain(200, done, "job"), ("m", True), 0.25)
        scheduler.submit(_chain(24, done, "user"), ("m", False)).future.add_done_callback(
            lambda _: job.stop(StopReason.CANCELLED)
        )
    job.future.result(30)
    assert done.count("user") == 24
    assert 2 <= done.count("job") <= 10  # a quarter of 24, as far as sleep is exact


def test_what_is_large_waits_for_room(scheduler: Scheduler) -> None:
    """And what is small does not; whatever fails or is cancelled leaves its room to others."""
    inside, most, done = [0], [0], list[str]()

    def work(name: str, fails: bool = False) -> Callable:
        def in_memory(interrupt: Interrupt) -> None:
            inside[0] += 1
            most[0] = max(most[0], inside[0])
            try:
                for _ in range(15):
                    if interrupt() is None:
                        time.sleep(2 * _SLICE_S)
                if fails:
                    raise _Failed
            finally:
                inside[0] -= 1
            done.append(name)

        return in_memory

    with held(scheduler):
        large = [
            scheduler.submit(work(f"large {place}", place == 1), place, size=size)
            for place, size in enumerate([_ABREAST // 2] * 5 + [2 * _ABREAST, _ABREAST // 2])
        ]
        small = scheduler.submit(_chain(3, done, "small"), "small", size=_SMALL)
    large[3].stop(StopReason.CANCELLED)
    small.future.result(30)
    assert not [name for name in done if name == "large 5"]
    for place, run in enumerate(large):
        if place == 1:
            with pytest.raises(_Failed):
                run.future.result(30)
        elif place != 3:
            run.future.result(30)
    assert most[0] == 2
    assert done[-2:] == ["large 5", "large 6"]
    assert done.index("small") < done.index("large 2")


@pytest.mark.usefixtures("patient")
def test_rows_step_together(scheduler: Scheduler) -> None:
    network, items = _example(0)
    calls = []
    for block in network.blocks_in_order():
        block.energy.register_forward_hook(lambda *_: calls.append(1))
    with held(scheduler):
        knobs = Knobs(steps=9)
        runs = [scheduler.submit(_work(network, items[0], knobs, False)) for _ in range(20)]
    for run in runs:
        run.future.result(30)
    blocks = len(network.blocks_in_order())
    # As many as of one of them, more where some come late; one by one there were 20 times as many.
    assert blocks * 10 <= len(calls) < blocks * 50


def _fails_when(monkeypatch: pytest.MonkeyPatch, place: object, name: str, when: Callable) -> None:
    works = getattr(place, name)

    def may_fail(*args: object) -> object:
        if when(*args):
            raise MemoryError
        return works(*args)

    monkeypatch.setattr(place, name, may_fail)


FAILURES = {
    "no room to join": (company, "_joined", lambda parts: len(parts) > 1),
    "no room to step": (Relaxation, "step", lambda batch: batch.rows > 1),
}


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("failure", FAILURES)
@pytest.mark.parametrize("steps", [(5, 5, 5), (20, 5, 5)], ids=["together", "one later"])
def test_a_batch_that_fails_falls_apart(
    scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch, failure: str, steps: tuple[int, ...]
) -> None:
    """What is wrong with one of them is its own affair, and the others get what they would."""
    network, items = _example(0)
    _fails_when(monkeypatch, *FAILURES[failure])
    with held(scheduler):
        runs = [
            scheduler.submit(_work(network, items[0], Knobs(steps=count), fails))
            for count, fails in zip(steps, (False, True, False), strict=True)
        ]
    with pytest.raises(_Failed):
        runs[1].future.result(30)
    for place in (0, 2):
        logits, solutions = runs[place].future.result(30)
        alone = network.infer(network.pack(items[:1]), [Knobs(steps=steps[place])])
        torch.testing.assert_close(logits, alone.logits, rtol=1e-4, atol=1e-4)
        for mine, theirs in zip(solutions, alone.solutions, strict=True):
            assert [m.step for m in mine.trace] == [m.step for m in theirs.trace]


@pytest.mark.usefixtures("patient")
def test_a_row_with_noise_fails_with_its_batch(
    scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has drawn, and cannot draw the same again: no answer rather than another one."""
    network, items = _example(0)
    _fails_when(monkeypatch, *FAILURES["no room to step"])
    with held(scheduler):
        runs = [
            scheduler.submit(_work(network, items[0], Knobs(steps=5, noise=noise), False))
            for noise in (0.0, 0.1)
        ]
    runs[0].future.result(30)
    with pytest.raises(MemoryError):
        runs[1].future.result(30)


def test_the_thread_outlives_whatever_watches_it() -> None:
    def broken(*args: object) -> None:
        raise ValueError

    scheduler = Scheduler(1, on_step=broken)
    network, items = _example(0)
    run = scheduler.submit(_work(network, items[0], Knobs(steps=3), False))
    with pytest.raises(ValueError, match=r"^$"):
        run.future.result(30)
    assert scheduler.submit(lambda interrupt: 7).future.result(30) == 7
    scheduler.close()


def test_flows_come_while_others_run(scheduler: Scheduler) -> None:
    runs = [
        scheduler.submit(lambda interrupt: [interrupt() for _ in range(50)], place)
        for place in range(1000)
    ]
    for run in runs:
        run.future.result(30)


def test_what_is_over_is_let_go_without_a_collector(scheduler: Scheduler) -> None:
    class Large:
        pass

    refs: list[weakref.ref] = []

    def work(interrupt: Interrupt) -> None:
        large = Large()
        refs.append(weakref.ref(large))
        raise _Failed

    gc.disable()
    try:
        run = scheduler.submit(work)
        with pytest.raises(_Failed):
            run.future.result(30)
        assert refs[0]() is None
    finally:
        gc.enable()


def test_what_has_not_begun_is_let_go_at_once(scheduler: Scheduler) -> None:
    class Large:
        pass

    large = Large()
    ref = weakref.ref(large)
    with held(scheduler):
        run = scheduler.submit(lambda interrupt, large=large: None)
        del large
        assert ref() is not None
        run.stop(StopReason.CANCELLED)
        gc.collect()
        assert ref() is None
    with pytest.raises(CancelledError):
        run.future.result(30)


def test_one_after_the_other_where_that_is_asked_for() -> None:
    scheduler, done = Scheduler(1, steps=False), list[str]()
    with held(scheduler):
        runs = [scheduler.submit(_chain(3, done, name), name) for name in "ab"]
    for run in runs:
        run.future.result(30)
    scheduler.close()
    assert done == [*"aaabbb"]
