"""Phases of a request follow each other, and are at most as long as the request."""

from __future__ import annotations

import pytest

from service.observability import stopwatch
from service.observability.stopwatch import StageTimer


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(stopwatch.time, "perf_counter", lambda: now[0])
    return now


def test_a_lap_is_the_time_since_the_last_one(clock: list[float]) -> None:
    timer = StageTimer()
    clock[0] += 0.25
    timer.lap("read")
    clock[0] += 0.5
    timer.lap("parse")
    assert timer.phases == {"read": 0.25, "parse": 0.5}
    assert timer.spans == [("read", 0.0, 0.25), ("parse", 0.25, 0.75)]
    assert timer.to_ms() == {"read": 250.0, "parse": 500.0, "total": 750.0}


def test_measured_phases_lie_within_their_lap(clock: list[float]) -> None:
    timer = StageTimer()
    clock[0] += 1.0
    timer.lap("read")
    clock[0] += 2.0
    timer.add("queue", 0.5)
    timer.add("compute", 1.25)
    clock[0] += 0.125
    timer.lap("encode")
    assert timer.spans[1:3] == [("queue", 1.0, 1.5), ("compute", 1.5, 2.75)]
    assert timer.phases["encode"] == 0.125  # what the two left of their lap is no part of it


def test_a_phase_may_have_several_parts(clock: list[float]) -> None:
    timer = StageTimer()
    for phase in ("queue", "parse", "queue"):
        clock[0] += 0.5
        timer.lap(phase)
    assert timer.phases == {"queue": 1.0, "parse": 0.5}
    assert timer.spans == [("queue", 0.0, 0.5), ("parse", 0.5, 1.0), ("queue", 1.0, 1.5)]


def test_a_stopped_timer_stands(clock: list[float]) -> None:
    timer = StageTimer()
    clock[0] += 1.0
    timer.stop()
    clock[0] += 1.0
    assert timer.elapsed_s() == 1.0
