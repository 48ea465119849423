"""Who gets the thread, who steps with whom, and what becomes of what fails."""

from __future__ import annotations

import gc
import os
import queue
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, wait
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
import torch

from models.base import DynamicsParams, StepControl
from models.dynamics import Relaxation, StopReason, batch
from service.engine.fair_queue import FairQueue, Flow, Schedulable
from service.engine.memory_budget import BUDGET_TOKENS, SMALL
from service.engine.scheduler import _SLICE_S, Scheduler, Task
from tests.support.scheduler_work import Failed, example, work_of


@pytest.fixture
def scheduler():
    scheduler = Scheduler(1)
    yield scheduler
    scheduler.close()


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the machine, who begins joins the others before they step."""
    monkeypatch.setattr("service.engine.scheduler._FIRST_S", 10.0)


class Chain(Schedulable):
    """What only waits for turns."""

    def __init__(self, flow: Flow) -> None:
        self.flow = flow

    def __len__(self) -> int:
        return 1

    def run_turn(self) -> bool:
        return True

    def fail(self, error: Exception) -> bool:
        raise error


@contextmanager
def held(scheduler: Scheduler) -> Iterator[None]:
    """What is submitted meanwhile begins together."""
    gate = threading.Event()
    scheduler.submit(lambda control: gate.wait(30), "gate")
    try:
        yield
    finally:
        gate.set()


def _chain(steps: int, done: list[str], name: str, seconds: float = 2 * _SLICE_S) -> Callable:
    """Work whose every step is a turn."""

    def work(control: StepControl) -> None:
        for _ in range(steps):
            if control.stop_reason() is not None:
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
        def in_memory(control: StepControl) -> None:
            inside[0] += 1
            most[0] = max(most[0], inside[0])
            try:
                for _ in range(15):
                    if control.stop_reason() is None:
                        time.sleep(2 * _SLICE_S)
                if fails:
                    raise Failed
            finally:
                inside[0] -= 1
            done.append(name)

        return in_memory

    with held(scheduler):
        large = [
            scheduler.submit(work(f"large {place}", place == 1), place, size=size)
            for place, size in enumerate(
                [BUDGET_TOKENS // 2] * 5 + [2 * BUDGET_TOKENS, BUDGET_TOKENS // 2]
            )
        ]
        small = scheduler.submit(_chain(3, done, "small"), "small", size=SMALL)
    large[3].stop(StopReason.CANCELLED)
    small.future.result(30)
    assert not [name for name in done if name == "large 5"]
    for place, run in enumerate(large):
        if place == 1:
            with pytest.raises(Failed):
                run.future.result(30)
        elif place != 3:
            run.future.result(30)
    assert most[0] == 2
    assert done[-2:] == ["large 5", "large 6"]
    assert done.index("small") < done.index("large 2")


def counted(energy: Any, calls: list[int]) -> None:
    """Add to `calls` whenever its field is asked."""
    field_of = energy.prepare

    def field() -> Any:
        found = field_of()
        return lambda *args: (calls.append(1), found(*args))[1]

    energy.prepare = field


@pytest.mark.usefixtures("patient")
def test_rows_step_together(scheduler: Scheduler) -> None:
    network, items = example(0)
    calls = []
    for block in network.blocks_in_order():
        counted(block.energy, calls)
    with held(scheduler):
        params = DynamicsParams(steps=9)
        runs = [scheduler.submit(work_of(network, items[0], params, False)) for _ in range(20)]
    for run in runs:
        run.future.result(30)
    blocks = len(network.blocks_in_order())
    # As many as of one of them, more where some come late; one by one there were 20 times as many.
    assert blocks * 10 <= len(calls) < blocks * 50


def test_who_comes_later_steps_with_who_was_by_itself() -> None:
    network, items = example(0)
    later = queue.SimpleQueue[Task]()
    rows: list[int] = []

    def on_step(kind: object, count: int, seconds: float) -> None:
        rows.append(count)
        if len(rows) == 5:  # in the midst of the first block of the first
            later.put(scheduler.submit(work_of(network, items[0], DynamicsParams(steps=9), False)))

    scheduler = Scheduler(1, on_step=on_step)
    try:
        first = scheduler.submit(work_of(network, items[0], DynamicsParams(steps=40), False))
        for run, steps in ((first, 40), (later.get(timeout=30), 9)):
            logits, solutions = run.future.result(30)
            alone = network.infer(network.pack(items[:1]), [DynamicsParams(steps=steps)])
            torch.testing.assert_close(logits, alone.logits, rtol=1e-4, atol=1e-4)
            assert [s.steps_R.tolist() for s in solutions] == [[steps]] * len(solutions)
            assert [len(s.trace) for s in solutions] == [steps + 1] * len(solutions)
    finally:
        scheduler.close()
    [progress] = first.progresses
    assert progress.relaxation_steps == 40 * len(solutions)
    assert rows[:5] == [1] * 5
    assert 2 in rows


def test_what_was_had_while_nobody_waited_is_free() -> None:
    turns = FairQueue()
    led, other = Chain(turns.flow("led", 0.25)), Chain(turns.flow("other", 1.0))
    turns.queue(led)
    assert turns.take() is led
    turns.charge(led, 1, 60.0)  # by itself, for a minute
    taken = []
    turns.queue(other)
    turns.queue(led)
    for _ in range(10):
        entity = turns.take()
        taken.append(entity)
        turns.charge(entity, 1, 0.001)
        turns.queue(entity)
    assert led in taken


def test_by_itself_too_what_has_stopped_is_dropped(
    scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    network, items = example(0)
    looked, step = [], Relaxation.step

    def counted_step(relaxation: Relaxation) -> None:
        looked.append(relaxation.rows)
        step(relaxation)

    monkeypatch.setattr(Relaxation, "step", counted_step)
    params = [DynamicsParams(steps=2)] * 15 + [DynamicsParams(steps=60)]
    scheduler.submit(
        lambda control: network.infer(network.pack([items[0]] * 16), params, control)
    ).future.result(30)
    assert sum(looked) < len(network.blocks_in_order()) * (16 * 5 + 60)


def _fails_when(monkeypatch: pytest.MonkeyPatch, place: object, name: str, when: Callable) -> None:
    works = getattr(place, name)

    def may_fail(*args: object) -> object:
        if when(*args):
            raise MemoryError
        return works(*args)

    monkeypatch.setattr(place, name, may_fail)


FAILURES = {
    "no room to join": (batch, "_joined", lambda parts: len(parts) > 1),
    "no room to step": (Relaxation, "step", lambda batch: batch.rows > 1),
}


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("failure", FAILURES)
@pytest.mark.parametrize("steps", [(5, 5, 5), (20, 5, 5)], ids=["together", "one later"])
def test_a_batch_that_fails_falls_apart(
    scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch, failure: str, steps: tuple[int, ...]
) -> None:
    """What is wrong with one of them is its own affair, and the others get what they would."""
    network, items = example(0)
    _fails_when(monkeypatch, *FAILURES[failure])
    with held(scheduler):
        runs = [
            scheduler.submit(work_of(network, items[0], DynamicsParams(steps=count), fails))
            for count, fails in zip(steps, (False, True, False), strict=True)
        ]
    with pytest.raises(Failed):
        runs[1].future.result(30)
    for place in (0, 2):
        logits, solutions = runs[place].future.result(30)
        alone = network.infer(network.pack(items[:1]), [DynamicsParams(steps=steps[place])])
        torch.testing.assert_close(logits, alone.logits, rtol=1e-4, atol=1e-4)
        for mine, theirs in zip(solutions, alone.solutions, strict=True):
            assert [m.step for m in mine.trace] == [m.step for m in theirs.trace]


@pytest.mark.usefixtures("patient")
def test_a_row_with_noise_fails_with_its_batch(
    scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has drawn, and cannot draw the same again: no answer rather than another one."""
    network, items = example(0)
    _fails_when(monkeypatch, *FAILURES["no room to step"])
    with held(scheduler):
        runs = [
            scheduler.submit(
                work_of(network, items[0], DynamicsParams(steps=5, noise=noise), False)
            )
            for noise in (0.0, 0.1)
        ]
    runs[0].future.result(30)
    with pytest.raises(MemoryError):
        runs[1].future.result(30)


