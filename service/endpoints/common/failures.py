"""Pauses after failures of work in the background."""

from __future__ import annotations

import time
from collections.abc import Hashable, Iterable
from typing import final

import structlog

from service.errors import Problem

_PAUSE_S = 30.0


@final
class FailurePauses:
    """Which work has failed and pauses for 30 s, and why; a reason is logged once in a row.

    Args:
        event: of the log lines.
    """

    def __init__(self, event: str) -> None:
        self._event = event
        self._failed = dict[Hashable, tuple[str, float]]()  # why, and until when to wait

    def __len__(self) -> int:
        return len(self._failed)

    def keep_only(self, works: Iterable[Hashable]) -> None:
        """Forget other work."""
        self._failed = {work: self._failed[work] for work in works if work in self._failed}

    def is_paused(self, work: Hashable) -> bool:
        _, until = self._failed.get(work, ("", 0.0))
        return time.monotonic() < until

    def note_failure(self, work: Hashable, graph_id: str, error: Exception) -> None:
        """Pause the work on a graph."""
        is_problem = isinstance(error, Problem)
        reason = error.detail if is_problem else repr(error)
        before, _ = self._failed.get(work, ("", 0.0))
        self._failed[work] = reason, time.monotonic() + _PAUSE_S
        if reason != before:
            exc_info = None if is_problem else error
            structlog.get_logger().error(
                self._event, graph=graph_id, reason=reason, exc_info=exc_info
            )

    def note_success(self, work: Hashable) -> None:
        self._failed.pop(work, None)
