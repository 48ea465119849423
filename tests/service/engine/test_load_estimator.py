"""What would be late is not begun; what is late is told by what the like of it took."""

from __future__ import annotations

import math
from contextlib import ExitStack

import pytest

from service.engine.load_estimator import LoadEstimator


def _done(
    backlog: LoadEstimator, kind: str, cost: float, seconds: float, weight: float = 1.0
) -> None:
    with backlog.track(kind, weight, cost) as took:
        took(seconds)


def test_nothing_is_known_before_anything_is_done() -> None:
    backlog = LoadEstimator()
    with backlog.track("a", 1.0, 1e12):
        assert backlog.expected_delay_s("a", 1.0, 1e12, 1.0) == 0


def test_the_first_in_line_is_never_late() -> None:
    """It may be too much for its deadline; nobody else is the reason."""
    backlog = LoadEstimator()
    _done(backlog, "a", 10, 10.0)
    with backlog.track("b", 1.0, 1e9):
        assert backlog.expected_delay_s("a", 1.0, 1e9, 1.0) == 0


def test_cost_counts_not_requests() -> None:
    backlog = LoadEstimator()
    _done(backlog, "a", 100, 2.0)
    with ExitStack() as held:
        for _ in range(50):
            held.enter_context(backlog.track("a", 1.0, 1))
        assert backlog.expected_delay_s("a", 1.0, 1, 2.0) == 0
        held.enter_context(backlog.track("a", 1.0, 1000))
        assert backlog.expected_delay_s("a", 1.0, 500, 2.0) == pytest.approx(
            (500 + 500 + 50) * 0.02 - 2
        )
        assert backlog.expected_delay_s("a", 1.0, 1, 2.0) == 0, (
            "the small do not wait for the large"
        )
    assert backlog.expected_delay_s("a", 1.0, 1e9, 0.0) == 0


def test_kinds_wait_for_each_other_by_their_weights() -> None:
    backlog = LoadEstimator()
    _done(backlog, "a", 1, 1.0)
    with ExitStack() as held:
        held.enter_context(backlog.track("a", 1.0, 1))
        held.enter_context(backlog.track("sample", 1.0, 1e12))
        held.enter_context(backlog.track("job", 0.25, 1e12))
        assert backlog.expected_delay_s("a", 1.0, 1, 0.0) == pytest.approx(2 * 2.25)


def test_a_large_request_outweighs_many_small_ones() -> None:
    """Small ones have an overhead, which must not be taken for the price of a large one."""
    backlog = LoadEstimator()
    for _ in range(20):
        _done(backlog, "a", 1e6, 1.0)
        _done(backlog, "a", 10, 0.001)
    with backlog.track("a", 1.0, 1e6):
        late = backlog.expected_delay_s("a", 1.0, 1e6, 0.0)
    assert math.isclose(late, 2.0, rel_tol=0.01)
