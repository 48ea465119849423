"""What an object may be now, by what was acknowledged and what the faults allow."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

State = Hashable  # None if there is no such object
Change = Callable[[State], State]


class ViolationError(AssertionError):
    """Something that must not happen did."""


@dataclass
class Register:
    """The states that an object may be in.

    A change that was acknowledged has been made; one whose answer was an error of the server or
    none may have been. Where Redis has gone back, the object is as a living server holds it; if
    none does, as it ever was.

    Attributes:
        holders: servers that have the latest state in memory, or on their disks.
        is_damaged: a value of it in Redis was overwritten; it may be refused until it is replaced.
        is_lost: Redis went back and no living server holds the latest state.
        is_older: Redis went back, and the holders may not have restored the latest state yet; what
            another server writes then may be based on an older one.
    """

    name: str
    possible: set[State] = field(default_factory=lambda: {None})
    past: set[State] = field(default_factory=lambda: {None})
    holders: set[int] = field(default_factory=set)
    is_damaged: bool = False
    is_lost: bool = False
    is_older: bool = False

    def acknowledge(self, change: Change, server: int) -> None:
        """The server answered that the change was made."""
        parted = self.is_lost or (self.is_older and server not in self.holders)
        before = self.past if parted else self.possible
        self._set({change(state) for state in before})
        self.holders = {server}

    def attempt(self, change: Change) -> None:
        """The change may have been made."""
        before = self.past if self.is_lost or self.is_older else self.possible
        self._set(self.possible | {change(state) for state in before})

    def observe(self, state: State, server: int, is_strict: bool) -> None:
        """A server answered that this is the state.

        Raises:
            ViolationError: it cannot be.
        """
        allowed = self.possible if is_strict and not self.is_lost else self.past
        if state not in allowed:
            raise ViolationError(
                f"{self.name} is {show(state)} on server {server}; it may be "
                f"{', '.join(map(show, allowed))}"
            )
        if is_strict:
            self.possible, self.is_lost, self.is_older = {state}, False, False
            self.holders.add(server)

    def go_back(self, alive: set[int]) -> None:
        """Redis is older, or empty; `alive` are the servers that go on."""
        self.is_older = True
        if not self.holders & alive:
            self.possible, self.is_lost = set(self.past), True

    def lose_holder(self, server: int) -> None:
        """The server ends, and what it held in memory with it."""
        self.holders.discard(server)
        if self.is_older and not self.holders:
            # It may have ended before it restored the state.
            self.possible, self.is_lost = set(self.past), True

    def _set(self, states: set[State]) -> None:
        self.possible = states
        self.past |= states


def show(state: State) -> str:
    if isinstance(state, frozenset):
        return "{" + ",".join(sorted(map(str, state))) + "}"
    return str(state)


def make_patterns(value: int) -> np.ndarray:
    """Patterns of a memory, whose number gives the value. Shape: (value + 2, 8)."""
    return np.eye(8, dtype=np.float32)[: value + 2]


def is_equal(a: Any, b: Any) -> bool:
    """Whether two parsed JSON values are equal, up to rounding of float32."""
    match a, b:
        case dict(), dict():
            return a.keys() == b.keys() and all(is_equal(a[key], b[key]) for key in a)
        case list(), list():
            return len(a) == len(b) and all(map(is_equal, a, b))
        case float(), float() | int():
            return math.isclose(a, b, rel_tol=1e-4, abs_tol=1e-6)
        case _:
            return a == b


def add(item: State) -> Change:
    """Add an item, if the object is there."""

    def change(state: State) -> State:
        return state | {item} if isinstance(state, frozenset) else state

    return change


def put(state: State) -> Change:
    return lambda _: state
