"""Random histories of clients and faults (`tests/support/chaos`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.chaos.expected import Register, ViolationError, add, put
from tests.support.chaos.histories import Histories
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
