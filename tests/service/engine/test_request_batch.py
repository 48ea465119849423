"""Requests that are alike begin together, and each comes to what it would by itself."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence
from typing import Any

import pytest

from models.base import StepControl
from service.engine import engine
from service.engine.engine import Engine, Workload
from service.engine.request_batch import BatchableRequest
from service.observability.progress import Progress


class Kitchen:
    """Takes several orders at a time once the gate is open; remembers how many it took."""

    def __init__(self) -> None:
        self.engine, self.gate = Engine(200, 1), threading.Event()
        self.slow = threading.Event()
        self.took: list[list[Any]] = []
        self.stopped = 0

    def many(self, items: Sequence[Any], control: StepControl) -> list[Any]:
        self.took.append(list(items))
        if "spoils all" in items:
            raise MemoryError
        if "slow" in items:
            while not self.slow.is_set():
                control.stop_reason()  # at which others have a turn
                time.sleep(0.001)
        if "endless" in items:
            while control.stop_reason() is None:
                time.sleep(0.001)
            self.stopped += 1
        return [ValueError(item) if item == "wrong" else f"{item}!" for item in items]

    async def order(self, item: Any, key: str = "k", **rest: Any) -> Any:
        def alone(control: StepControl) -> str:
            if item == "spoils all":
                raise MemoryError
            return f"{item} alone"

        workload = Workload("model", batchable=BatchableRequest(key, item, self.many), **rest)
        return (await self.engine.run(alone, workload)).value

    async def together(self, *orders: Any) -> list[Any]:
        """What comes of orders that wait for the same gate."""
        gate = asyncio.ensure_future(
            self.engine.run(lambda _: self.gate.wait(30), Workload("model"))
        )
        await asyncio.sleep(0.05)
        waiting = [asyncio.ensure_future(order) for order in orders]
        await asyncio.sleep(0.05)
        self.gate.set()
        found = await asyncio.gather(*waiting, return_exceptions=True)
        await gate
        return found


@pytest.fixture
def kitchen():
    kitchen = Kitchen()
    yield kitchen
    kitchen.gate.set()
    kitchen.slow.set()
    kitchen.engine.close()
    assert not kitchen.engine._open_batches


def test_alike_begin_together(kitchen: Kitchen) -> None:
    orders = (kitchen.order(number) for number in range(10))
    assert asyncio.run(kitchen.together(*orders)) == [f"{number}!" for number in range(10)]
    assert kitchen.took == [list(range(10))]


def test_what_comes_at_once_begins_at_once(kitchen: Kitchen) -> None:
    async def play() -> list[str]:
        return await asyncio.gather(*(kitchen.order(number) for number in range(10)))

    assert asyncio.run(play()) == [f"{number}!" for number in range(10)]
    assert kitchen.took == [list(range(10))], "the first has not begun alone"


def test_a_party_waits_for_who_comes_turn_by_turn(kitchen: Kitchen) -> None:
    async def play() -> None:
        orders = []
        for number in range(5):
            orders.append(asyncio.ensure_future(kitchen.order(number)))
            await asyncio.sleep(0)
        await asyncio.gather(*orders)

    asyncio.run(play())
    assert kitchen.took == [list(range(5))]


def test_the_next_begins_when_the_one_before_is_over(
    kitchen: Kitchen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "_LATEST_S", 60)

    async def play() -> None:
        slow = asyncio.ensure_future(kitchen.order("slow"))
        while not kitchen.took:
            await asyncio.sleep(0.001)
        orders = []
        for number in range(3):  # each in a turn of its own, while there is one that computes
            orders.append(asyncio.ensure_future(kitchen.order(number)))
            await asyncio.sleep(0.002)
        assert kitchen.took == [["slow"]]
        kitchen.slow.set()
        assert await asyncio.gather(slow, *orders) == ["slow!", "0!", "1!", "2!"]

    asyncio.run(play())
    assert kitchen.took == [["slow"], [0, 1, 2]]


def test_nobody_waits_long_for_the_one_before(kitchen: Kitchen) -> None:
    async def play() -> None:
        endless = asyncio.ensure_future(kitchen.order("endless"))
        while not kitchen.took:
            await asyncio.sleep(0.001)
        assert await asyncio.wait_for(kitchen.order("quick"), 5) == "quick!"
        assert not endless.done()
        endless.cancel()
        await asyncio.wait([endless])

    asyncio.run(play())
    assert kitchen.took == [["endless"], ["quick"]]


def test_where_the_one_that_is_to_follow_was_left_others_begin(
    kitchen: Kitchen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "_LATEST_S", 60)

    async def play() -> None:
        slow = asyncio.ensure_future(kitchen.order("slow"))
        while not kitchen.took:
            await asyncio.sleep(0.001)
        gone = asyncio.ensure_future(kitchen.order("gone"))
        await asyncio.sleep(0.002)
        gone.cancel()
        await asyncio.wait([gone])
        assert await asyncio.wait_for(kitchen.order("stays"), 5) == "stays!"
        kitchen.slow.set()
        assert await slow == "slow!"

    asyncio.run(play())
    assert kitchen.took == [["slow"], ["stays"]]


def test_what_all_have_left_before_does_not_begin(kitchen: Kitchen) -> None:
    async def play() -> None:
        orders = [asyncio.ensure_future(kitchen.order("gone")) for _ in range(2)]
        for order in orders:  # in the turn in which they join
            asyncio.get_running_loop().call_soon(order.cancel)
        await asyncio.wait(orders)
        assert await kitchen.order("next") == "next!"

    asyncio.run(play())
    assert kitchen.took == [["next"]]


def test_what_is_not_alike_does_not(kitchen: Kitchen) -> None:
    orders = [kitchen.order(1), kitchen.order(2, "other"), kitchen.order(3)]
    orders.append(kitchen.order(4, is_isolated=True))
    assert asyncio.run(kitchen.together(*orders)) == ["1!", "2!", "3!", "4 alone"]
    assert sorted(map(len, kitchen.took)) == [1, 2]


def test_a_party_has_room_for_so_many(kitchen: Kitchen) -> None:
    orders = (kitchen.order(number) for number in range(100))
    assert asyncio.run(kitchen.together(*orders)) == [f"{number}!" for number in range(100)]
    assert [len(items) for items in kitchen.took] == [64, 36]


def test_an_error_is_of_one(kitchen: Kitchen) -> None:
    found = asyncio.run(kitchen.together(*map(kitchen.order, ("a", "wrong", "b"))))
    assert (found[0], found[2]) == ("a!", "b!")
    assert isinstance(found[1], ValueError)


def test_where_all_are_too_much_each_is_tried_alone(kitchen: Kitchen) -> None:
    found = asyncio.run(kitchen.together(*map(kitchen.order, ("a", "spoils all", "b"))))
    assert (found[0], found[2]) == ("a alone", "b alone")
    assert isinstance(found[1], MemoryError)


def test_who_leaves_takes_nobody_along(kitchen: Kitchen) -> None:
    async def play() -> None:
        gate = asyncio.ensure_future(
            kitchen.engine.run(lambda _: kitchen.gate.wait(30), Workload("model"))
        )
        await asyncio.sleep(0.05)
        gone, stays = (asyncio.ensure_future(kitchen.order(name)) for name in ("gone", "stays"))
        await asyncio.sleep(0.02)
        gone.cancel()
        await asyncio.sleep(0.02)
        kitchen.gate.set()
        assert await stays == "stays!"
        assert kitchen.took == [["stays"]]
        await gate

    asyncio.run(play())


def test_who_joins_while_the_others_leave_is_answered(kitchen: Kitchen) -> None:
    async def play() -> None:
        gate = asyncio.ensure_future(
            kitchen.engine.run(lambda _: kitchen.gate.wait(30), Workload("model"))
        )
        await asyncio.sleep(0.05)
        first, second = (asyncio.ensure_future(kitchen.order(name)) for name in ("a", "b"))
        await asyncio.sleep(0.02)
        first.cancel()  # in one turn: it leaves, another one comes, and the second leaves
        comes = asyncio.ensure_future(kitchen.order("comes"))
        second.cancel()
        await asyncio.sleep(0.02)
        kitchen.gate.set()
        assert await comes == "comes!"
        await gate

    asyncio.run(play())
    assert kitchen.took == [["comes"]]


def test_where_all_have_left_it_stops(kitchen: Kitchen) -> None:
    async def play() -> None:
        gate = asyncio.ensure_future(
            kitchen.engine.run(lambda _: kitchen.gate.wait(30), Workload("model"))
        )
        await asyncio.sleep(0.05)
        orders = [asyncio.ensure_future(kitchen.order("endless")) for _ in range(3)]
        await asyncio.sleep(0.05)
        kitchen.gate.set()
        await gate
        while not kitchen.took:
            await asyncio.sleep(0.005)
        assert kitchen.took == [["endless"] * 3]
        for order in orders[:2]:
            order.cancel()
        await asyncio.sleep(0.1)
        assert kitchen.stopped == 0, "one of them waits still"
        orders[2].cancel()
        await asyncio.gather(*orders, return_exceptions=True)
        assert await kitchen.order("next") == "next!"
        async with asyncio.timeout(10):
            while not kitchen.stopped:  # it may hear of it after the next one was done
                await asyncio.sleep(0.005)
        assert kitchen.stopped == 1

    asyncio.run(play())


def test_all_are_told_of_each_step(kitchen: Kitchen) -> None:
    def many(items: Sequence[Any], run: Any) -> list[Any]:
        for _ in range(5):
            run.count_step()
        return list(items)

    several = [Progress() for _ in range(3)]

    async def play() -> None:
        orders = (
            kitchen.engine.run(
                lambda _: None,
                Workload("model", batchable=BatchableRequest("k", place, many)),
                progress=progress,
            )
            for place, progress in enumerate(several)
        )
        await kitchen.together(*orders)

    asyncio.run(play())
    assert [progress.relaxation_steps for progress in several] == [5, 5, 5]
