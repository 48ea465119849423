"""When a stored transaction counts as left by its request."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from service.context import AppContext
from service.endpoints.transactions.pending import PendingScorer
from service.settings import Settings
from service.storage.graphs import GraphKey, PendingScore

_DAY_S = 86_400.0


@pytest.fixture
def context(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[AppContext]:
    settings = {name: tmp_path / name for name in ("job_store", "graph_store", "memory_store")}
    if getattr(request, "param", False):  # servers share graphs
        settings["redis_url"] = "redis://127.0.0.1:9/0"
    context = AppContext.from_settings(Settings.model_validate(settings))
    yield context
    context.close()


def _pending(revision: int, at: float) -> PendingScore:
    return PendingScore(GraphKey("", "g"), "tag", revision, ["a"], at)


@pytest.mark.parametrize("context", [True], indirect=True)
def test_it_is_left_once_it_was_seen_for_longer_than_a_request_takes(context, monkeypatch):
    """Whatever the clocks say of the servers that stored it."""
    scorer = PendingScorer(context)
    wall = time.time()
    pending = [_pending(n, wall + step_s) for n, step_s in enumerate((0.0, _DAY_S, -_DAY_S))]
    assert scorer._list_overdue(pending) == []
    monotonic, ahead = time.monotonic, [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: monotonic() + ahead[0])
    late = _pending(3, wall)
    ahead[0] = context.settings.deadline_s
    assert scorer._list_overdue([*pending, late]) == []
    ahead[0] += 6.0
    assert scorer._list_overdue([*pending, late]) == pending
    assert scorer._list_overdue([late]) == []
    ahead[0] += context.settings.deadline_s
    assert scorer._list_overdue([late]) == [late]


def test_what_one_server_finds_at_its_start_is_left(context):
    scorer = PendingScorer(context)
    earlier = _pending(0, time.time() + _DAY_S)
    assert scorer._list_overdue([earlier]) == [earlier]
    new = _pending(1, time.time())
    assert scorer._list_overdue([earlier, new]) == [earlier]
