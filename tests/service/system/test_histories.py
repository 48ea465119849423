"""Random histories of clients and faults (`tests/support/chaos`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.chaos.expected import (
    Register,
    ViolationError,
    add,
    is_equal,
    make_patterns,
    put,
)
from tests.support.chaos.histories import Histories
from tests.support.chaos.steps import DAMAGES, Step
from tests.support.chaos.world import LIMITED, WORKER
from tests.support.redis_server import SERVER

SHORT, LONG = range(1, 5), range(1, 201)


@pytest.fixture(scope="module")
def histories(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Histories]:
    if SERVER is None:
        pytest.skip("there is no redis-server here")
    with Histories(tmp_path_factory.mktemp("histories")) as histories:
        yield histories


@pytest.mark.parametrize("seed", SHORT)
def test_nothing_happens_that_must_not(histories: Histories, seed: int) -> None:
    violation = histories.play_seed(seed, Counter())
    assert violation is None, f"python -m tests.support.chaos --histories 1 --seed {seed}"


@pytest.mark.slow
def test_long(tmp_path: Path) -> None:
    if SERVER is None:
        pytest.skip("there is no redis-server here")
    counts = Counter[str]()
    with Histories(tmp_path) as histories:
        failed = {seed: histories.play_seed(seed, counts) for seed in LONG}
    assert {seed for seed, violation in failed.items() if violation} == set(), failed


def test_a_lost_write_is_a_violation() -> None:
    graph = Register("g")
    graph.acknowledge(put(frozenset({"a"})), 0)
    graph.acknowledge(add("b"), 0)
    graph.observe(frozenset({"a"}), 1, is_strict=False)  # an older state, as while Redis is away
    with pytest.raises(ViolationError, match=r"g is \{a\} on server 1; it may be \{a,b\}"):
        graph.observe(frozenset({"a"}), 1, is_strict=True)
    graph.go_back(alive={0})
    with pytest.raises(ViolationError):
        graph.observe(None, 1, is_strict=True)
    graph.go_back(alive={1})  # the server that had it has ended
    graph.observe(frozenset({"a"}), 1, is_strict=True)
    with pytest.raises(ViolationError):
        graph.observe(frozenset({"a", "b"}), 1, is_strict=True)


def test_a_write_without_an_answer_may_be_made_or_not() -> None:
    for state in ({"a"}, {"a", "b"}):
        graph = Register("g")
        graph.acknowledge(put(frozenset({"a"})), 0)
        graph.attempt(add("b"))
        graph.observe(frozenset(state), 0, is_strict=True)
    with pytest.raises(ViolationError):
        graph.observe(None, 0, is_strict=True)


def test_every_damage_overwrites_something_and_is_endured(histories: Histories) -> None:
    counts = Counter[str]()
    stored = ("put_graph", "patch_graph", "put_memory", "score", "begin_job")
    steps = [Step("kill_process", 1), Step("kill_process", WORKER)]  # so that jobs wait
    for number, damage in enumerate(DAMAGES):
        steps += [Step(kind, value=number % 6) for kind in stored]
        steps.append(Step("damage", value=number % 6, detail=damage))
    assert histories.play(steps, counts) is None
    assert {damage for damage in DAMAGES if not counts[f"damage of {damage}"]} == set()


def test_other_content_of_a_memory_is_a_violation(histories: Histories) -> None:
    player, step = histories.begin(Counter()), Step("", value=2)
    player.put_memory(step)
    player.read_memory(step)
    [(owner, name)] = player.memories
    body = {"patterns": (2 * make_patterns(2)).tolist(), "note": name}
    player.world.client(1, owner).put(f"/memories/{name}", json=body).raise_for_status()
    with pytest.raises(ViolationError, match="holds what was not put"):
        player.read_memory(step)


def test_a_limit_that_is_not_enforced_is_a_violation(histories: Histories) -> None:
    player = histories.begin(Counter())
    player.ask_limited(Step(""))
    clients = player.world.processes[0].clients
    limited, clients[LIMITED] = clients[LIMITED], player.world.client(0, "one")
    with pytest.raises(ViolationError, match="requests passed"):
        player.ask_limited(Step(""))
    clients[LIMITED] = limited


def test_answers_are_equal_up_to_rounding() -> None:
    answer = {"results": [{"score": 0.5, "label": True}]}
    assert is_equal(answer, {"results": [{"score": 0.50001, "label": True}]})
    assert not is_equal(answer, {"results": [{"score": 0.501, "label": True}]})
    assert not is_equal(answer, {"results": [{"score": 0.5, "label": False}]})
    assert not is_equal(answer, {"results": []})
