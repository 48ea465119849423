"""Requests that wait for the same thing begin as one batch."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, final

from models.contract import Interrupt
from models.dynamics import StopReason
from models.sampling import Interrupted
from service.engine.scheduler import Run
from service.jobs import Progress

_MOST = 64


@dataclass(frozen=True)
class Alike:
    """What is as good as others of its `key`: `item`, of which `many` takes several at a time.

    `many` returns an outcome for each item, in order; one that is an exception is raised for that
    item alone. It must come to what each comes to by itself, up to rounding, in as many steps.
    """

    key: Hashable
    item: Any
    many: Callable[[Sequence[Any], Interrupt], Sequence[Any]]


class Apart(Exception):  # noqa: N818
    """Together they were too much: each is to be tried by itself."""


@dataclass(eq=False)
class Guest:
    """One request of a party. `future` has its outcome."""

    item: Any
    progress: Progress
    future: Future[Any]


@final
class Party:
    """Requests of one key, which more may join until it begins; it is what the scheduler runs.

    Attributes:
        share_s: seconds that it computed for each of them, once it is over.
    """

    def __init__(self, alike: Alike) -> None:
        self._many = alike.many
        self._guests: list[Guest] = []
        self._lock = threading.Lock()
        self._begun = self._over = False
        self._run: Run | None = None
        self._next: Callable[[], object] | None = None
        self.share_s = 0.0

    def __len__(self) -> int:
        return len(self._guests)

    @property
    def closed(self) -> bool:
        """Has it begun, or has everyone left?"""
        return self._begun or not self._guests

    def join(self, alike: Alike, progress: Progress) -> Guest | None:
        """None where it has begun, or is full."""
        with self._lock:
            if self._begun or len(self._guests) >= _MOST:
                return None
            self._guests.append(Guest(alike.item, progress, Future()))
            return self._guests[-1]

    def begin(self, submit: Callable[[Party], Run]) -> None:
        """It is over when the run is that `submit` makes of it. Once, and not if it is closed."""
        with self._lock:
            if self._run is not None or self.closed:
                return
            self._run = submit(self)
        self._run.future.add_done_callback(self._hand_out)

    def then(self, begin: Callable[[], object]) -> bool:
        """Call `begin` once it is over, on the thread that computes; False where it is already, or
        another is to follow."""
        with self._lock:
            if self._over or self._next is not None:
                return False
            self._next = begin
            return True

    def leave(self, guest: Guest) -> None:
        """Nobody waits for this one any longer; where it was the last, the work stops."""
        guest.future.cancel()
        with self._lock:
            if not self._begun:
                self._guests.remove(guest)
            last = all(other.future.done() for other in self._guests)
        if last and self._run is not None:
            self._run.stop(StopReason.CANCELLED)

    def __call__(self, run: Run) -> Sequence[Any]:
        with self._lock:
            self._begun = True
        if not self._guests:
            return []
        run.progresses = [guest.progress for guest in self._guests]
        return self._many([guest.item for guest in self._guests], run)

    def _hand_out(self, future: Future[Any]) -> None:
        """To each its outcome."""
        with self._lock:
            guests, run, follow = self._guests, self._run, self._next
            self._guests, self._run, self._next, self._over = [], None, None, True
        assert run is not None
        self.share_s = run.ran_s / max(len(guests), 1)
        outcomes: Sequence[Any]
        if future.cancelled():
            outcomes = [Interrupted(StopReason.CANCELLED)] * len(guests)
        elif (error := future.exception()) is None:
            outcomes = future.result()
        else:
            apart = len(guests) > 1 and not isinstance(error, Interrupted)
            outcomes = [Apart() if apart else error for _ in guests]
        for guest, outcome in zip(guests, outcomes, strict=True):
            if not guest.future.set_running_or_notify_cancel():
                continue
            if isinstance(outcome, BaseException):
                guest.future.set_exception(outcome)
            else:
                guest.future.set_result(outcome)
        if follow is not None:
            follow()