def test_the_thread_outlives_whatever_watches_it() -> None:
    def broken(*args: object) -> None:
        raise ValueError

    scheduler = Scheduler(1, on_step=broken)
    network, items = example(0)
    run = scheduler.submit(work_of(network, items[0], DynamicsParams(steps=3), False))
    with pytest.raises(ValueError, match=r"^$"):
        run.future.result(30)
    assert scheduler.submit(lambda control: 7).future.result(30) == 7
    scheduler.close()


@pytest.mark.skipif(sys.platform != "linux", reason="threads have no priority of their own")
def test_it_is_nicer_than_its_process(scheduler: Scheduler) -> None:
    def niceness(_: StepControl) -> int:
        return os.getpriority(os.PRIO_PROCESS, 0)

    own = os.getpriority(os.PRIO_PROCESS, 0)
    assert scheduler.submit(niceness).future.result(30) == min(own + 5, 19)


def test_it_computes_where_it_may_not_be_nicer(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*_: int) -> None:
        raise PermissionError

    monkeypatch.setattr("os.setpriority", forbidden)
    scheduler = Scheduler(1)
    assert scheduler.submit(lambda _: "done").future.result(30) == "done"
    scheduler.close()


def test_flows_come_while_others_run(scheduler: Scheduler) -> None:
    runs = [
        scheduler.submit(lambda control: [control.stop_reason() for _ in range(50)], place)
        for place in range(1000)
    ]
    for run in runs:
        run.future.result(30)


def test_what_is_over_is_let_go_without_a_collector(scheduler: Scheduler) -> None:
    class Large:
        pass

    refs: list[weakref.ref] = []

    def work(control: StepControl) -> None:
        large = Large()
        refs.append(weakref.ref(large))
        raise Failed

    gc.disable()
    try:
        run = scheduler.submit(work)
        with pytest.raises(Failed):
            run.future.result(30)
        assert refs[0]() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("fails", [False, True])
def test_nothing_is_held_of_the_first_run_of_many(scheduler: Scheduler, fails: bool) -> None:
    class Large:
        pass

    def work(control: StepControl, large: Large) -> Large:
        if fails:
            raise Failed
        return large

    refs = list[weakref.ref]()
    for _ in range(3):  # in one greenlet
        large = Large()
        refs.append(weakref.ref(large))
        run = scheduler.submit(partial(work, large=large))
        assert wait([run.future], 30).done
        del large, run
    scheduler.submit(lambda control: None).future.result(30)
    gc.collect()
    assert [ref() for ref in refs] == [None] * 3


def test_what_has_not_begun_is_let_go_at_once(scheduler: Scheduler) -> None:
    class Large:
        pass

    large = Large()
    ref = weakref.ref(large)
    with held(scheduler):
        run = scheduler.submit(lambda control, large=large: None)
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
