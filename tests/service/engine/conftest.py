"""A scheduler, and time to join it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from service.engine.scheduler import Scheduler


@pytest.fixture
def scheduler() -> Iterator[Scheduler]:
    scheduler = Scheduler(1)
    yield scheduler
    scheduler.close()


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the machine, who begins joins the others before they step."""
    monkeypatch.setattr("service.engine.scheduler._FIRST_S", 10.0)
