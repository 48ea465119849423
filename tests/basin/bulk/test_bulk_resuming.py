"""A run that was killed goes on to the same scores, and what it cannot do is refused."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partialmethod
from pathlib import Path
from typing import Any

import pytest

from basin.bulk import BulkError
from basin.bulk.part_store import PartStore
from basin.bulk.plan import Plan, lock_folder
from basin.bulk.run import run_in_process, score
from models.architectures.cdat import CDAT
from models.architectures.et import ET
from models.base import DynamicsParams
from models.resonance import Resonance
from tests.support.bulk_models import (
    random_graph,
    save_model,
    start,
)


class KilledError(Exception):
    pass


@pytest.fixture
def kill_after(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Set after how many calls that write, mark or delete something the next one is killed."""
    remaining = 0

    def call_or_die(self: PartStore, *args: Any, method: Callable[..., None]) -> None:
        nonlocal remaining
        if not remaining:
            raise KilledError
        remaining -= 1
        method(self, *args)

    for name in ("write", "mark_done", "delete"):
        method = partialmethod(call_or_die, method=getattr(PartStore, name))
        monkeypatch.setattr(PartStore, name, method)

    def set_remaining(count: int) -> None:
        nonlocal remaining
        remaining = count

    return set_remaining


@pytest.mark.parametrize("calls", [1, 2, 7])
def test_a_killed_run_resumes_to_the_same_bits(
    tmp_path: Path, kill_after: Callable[[int], None], calls: int
) -> None:
    graph = random_graph(40, 150)
    model = save_model(tmp_path, CDAT, random_graph())
    plan = Plan.from_model(model, "a graph", DynamicsParams(steps=2), 2)
    kill_after(10**9)
    expected_logits, expected_convergence = score(
        tmp_path / "once", plan.start(tmp_path / "once", graph), run_in_process
    )
    folder = tmp_path / "often"
    folder.mkdir()
    kills = 0
    max_calls = calls
    while True:
        kill_after(max_calls)
        try:
            started = plan.find_started(folder) or plan.start(folder, graph)
            logits, convergence = score(folder, started, run_in_process)
            break
        except KilledError:
            kills += 1
            max_calls += calls  # else it would never get past what has to be written in one go
            assert kills < 1000
    assert kills > 4
    assert logits.tobytes() == expected_logits.tobytes()
    assert convergence == expected_convergence


def test_parts_in_any_order_and_twice(tmp_path: Path) -> None:
    graph = random_graph()
    model = save_model(tmp_path, ET, graph)
    expected, _ = score(
        *start(tmp_path / "once", model, graph, DynamicsParams(), 4), run_in_process
    )

    def execute(run_part: Callable[[int], None], parts: Sequence[int]) -> None:
        for part in (*reversed(parts), *parts):
            run_part(part)

    logits, _ = score(*start(tmp_path / "twice", model, graph, DynamicsParams(), 4), execute)
    assert logits.tobytes() == expected.tobytes()


def test_obsolete_arrays_are_deleted(tmp_path: Path) -> None:
    graph = random_graph()
    model = save_model(tmp_path, CDAT, graph)
    folder, plan = start(tmp_path / "run", model, graph, DynamicsParams(), 3)
    score(folder, plan, run_in_process)
    names = {path.name for path in folder.iterdir()}
    assert names == {"plan.json", "cut", "done", "embedded", "course", "logits"}


@pytest.mark.parametrize(
    ("params", "message"),
    [
        (DynamicsParams(tolerance=0.1), "tolerance, noise and other solvers"),
        (DynamicsParams(noise=0.1), "tolerance, noise and other solvers"),
        (DynamicsParams(solver="nesterov"), "tolerance, noise and other solvers"),
        (DynamicsParams(resonance=Resonance.model_validate({})), "Resonance is not supported"),
    ],
)
def test_unsupported_params(tmp_path: Path, params: DynamicsParams, message: str) -> None:
    with pytest.raises(BulkError, match=message):
        Plan.from_model(save_model(tmp_path, CDAT, random_graph()), "", params, None)


@pytest.mark.parametrize("steps", [4, 60])
def test_divergence_is_an_error(tmp_path: Path, steps: int) -> None:
    """Also where a norm makes values finite again that are far too large."""
    graph = random_graph()
    model = save_model(tmp_path, CDAT, graph)
    params = DynamicsParams(steps=steps, step_size=1e6)
    with pytest.raises(BulkError, match="diverged"):
        score(*start(tmp_path / "run", model, graph, params, 2), run_in_process)


def test_one_command_at_a_time(tmp_path: Path) -> None:
    with (
        lock_folder(tmp_path),
        pytest.raises(BulkError, match="in use by another command"),
        lock_folder(tmp_path),
    ):
        pass
    with lock_folder(tmp_path):
        pass


def test_changed_checkpoint(tmp_path: Path) -> None:
    graph = random_graph()
    model = save_model(tmp_path, CDAT, graph)
    run = start(tmp_path / "run", model, graph, DynamicsParams(), 2)
    save_model(tmp_path, CDAT, random_graph(seed=5))
    with pytest.raises(BulkError, match="has changed"):
        score(*run, run_in_process)
