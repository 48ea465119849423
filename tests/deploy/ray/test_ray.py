"""The server and the work in parts on two Ray nodes of this machine."""

from __future__ import annotations

import os
import subprocess
import sys
from ast import literal_eval
from types import SimpleNamespace
from typing import Any

import pytest

from service.settings import Settings

pytest.importorskip("ray")

from deploy.ray.roster import Roster  # after ray is known to be there
from deploy.ray.serving import BACKLOG, Wanted, application


def test_as_many_replicas_as_the_backlog_wants() -> None:
    def wanted(*seconds: float, target_s: float = 2.0) -> Any:
        told = {BACKLOG: {f"replica-{i}": each for i, each in enumerate(seconds)}}
        return Wanted(target_s)(SimpleNamespace(aggregated_metrics=told))  # type: ignore[arg-type]

    assert wanted(0.0, 0.0) == (0.0, {})
    assert wanted(3.0, 4.0, 0.5) == (3.75, {})
    assert wanted(3.0, target_s=0.5) == (6.0, {})
    nothing: Any = SimpleNamespace(aggregated_metrics=None)
    assert Wanted(1.0)(nothing) == (0, {})


def test_what_it_cannot_serve_with() -> None:
    with pytest.raises(ValueError, match="BASIN_REDIS_URL"):
        application(Settings())
    with pytest.raises(ValueError, match="BASIN_ADMIN_PORT"):
        application(Settings(redis_url="redis://127.0.0.1:1/0", admin_port=1))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="BASIN_DEVICE"):
        application(Settings(redis_url="redis://127.0.0.1:1/0", device="cuda:1"))  # type: ignore[arg-type]


def test_the_roster_forgets(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("deploy.ray.roster.time", SimpleNamespace(monotonic=lambda: now[0]))
    roster = Roster()
    roster.enter("b", "host:2")
    now[0] = 150.0
    roster.enter("a", "host:1")
    one, other = roster.targets()
    assert one == {"targets": ["host:1"], "labels": {"replica": "a"}}
    assert other["targets"] == ["host:2"]
    now[0] = 161.0
    assert [each["labels"]["replica"] for each in roster.targets()] == ["a"]


@pytest.mark.slow
def test_a_replica_killed_under_load_loses_nothing() -> None:
    done = _run("benchmarks.replicas", "1", "1")
    last = done[done.index("replicas killed") :]
    statuses = literal_eval(last[last.index("{") : last.index("}") + 1])
    assert statuses.keys() == {200}
    assert statuses[200] > 50
    assert " 0 broken connections" in last
    assert "1 different answers" in last
    assert "from 1 replica to 2 under load, {200:" in last


@pytest.mark.slow
def test_work_in_parts_that_is_killed_goes_on_to_the_same_bits() -> None:
    assert "by one process: the same bits" in _run("benchmarks.bulk", "3e5")


def _run(module: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout
