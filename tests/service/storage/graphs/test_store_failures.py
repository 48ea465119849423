"""Stored graphs where others write them too, or their store is away, full or not theirs."""

from __future__ import annotations

import asyncio
import sqlite3

import pytest

from service.errors import Problem
from service.storage.graphs import (
    SqliteGraphLog,
)
from service.storage.sqlite import StoreError
from tests.support.graph_stores import (
    ROOM,
    in_redis,
    in_sqlite,
    listed,
    node,
    play,
    put,
    ring,
    update,
)


def test_two_servers_see_each_others_changes(redis_server):
    server = redis_server()

    async def work():
        async with in_redis(server, ROOM, 1 << 30) as one, in_redis(server, ROOM, 1 << 30) as two:
            await put(one, "g", ring(3))
            assert (await two.get("g")).num_nodes == 3
            both = [
                update(store, "g", node(2 * i + k, (2 * i + k, 0)))
                for i in range(2, 40)
                for k, store in enumerate((one, two))
            ]
            await asyncio.gather(*both)
            assert listed(await one.get("g")) == listed(await two.get("g"))
            assert (await one.get("g")).num_nodes == 3 + 2 * 38
            await put(two, "g", ring(4))
            assert listed(await one.get("g")) == listed(ring(4))
            await one.delete("g")
            with pytest.raises(Problem, match="unknown-graph"):
                await two.get("g")

    play(work)


def test_two_servers_write_bases_past_each_other(redis_server, monkeypatch):
    monkeypatch.setattr("service.storage.graphs.graph_cache._LOG_BYTES", 100)
    server = redis_server()

    async def work():
        async with in_redis(server, ROOM, 1 << 30) as one, in_redis(server, ROOM, 1 << 30) as two:
            await put(one, "g", ring(3))
            for i in range(3, 80):
                store = (one, two)[i % 7 % 2]
                await update(store, "g", node(i, (i, i - 1)))
            assert listed(await one.get("g")) == listed(await two.get("g"))
            assert (await two.get_metadata("g")).since > 1
        async with in_redis(server, ROOM, 1 << 30) as three:
            assert (await three.get("g")).num_nodes == 80

    play(work)


def test_while_redis_is_away_graphs_are_read_as_they_were(redis_server):
    server = redis_server()

    async def work():
        async with in_redis(server, ROOM, 1 << 30) as store:
            await put(store, "g", ring(3))
            server.kill()
            assert (await store.get("g")).num_nodes == 3
            for refused in (
                update(store, "g", node(5)),
                put(store, "h", ring(3)),
                store.list_metadata(),
            ):
                with pytest.raises(Problem, match="graphs-unavailable"):
                    await refused
            server.start()
            await store._log._redis.probe()  # as a server does each second
            assert (await update(store, "g", node(5))).revision == 2

    play(work)


def test_what_cannot_be_written_has_not_happened(tmp_path, monkeypatch):
    async def work():
        async with in_sqlite(tmp_path / "g.sqlite", ROOM, 1 << 30) as store:
            await put(store, "g", ring(3))
            journal = store._log
            append = journal.append

            def full(*args):
                append(*args)
                raise sqlite3.OperationalError("database or disk is full")

            monkeypatch.setattr(journal, "append", full)
            with pytest.raises(Problem, match="graphs-unavailable"):
                await update(store, "g", node(5))
            monkeypatch.undo()
            assert (await store.get("g")).num_nodes == 3
            assert (await store.get_metadata("g")).revision == 1
            await update(store, "g", node(6))
            assert (await store.get("g")).num_nodes == 4

    play(work)


@pytest.mark.parametrize("content", [b"no database" * 1000, None])
def test_a_file_that_is_another_s_is_left_alone(tmp_path, content):
    path = tmp_path / "g.sqlite"
    if content is None:
        with sqlite3.connect(path) as other:
            other.execute("CREATE TABLE t (a)")
        content = path.read_bytes()
    else:
        path.write_bytes(content)

    async def work():
        async with in_sqlite(path, ROOM, 1 << 30) as store:
            for refused in (store.get("g"), put(store, "g", ring(3)), store.list_metadata()):
                with pytest.raises(Problem, match="graphs-unavailable"):
                    await refused

    play(work)
    assert path.read_bytes() == content


def test_two_servers_do_not_share_a_file(tmp_path):
    async def work():
        path = tmp_path / "g.sqlite"
        async with in_sqlite(path, ROOM, 1 << 30) as one:
            await put(one, "g", ring(3))
            async with in_sqlite(path, ROOM, 1 << 30) as two:
                with pytest.raises(Problem, match="graphs-unavailable"):
                    await two.list_metadata()
                one.close()
                assert (await two.get_metadata("g")).num_nodes == 3  # it was left meanwhile

    play(work)


def test_a_journal_that_is_not_open_says_so(tmp_path):
    with pytest.raises(StoreError, match="is not open"), SqliteGraphLog(tmp_path / "g").batch():
        pass
