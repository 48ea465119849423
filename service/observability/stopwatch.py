"""Durations of the phases of a request."""

from __future__ import annotations

import time


class StageTimer:
    """Seconds per phase since the request arrived; `spans` holds name, start and end of each part
    of a phase, in order."""

    def __init__(self) -> None:
        self.start_ns = time.time_ns()
        self._start = time.perf_counter()
        self._end: float | None = None
        self._last = self._recorded = 0.0
        self.phases: dict[str, float] = {}
        self.spans: list[tuple[str, float, float]] = []

    def lap(self, phase: str) -> None:
        """Record the time since the last lap as `phase`."""
        self._record(phase, self._last, self.elapsed_s())
        self._last = self._recorded

    def add(self, phase: str, seconds: float) -> None:
        """Record `seconds` of the current lap as `phase`, after the phases recorded before; the
        rest of the lap is not recorded."""
        self._record(phase, self._recorded, self._recorded + seconds)
        self._last = self.elapsed_s()

    def stop(self) -> None:
        """Stop the clock."""
        self._end = time.perf_counter()

    def elapsed_s(self) -> float:
        return (time.perf_counter() if self._end is None else self._end) - self._start

    def to_ms(self) -> dict[str, float]:
        """Return all phases and their total so far, in milliseconds."""
        phases = self.phases | {"total": self.elapsed_s()}
        return {phase: round(1e3 * seconds, 3) for phase, seconds in phases.items()}

    def _record(self, phase: str, first: float, last: float) -> None:
        self.phases[phase] = self.phases.get(phase, 0.0) + last - first
        self.spans.append((phase, first, last))
        self._recorded = last
