"""How long a request will take is estimated by what requests of its kind and size took."""

from __future__ import annotations

import math
from collections.abc import Hashable
from contextlib import ExitStack

import pytest

from service.engine.admission import Admission
from service.engine.load_estimator import LoadEstimator
from service.engine.memory_budget import BUDGET_TOKENS
from service.errors import Problem

SMALL, LARGE = 195.0, 54e6  # five nodes, and 4 million edges: tokens and edges x steps
SMALL_S, LARGE_S = 0.003, 12.0


def _measure(
    load: LoadEstimator,
    kind: Hashable,
    cost: float,
    seconds: float,
    weight: float = 1.0,
    times: int = 2,
) -> None:
    for _ in range(times):
        with load.track(kind, weight, cost) as request:
            request.took_s = seconds


def test_nothing_is_known_before_anything_is_done() -> None:
    load = LoadEstimator()
    with load.track("a", 1.0, 1e12):
        assert load.expected_s("a", 1.0, 1e12) == 0


def test_small_requests_say_nothing_of_a_large_one() -> None:
    """The rate of graphs of five nodes would make 800 s of the 12 s of a large one."""
    load = LoadEstimator()
    _measure(load, "a", SMALL, SMALL_S, times=1000)
    with load.track("a", 1.0, SMALL):
        assert load.expected_s("a", 1.0, LARGE) == 0


def test_a_large_request_is_remembered_whatever_small_ones_come_after_it() -> None:
    load = LoadEstimator()
    _measure(load, "a", LARGE, LARGE_S)
    _measure(load, "a", SMALL, SMALL_S, times=1000)
    with load.track("a", 1.0, SMALL), load.track("a", 1.0, SMALL):
        expected_s = load.expected_s("a", 1.0, LARGE)
    assert expected_s == pytest.approx(LARGE_S + 2 * SMALL_S)


def test_a_small_request_does_not_wait_for_all_of_a_large_one() -> None:
    load = LoadEstimator()
    _measure(load, "a", LARGE, LARGE_S)
    _measure(load, "a", SMALL, SMALL_S)
    with load.track("a", 1.0, LARGE):
        assert load.expected_s("a", 1.0, SMALL) == pytest.approx(2 * SMALL_S)


@pytest.mark.parametrize("first_s", [600.0, 1e-9])
def test_the_first_measurement_is_not_trusted(first_s: float) -> None:
    """It may have included compilation; nothing is concluded from one, nor from an outlier."""
    load = LoadEstimator()
    _measure(load, "a", LARGE, first_s, times=1)
    assert load.compute_s("a", LARGE) == 0
    _measure(load, "a", LARGE, LARGE_S, times=3)
    assert load.compute_s("a", LARGE) == pytest.approx(LARGE_S)


def test_a_size_that_was_not_measured_is_estimated_by_one_near_it() -> None:
    load = LoadEstimator()
    _measure(load, "a", 4096, 1.0)
    assert load.compute_s("a", 16 * 4096) == pytest.approx(16)
    assert load.compute_s("a", 256 * 4096) == 0
    assert load.compute_s("a", 1024) == pytest.approx(0.25)


def test_a_request_that_was_stopped_counts_if_it_took_longer_than_expected() -> None:
    """Those that always exceed their deadline would never be measured otherwise."""
    load = LoadEstimator()
    for _ in range(2):
        with load.track("a", 1.0, LARGE) as request:
            request.ran_s = lambda: 60.0
    assert load.compute_s("a", LARGE) == pytest.approx(60)
    with load.track("a", 1.0, LARGE) as request:
        request.ran_s = lambda: 1.0  # its client has gone
    assert load.compute_s("a", LARGE) == pytest.approx(60)


def test_what_has_been_computed_is_not_waited_for() -> None:
    load = LoadEstimator()
    _measure(load, "a", LARGE, LARGE_S)
    with load.track("a", 1.0, LARGE) as request:
        request.ran_s = lambda: LARGE_S - 2
        assert load.expected_s("a", 1.0, LARGE) == pytest.approx(LARGE_S + 2)
        assert load.backlog_s == pytest.approx(2)


