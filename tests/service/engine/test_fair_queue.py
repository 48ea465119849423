"""The shares of flows in a queue."""

from __future__ import annotations

import pytest

from service.engine.fair_queue import FairQueue, Flow, Schedulable


class Chain(Schedulable):
    """What only waits for turns."""

    def __init__(self, flow: Flow) -> None:
        self.flow = flow

    def __len__(self) -> int:
        return 1

    def run_turn(self) -> bool:
        return True

    def fail(self, error: Exception) -> bool:
        raise error


def test_what_was_had_while_nobody_waited_is_free() -> None:
    turns = FairQueue()
    led, other = Chain(turns.flow("led", 0.25)), Chain(turns.flow("other", 1.0))
    turns.queue(led)
    assert turns.take() is led
    turns.charge(led, 1, 60.0)  # by itself, for a minute
    taken = []
    turns.queue(other)
    turns.queue(led)
    for _ in range(10):
        entity = turns.take()
        taken.append(entity)
        turns.charge(entity, 1, 0.001)
        turns.queue(entity)
    assert led in taken


def test_an_owner_has_no_larger_share_with_more_flows() -> None:
    turns = FairQueue()
    chains = [Chain(turns.flow(f"many {n}", weight, "many")) for n, weight in ((0, 1.0), (1, 0.5))]
    few = Chain(turns.flow("few", 1.0, "few"))
    for chain in (*chains, few):
        turns.queue(chain)
    taken = []
    for _ in range(600):
        entity = turns.take()
        assert isinstance(entity, Chain)
        taken.append(entity)
        turns.charge(entity, 1, 0.001)
        turns.queue(entity)
    counts = [taken.count(chain) for chain in (*chains, few)]
    assert counts == pytest.approx([200, 100, 300], abs=3)
