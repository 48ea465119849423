"""Numbers of alerts."""

from __future__ import annotations

import pytest

from service.storage.graphs.alert_numbers import NUMBERS_PER_S, count_missed

JUMP = 1_764_372_000 * NUMBERS_PER_S


@pytest.mark.parametrize(
    ("after", "number", "missed"),
    [
        (1, 2, 0),
        (1, 5, 3),
        (3, JUMP + 1, 0),
        (3, JUMP + 4, 3),
        (JUMP + 1, JUMP + 4, 2),
        (NUMBERS_PER_S - 1, NUMBERS_PER_S, 0),
        (NUMBERS_PER_S - 10, NUMBERS_PER_S + 5, 14),
        (JUMP + 7, JUMP + NUMBERS_PER_S + 1, 0),
        (JUMP + 7, JUMP + 60 * NUMBERS_PER_S + 1, 0),
    ],
)
def test_numbers_that_were_left_out_are_not_missed(after, number, missed):
    assert count_missed(after, number) == missed


def test_numbers_are_exact_as_doubles():
    assert 2**32 * NUMBERS_PER_S <= 2**53  # 2**32 s since 1970 are in 2106