def test_cost_counts_not_requests() -> None:
    load = LoadEstimator()
    for cost in (1.0, 500.0, 1000.0):
        _measure(load, "a", cost, cost * 0.02)
    with ExitStack() as pending:
        for _ in range(50):
            pending.enter_context(load.track("a", 1.0, 1))
        assert load.expected_s("a", 1.0, 1) == pytest.approx(51 * 0.02)
        pending.enter_context(load.track("a", 1.0, 1000))
        assert load.expected_s("a", 1.0, 500) == pytest.approx((500 + 500 + 50) * 0.02)


def test_kinds_wait_for_each_other_by_their_weights_and_no_longer_than_there_is_work() -> None:
    load = LoadEstimator()
    _measure(load, "a", 1, 1.0)
    _measure(load, "sample", 1e4, 1e4)
    _measure(load, "job", 1e4, 1e4, weight=0.25)
    with ExitStack() as pending:
        pending.enter_context(load.track("a", 1.0, 1))
        pending.enter_context(load.track("sample", 1.0, 1e4))
        pending.enter_context(load.track("job", 0.25, 1e4))
        assert load.expected_s("a", 1.0, 1) == pytest.approx(2 * 2.25)
    _measure(load, "tiny", 1, 0.001)
    with load.track("a", 1.0, 1), load.track("tiny", 1.0, 1):
        assert load.expected_s("a", 1.0, 1) == pytest.approx(2.001)


def test_a_large_request_waits_for_those_that_leave_it_no_room_in_memory() -> None:
    load, size = LoadEstimator(), BUDGET_TOKENS
    _measure(load, "a", LARGE, LARGE_S)
    _measure(load, "a", LARGE / 64, LARGE_S / 64)
    with load.track("a", 1.0, LARGE, size):
        of_its_turns = load.expected_s("a", 1.0, LARGE / 64, 0)
        assert of_its_turns == pytest.approx(2 * LARGE_S / 64)
        expected_s = load.expected_s("a", 1.0, LARGE / 64, size // 32)
        assert expected_s == pytest.approx(LARGE_S + LARGE_S / 64)
        assert load.expected_s("b", 1.0, LARGE, size) == 0, "nothing of this kind was measured"


def _refusal(admission: Admission, cost: float, deadline_s: float) -> tuple[str, int]:
    with pytest.raises(Problem) as caught:
        admission.require_turn("a", False, 1.0, cost, deadline_s)
    assert caught.value.kind == "queue-full"
    return caught.value.detail, int(caught.value.headers["retry-after"])


def test_what_would_be_late_is_refused_until_it_would_not_be() -> None:
    load = LoadEstimator()
    admission = Admission(8, None, load)
    _measure(load, ("a", False), LARGE, LARGE_S)
    admission.require_turn("a", False, 1.0, LARGE, 1.0)  # nothing else is the reason
    with ExitStack() as pending:
        for _ in range(4):
            admission.require_turn("a", False, 1.0, LARGE, 60.0)
            pending.enter_context(load.track(("a", False), 1.0, LARGE))
        detail, retry_s = _refusal(admission, LARGE, 50.0)
        assert "by 10 s because the server is overloaded" in detail
        assert retry_s == 10
        admission.require_turn("a", False, 1.0, SMALL, 1.0)
        admission.require_turn("a", True, 0.25, LARGE, 1.0)  # no client waits for a job


def test_the_refusal_of_a_request_that_takes_longer_than_its_deadline_says_so() -> None:
    load = LoadEstimator()
    admission = Admission(8, None, load)
    _measure(load, ("a", False), LARGE, LARGE_S)
    with load.track(("a", False), 1.0, LARGE) as other:
        other.ran_s = lambda: LARGE_S - 3
        detail, retry_s = _refusal(admission, LARGE, 5.0)
    assert "it takes about 12 s of compute" in detail
    assert "respond-async" in detail
    assert retry_s == 3, "then it is the first, and is admitted"


def test_a_full_queue_drains_by_the_estimate() -> None:
    load = LoadEstimator()
    admission = Admission(0, None, load)
    _measure(load, ("a", False), LARGE, LARGE_S)
    with admission.place(), load.track(("a", False), 1.0, LARGE):
        assert int(admission.queue_full_error().headers["retry-after"]) == math.ceil(LARGE_S)
