"""A computation that is stopped by a function."""

from __future__ import annotations

from collections.abc import Callable

from models.dynamics import StepControl, StopReason


class StopWhen(StepControl):
    """Stops with the reason that `ask` returns."""

    def __init__(self, ask: Callable[[], StopReason | None]) -> None:
        self._ask = ask

    def stop_reason(self) -> StopReason | None:
        return self._ask()
