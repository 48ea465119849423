"""A Redis that comes back older, empty or as another one, and a server that notices."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

import pytest

from service.storage.redis_client import RedisClient, RedisUnavailableError
from tests.support.chaos.proxy import Proxy
from tests.support.redis_server import RedisServer

RedisStart = Callable[..., RedisServer]


class Watched:
    """A client with a function that restores, and what was counted."""

    def __init__(self, url: str) -> None:
        self.events: list[tuple[str, str]] = []
        self.restored: list[bool] = []  # whether others were refused meanwhile
        self.link = RedisClient(
            url, 0.5, lambda event, label, number: self.events.append((event, label))
        )
        self.link.add_restore(self.restore)

    def restore(self) -> None:
        with self.link.guard("test"):
            self.link.blocking_client.set("basin:restored", len(self.restored))
        self.restored.append(not self.link.is_available)


def test_no_command_reaches_a_restarted_redis_before_it_is_restored(
    redis_server: RedisStart,
) -> None:
    async def play() -> None:
        server = redis_server("--appendfsync", "always")
        watched = Watched(server.url)
        link = watched.link
        await link.probe()
        assert watched.restored == [False]  # at first only this server may be older
        await link.probe()
        assert watched.restored == [False]
        with link.guard("test"):
            await link.async_client.set("a", 1)
        server.kill()
        server.start()
        for client in (link.sync_client, link.blocking_client):
            with pytest.raises(RedisUnavailableError), link.guard("test"):
                client.set("a", 2)
            link.is_available = True  # as if no command had failed
        with pytest.raises(RedisUnavailableError), link.guard("test"):
            await link.async_client.set("a", 2)
        assert link.state == "away"
        assert server.client.get("a") == b"1"
        await link.probe()
        assert link.state == "up"
        assert watched.restored == [False, True]
        assert ("changes", "restarted") in watched.events
        with link.guard("test"):
            await link.async_client.set("a", 2)
            assert link.sync_client.get("a") == b"2"
        await link.close()

    asyncio.run(play())


def test_a_redis_that_was_emptied_is_another_one(redis_server: RedisStart) -> None:
    async def play() -> None:
        server = redis_server()
        one, two = Watched(server.url), Watched(server.url)
        await one.link.probe()
        await two.link.probe()
        server.client.flushall()
        with pytest.raises(RedisUnavailableError), one.link.guard("test"):
            one.link.require_history()
        await two.link.probe()
        await one.link.probe()
        for watched in (one, two):
            assert watched.restored == [False, True]
            assert watched.events.count(("changes", "replaced")) == 1
            with watched.link.guard("test"):
                watched.link.require_history()
            await watched.link.probe()
            assert len(watched.restored) == 2
            await watched.link.close()

    asyncio.run(play())


def test_what_was_not_restored_is_tried_again(redis_server: RedisStart) -> None:
    async def play() -> None:
        server = redis_server()
        watched = Watched(server.url)
        await watched.link.probe()
        calls: list[int] = []

        def fail_once() -> None:
            calls.append(1)
            if len(calls) == 1:
                raise RedisUnavailableError("it went away meanwhile")
            if len(calls) == 2:
                raise ValueError("a fault of the server")

        watched.link.add_restore(fail_once)
        server.kill()
        server.start()
        await watched.link.probe()
        assert watched.link.state == "away"
        await watched.link.probe()
        assert watched.link.state == "up"
        assert len(calls) == 2
        assert ("failures", "restore") in watched.events
        await watched.link.close()

    asyncio.run(play())


def test_a_user_that_may_not_read_the_id_of_the_process(redis_server: RedisStart) -> None:
    async def play() -> None:
        server = redis_server()
        server.client.execute_command(
            "ACL", "SETUSER", "basin", "on", ">word", "~basin:*", "+@all", "-info"
        )
        watched = RedisClient(server.url.replace("://", "://basin:word@"), 0.5)
        await watched.probe()
        with watched.guard("test"):
            watched.sync_client.set("basin:a", 1)
        assert watched.state == "up"
        await watched.close()

    asyncio.run(play())


def test_a_history_of_another_type_is_lost(redis_server: RedisStart) -> None:
    async def play() -> None:
        server = redis_server()
        watched = Watched(server.url)
        await watched.link.probe()
        server.client.delete("basin:history")
        server.client.rpush("basin:history", "x")
        await watched.link.probe()
        assert watched.link.state == "up"
        assert ("changes", "replaced") in watched.events
        await watched.link.close()

    asyncio.run(play())


def test_open_connections_to_a_redis_that_was_replaced_are_closed(
    redis_server: RedisStart,
) -> None:
    async def play() -> None:
        old, new = redis_server(), redis_server()
        proxy = Proxy(old.port)
        watched = Watched(f"redis://127.0.0.1:{proxy.port}/0")
        link = watched.link
        await link.probe()
        with link.guard("test"):
            link.sync_client.set("basin:a", 1)
        proxy.target = new.port  # the old one still answers on the connections that are open
        link.blocking_client.connection_pool.disconnect()
        with pytest.raises(RedisUnavailableError), link.guard("test"):
            link.blocking_client.get("basin:a")  # over a new connection
        await link.probe()
        assert watched.events.count(("changes", "replaced")) == 1
        with link.guard("test"):
            link.sync_client.set("basin:b", 1)
            await link.async_client.set("basin:c", 1)
        assert old.client.exists("basin:b", "basin:c") == 0
        assert new.client.exists("basin:b", "basin:c") == 2
        await link.close()
        proxy.close()

    asyncio.run(play())


def test_a_command_that_runs_while_connections_are_closed_gets_its_answer(
    redis_server: RedisStart,
) -> None:
    async def play() -> None:
        server = redis_server()
        watched = Watched(server.url)
        link = watched.link
        await link.probe()

        def wait() -> object:
            return link.blocking_client.blpop(["basin:list"], timeout=5)

        waiting = [asyncio.create_task(asyncio.to_thread(wait)) for _ in range(4)]
        while len(server.client.client_list(_type="normal")) < 6:
            await asyncio.sleep(0.01)
        slow = asyncio.create_task(link.async_client.blpop(["basin:list"], timeout=5))
        await asyncio.sleep(0.1)
        before = {client["id"] for client in server.client.client_list(_type="normal")}
        server.client.set("basin:history", "new")
        await link.probe()
        server.client.rpush("basin:list", *range(5))
        answers = await asyncio.gather(*waiting, slow)
        assert sorted(int(value) for _, value in answers) == list(range(5))
        after = {client["id"] for client in server.client.client_list(_type="normal")}
        assert len(before) == 7
        assert len(before & after) == 2  # that of this test, and that of the probes
        await link.close()

    asyncio.run(play())


def test_a_change_is_counted_once_however_often_it_is_restored(redis_server: RedisStart) -> None:
    async def play() -> None:
        server = redis_server()
        watched = Watched(server.url)
        await watched.link.probe()
        tries: list[int] = []

        def refuse_twice() -> None:
            tries.append(1)
            if len(tries) < 3:
                raise RedisUnavailableError("it went away meanwhile")

        watched.link.add_restore(refuse_twice)
        server.kill()
        server.start()
        for _ in range(3):
            await watched.link.probe()
        assert watched.link.state == "up"
        assert watched.events.count(("changes", "restarted")) == 1
        await watched.link.close()

    asyncio.run(play())


def test_a_command_that_runs_when_redis_is_replaced_is_done_or_unavailable(
    redis_server: RedisStart,
) -> None:
    async def play() -> None:
        server = redis_server()
        link = Watched(server.url).link
        await link.probe()
        is_over = False

        def ask() -> int:
            done = 0
            while not is_over:
                with suppress(RedisUnavailableError), link.guard("test"):
                    link.blocking_client.incr("a")
                    done += 1
                    pool = link.blocking_client.connection_pool
                    pool.disconnect(inuse_connections=False)  # so that the next one connects
            return done

        asking = [asyncio.to_thread(ask) for _ in range(4)]
        running = asyncio.gather(*asking, return_exceptions=True)
        for _ in range(20):
            server.client.flushall()
            await link.probe()
            await asyncio.sleep(0.005)
        is_over = True
        for done in await running:
            assert isinstance(done, int), repr(done)
            assert done
        await link.probe()  # the last commands may have met what the probe before restored
        assert link.state == "up"
        await link.close()

    asyncio.run(play())
