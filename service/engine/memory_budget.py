"""What has begun fits into memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar, final

BUDGET_TOKENS = 1 << 20
"""Tokens and pairs of them of all that has begun, some 600 MB; what has more begins alone."""
SMALL = BUDGET_TOKENS >> 6
"""What has no more never waits for room, and takes none."""


class Sized(Protocol):
    """`size` counts the tokens and pairs of them that it has in memory at a time."""

    size: int


S = TypeVar("S", bound=Sized)


@final
class MemoryBudget(Generic[S]):
    """Lets what is admitted begin while there is room; what is large waits for it, in order.

    Args:
        begin: called with each entry that may begin.
    """

    def __init__(self, begin: Callable[[S], object]) -> None:
        self._begin, self._taken = begin, 0
        self._waiting: deque[S] = deque()

    def acquire(self, one: S) -> None:
        """It begins, now or later."""
        if one.size > SMALL and (self._waiting or not self._fits(one)):
            self._waiting.append(one)
        else:
            self._enter(one)

    def release(self, one: S) -> None:
        """It is over, and no longer in memory; once."""
        self._taken -= self._takes(one)
        one.size = 0
        while self._waiting and self._fits(self._waiting[0]):
            self._enter(self._waiting.popleft())

    def _enter(self, one: S) -> None:
        self._taken += self._takes(one)
        self._begin(one)

    def _fits(self, one: S) -> bool:
        return not self._taken or self._taken + one.size <= BUDGET_TOKENS

    @staticmethod
    def _takes(one: Sized) -> int:
        return one.size if one.size > SMALL else 0
