"""Numbers of the alerts of a graph: 1, 2, 3, ..., and higher ones where alerts may be lost."""

from __future__ import annotations

NUMBERS_PER_S = 1 << 21
"""Where Redis may have lost alerts, numbers go on at the seconds since 1970 times this. So they are
above all that were lost: no graph raises as many alerts in a second. They are exact as doubles,
which Lua has, until 2106."""


def count_missed(after: int, number: int) -> int:
    """Return how many alerts were between two numbers, without the numbers that were left out where
    alerts may be lost: those alerts are raised again."""
    first = number - number % NUMBERS_PER_S
    is_jump = number - after > NUMBERS_PER_S // 2
    return number - (max(after, first) if is_jump else after) - 1
