"""Where the time of a request went."""

from __future__ import annotations

import time


class StageTimer:
    """Seconds by phase, since the request arrived; `spans` are from when to when each was."""

    def __init__(self) -> None:
        self.start_ns = time.time_ns()
        self._start = time.perf_counter()
        self._end: float | None = None
        self._last = self._told = 0.0
        self.phases: dict[str, float] = {}
        self.spans: dict[str, tuple[float, float]] = {}

    def lap(self, phase: str) -> None:
        """The time since the last lap was `phase`."""
        self._tell(phase, self._last, self.elapsed_s())
        self._last = self._told

    def add(self, phase: str, seconds: float) -> None:
        """`phase` took `seconds` of the lap at hand, after what was told before; the rest of the
        lap is not told."""
        self._tell(phase, self._told, self._told + seconds)
        self._last = self.elapsed_s()

    def stop(self) -> None:
        """No more time passes."""
        self._end = time.perf_counter()

    def elapsed_s(self) -> float:
        return (time.perf_counter() if self._end is None else self._end) - self._start

    def to_ms(self) -> dict[str, float]:
        """All phases and their total so far."""
        found = self.phases | {"total": self.elapsed_s()}
        return {phase: round(1e3 * seconds, 3) for phase, seconds in found.items()}

    def _tell(self, phase: str, first: float, last: float) -> None:
        self.phases[phase], self.spans[phase], self._told = last - first, (first, last), last
