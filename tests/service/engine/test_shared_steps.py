"""Which relaxations step together, and what happens to a batch that fails."""

from __future__ import annotations

import queue
from collections.abc import Callable
from typing import Any

import pytest
import torch

from models.base import DynamicsParams
from models.dynamics import Relaxation, batch
from service.engine.scheduler import Scheduler
from service.engine.tasks import Task
from tests.support.scheduler_work import Failed, example, held, work_of


def counted(energy: Any, calls: list[int]) -> None:
    """Add to `calls` whenever its field is asked."""
    field_of = energy.prepare

    def field() -> Any:
        of_energy = field_of()
        return lambda *args: (calls.append(1), of_energy(*args))[1]

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
