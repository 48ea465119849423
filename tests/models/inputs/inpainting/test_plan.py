"""Which windows complete a hole: they cover it, and their number is bounded."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.inputs.inpainting.plan import HoleTooLargeError, Plan, Tiling, plan_windows
from tests.support.completion import hole

TILING = Tiling.from_size(32)


def plan(hidden: np.ndarray, max_windows: int = 10**6) -> Plan:
    return plan_windows(hidden, TILING, max_windows)


SIDES = st.sampled_from([1, 2, 3, 16, 31, 32, 33, 64, 90])


@settings(max_examples=60, deadline=None)
@given(height=SIDES, width=SIDES, seed=st.integers(0, 999), share=st.floats(0.01, 0.99))
def test_windows_cover_what_each_level_completes(height, width, seed, share) -> None:
    hidden = np.random.default_rng(seed).random((height, width)) < share
    if hidden.all() or not hidden.any():
        return
    for level in plan(hidden).levels:
        covered = np.zeros(level.hidden.shape, bool)
        for top, left in level.corners:
            covered[max(top, 0) : top + 32, max(left, 0) : left + 32] = True
        assert (level.completed <= covered).all()
        assert (level.completed <= level.hidden).all()


def test_what_is_deep_is_left_to_half_the_size() -> None:
    hidden = hole((200, 200), 50, 50, 150, 150)
    levels = plan(hidden).levels
    assert [level.hidden.sum() for level in levels] == [100**2, 50**2, 24**2, 11**2]
    ring = hidden & ~hole((200, 200), 58, 58, 142, 142)
    np.testing.assert_array_equal(levels[0].completed, ring)
    assert not levels[-1].needs_guide
    assert len(plan(hole((200, 200), 50, 50, 65, 150)).levels) == 1  # thin


def test_a_hole_within_a_cell_takes_one_window() -> None:
    [level] = plan(hole((90, 120), 40, 50, 55, 61)).levels
    assert level.corners.tolist() == [[32, 40]]
    assert plan(hole((11, 20), 4, 5, 8, 12)).levels[0].corners.tolist() == [[-10, -6]]


def test_the_number_of_windows_grows_with_the_area() -> None:
    counts = {
        side: plan(hole((1200, 1200), 20, 20, 20 + side, 20 + side)).num_windows
        for side in (16, 128, 256, 512, 1024)
    }
    assert counts[16] == 1
    for side, windows in counts.items():
        assert windows <= 1.5 * (side / TILING.stride) ** 2 + 16
    dots = np.random.default_rng(0).random((1200, 1200)) < 0.5
    assert plan(dots).num_windows == (1200 / TILING.stride) ** 2


def test_so_many_windows_and_no_more() -> None:
    hidden = hole((1200, 1200), 0, 0, 1000, 1000)
    windows = plan(hidden).num_windows
    plan(hidden, windows)
    with pytest.raises(HoleTooLargeError):
        plan(hidden, windows - 1)
    with pytest.raises(ValueError, match="or every pixel"):
        plan(np.ones((1, 1), bool))
