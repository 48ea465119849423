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
    led, other = Chain(Flow("led", 0.25)), Chain(Flow("other", 1.0))
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
    chains = [Chain(Flow(f"many {n}", weight, "many")) for n, weight in ((0, 1.0), (1, 0.5))]
    few = Chain(Flow("few", 1.0, "few"))
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


def test_idle_flows_are_forgotten() -> None:
    turns = FairQueue()
    for n in range(1000):
        chain = Chain(Flow(f"model of key {n}", 1.0, f"key {n}"))
        turns.queue(chain)
        assert turns.take() is chain
        turns.charge(chain, 1, 0.001)
    assert turns.take() is None
    assert turns.num_flows == 0


def test_a_flow_that_has_had_more_is_remembered_until_others_have_caught_up() -> None:
    turns = FairQueue()
    greedy, other = (Chain(Flow(name, 1.0, name)) for name in ("greedy", "other"))
    turns.queue(greedy)
    turns.queue(other)
    assert turns.take() is greedy
    turns.charge(greedy, 1, 1.0)  # one long step while the other waits
    again = Chain(greedy.flow)
    for n in range(100):
        assert turns.take() is other
        turns.charge(other, 1, 0.01)
        turns.queue(other)
        if n == 50:
            turns.queue(again)  # it left for a while, which does not cancel what it has had
    taken = set[Schedulable | None]()
    for _ in range(3):
        entity = turns.take()
        assert entity is not None
        taken.add(entity)
        turns.charge(entity, 1, 0.01)
        turns.queue(entity)
    assert taken == {again, other}
