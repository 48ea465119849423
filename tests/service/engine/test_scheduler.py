"""Which task gets the thread, and what is left of it when it ends."""

from __future__ import annotations

import gc
import os
import sys
import time
import weakref
from collections.abc import Callable
from concurrent.futures import CancelledError, wait
from functools import partial

import pytest
import torch

from models.base import DynamicsParams, StepControl
from models.dynamics import StopReason
from service.engine import scheduler as scheduler_module
from service.engine.memory_budget import BUDGET_TOKENS, SMALL
from service.engine.scheduler import _SLICE_S, Scheduler
from service.engine.tasks import Task
from tests.support.scheduler_work import Failed, example, held, work_of


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


def test_a_core_is_left_to_the_other_thread_while_that_computes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def count_threads(_: StepControl) -> int:
        return torch.get_num_threads()

    small = Scheduler(2)
    large = Scheduler(3, neighbor=small)
    try:
        assert large.submit(count_threads).future.result(30) == 3
        assert small.submit(count_threads).future.result(30) == 2
        assert large.submit(count_threads).future.result(30) == 2
        monkeypatch.setattr(scheduler_module, "_RECENT_S", 0.0)
        assert large.submit(count_threads).future.result(30) == 3
        assert small.submit(count_threads).future.result(30) == 2
    finally:
        for scheduler in (large, small):
            scheduler.close()


def test_flows_come_while_others_run(scheduler: Scheduler) -> None:
    """Requests of new keys arrive on the event loop while the thread accounts for turns."""
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # so that a dictionary is seen while the other thread changes it
    try:
        runs = list[Task]()
        for place in range(3000):
            runs.append(scheduler.submit(lambda control: control.stop_reason(), place))
            if place >= 10:  # as many as the thread computes
                runs[place - 10].future.result(30)
        for run in runs:
            run.future.result(30)
    finally:
        sys.setswitchinterval(interval_s)


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
