"""Limits that are divided among clients."""

from __future__ import annotations

import asyncio
import math

import pytest

from service.shares import FairSemaphore, Shares


def fill(shares: Shares, client: str) -> int:
    """Take one by one what a client may take; return how many."""
    count = 0
    while shares.may_take(client):
        shares.take(client)
        count += 1
    return count


def test_a_client_may_take_what_it_leaves_free() -> None:
    shares = Shares(60)
    assert [fill(shares, client) for client in "abcd"] == [30, 15, 7, 4]
    assert shares.may_take("e")
    for client in "bcd":
        shares.release(client, shares.held_by(client))
    assert fill(shares, "a") == 0
    assert fill(shares, "b") == 15


def test_clients_that_take_in_turns_have_equal_shares() -> None:
    shares = Shares(60)
    clients = "abc"
    while any(shares.may_take(client) for client in clients):
        for client in clients:
            if shares.may_take(client):
                shares.take(client)
    assert [shares.held_by(client) for client in clients] == [15, 15, 15]
    assert shares.has_room(15)
    assert not shares.has_room(16)


def test_one_unit_is_for_anyone_as_long_as_one_is_free() -> None:
    shares = Shares(1)
    assert shares.may_take("a")
    with shares.hold("a"):
        assert not shares.may_take("a")
        assert not shares.may_take("b")
    assert shares.may_take("b")
    assert not shares.may_take("b", 2)


def test_the_client_without_a_name_has_no_share() -> None:
    shares = Shares(10)
    assert fill(shares, "") == 10
    assert not shares.may_take("a")


def test_what_fails_is_released() -> None:
    shares = Shares(4)
    with pytest.raises(ZeroDivisionError), shares.hold("a", 2):
        raise ZeroDivisionError
    assert (shares.used, shares.held_by("a")) == (0, 0)


class Holders:
    """Clients that hold a semaphore until they are ended, in the order in which they came."""

    def __init__(self, semaphore: FairSemaphore) -> None:
        self._semaphore, self.order = semaphore, list[str]()
        self._ends: dict[str, asyncio.Event] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def start(self, *names: str) -> None:
        """Let each begin to wait; the client is the letters of its name."""
        for name in names:
            self._ends[name] = asyncio.Event()
            self._tasks[name] = asyncio.create_task(self._hold(name))
            await asyncio.sleep(0)
        await asyncio.sleep(0)

    async def _hold(self, name: str) -> None:
        async with self._semaphore.reserve(name.rstrip("0123456789")):
            self.order.append(name)
            await self._ends[name].wait()

    async def end(self, name: str) -> None:
        self._ends[name].set()
        await self._tasks[name]
        await asyncio.sleep(0)

    async def cancel(self, name: str) -> None:
        self._tasks[name].cancel()
        await asyncio.gather(self._tasks[name], return_exceptions=True)


def test_a_free_place_goes_to_the_owner_that_holds_fewest() -> None:
    async def main() -> None:
        holders = Holders(FairSemaphore(2))
        await holders.start("a1", "a2", "a3", "a4", "b1", "b2")
        assert holders.order == ["a1", "a2"]
        await holders.end("a1")
        assert holders.order[2:] == ["b1"]
        await holders.end("a2")
        assert holders.order[3:] == ["a3"]
        await holders.cancel("a4")
        await holders.end("a3")
        assert holders.order[4:] == ["b2"]
        for name in ("b1", "b2"):
            await holders.end(name)
        await holders.start("c1", "c2")
        assert holders.order[5:] == ["c1", "c2"]

    asyncio.run(main())


def test_one_client_leaves_places_to_others() -> None:
    async def main() -> None:
        holders = Holders(FairSemaphore(3, max_per_client=2))
        await holders.start("a1", "a2", "a3", "b1")
        assert holders.order == ["a1", "a2", "b1"]
        await holders.end("b1")
        assert holders.order == ["a1", "a2", "b1"]
        await holders.end("a1")
        assert holders.order[3:] == ["a3"]
        await holders.start("0", "1")  # without a name
        assert holders.order[4:] == ["0"]

    asyncio.run(main())


def test_a_place_that_was_granted_to_a_cancelled_task_is_free_again() -> None:
    async def main() -> None:
        semaphore = FairSemaphore(1)

        async def use() -> None:
            async with semaphore.reserve("a"):
                pass

        async with semaphore.reserve("b"):
            waiting = asyncio.create_task(use())
            await asyncio.sleep(0)
        waiting.cancel()  # after the place was given to it, before it ran
        await asyncio.gather(waiting, return_exceptions=True)
        assert waiting.cancelled()
        await asyncio.wait_for(use(), 1)

    asyncio.run(main())


def test_a_client_is_limited_beside_others_alone() -> None:
    async def main() -> None:
        now = 0.0
        semaphore = FairSemaphore(math.inf, 1, alone_after_s=1.0, clock=lambda: now)
        holders = Holders(semaphore)
        await holders.start("a1", "a2")
        assert holders.order == ["a1", "a2"]
        await holders.start("b1", "b2", "a3")
        assert holders.order[2:] == ["b1"]
        now = 0.9
        await holders.start("a4")
        assert holders.order[3:] == []
        now = 1.1  # 1.1 s after b, and 0.2 s after a
        await holders.start("a5")
        assert sorted(holders.order[3:]) == ["a3", "a4", "a5"]
        await holders.end("b1")
        assert holders.order[6:] == ["b2"]
        now = 2.2
        await holders.start("c1")
        assert holders.order[7:] == ["c1"]
        await holders.start("b3", "c2")
        assert holders.order[8:] == []

    asyncio.run(main())
