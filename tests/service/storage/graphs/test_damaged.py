"""Stored graphs of which something is damaged, in Redis and in SQLite."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable

import numpy as np
import orjson
import pytest

from service.errors import Problem
from service.storage.graphs import GraphKey, GraphPast, GraphStore, PastChange, ToScore
from tests.support.graph_stores import (
    ROOM,
    in_redis,
    in_sqlite,
    listed,
    make_alert,
    node,
    on_redis,
    play,
    probe,
    put,
    ring,
    update,
    watched_ring,
)
from tests.support.redis_server import RedisServer
from tests.support.transaction_graphs import SETTINGS, make_rows, stream

HEADS, LOG, BASE = "basin:graphs:", "basin:graph:/g:log", "basin:graph:/g:base"


def read_head(client) -> dict:
    return orjson.loads(client.hget(HEADS, "g"))


def cut_head(client) -> None:
    client.hset(HEADS, "g", client.hget(HEADS, "g")[:-5])


def raise_revision(client) -> None:
    client.hset(HEADS, "g", orjson.dumps(read_head(client) | {"revision": 9}))


def drop_check(client) -> None:
    head = read_head(client)
    del head["form"], head["check"]
    client.hset(HEADS, "g", orjson.dumps(head))


DAMAGES: dict[str, Callable] = {
    "a head that is no JSON": lambda client: client.hset(HEADS, "g", b"garbage"),
    "a head of other fields": lambda client: client.hset(HEADS, "g", b'{"features":5}'),
    "a head that is cut": cut_head,
    "a head with another revision": raise_revision,
    "a head without a check": drop_check,
    "a base of garbage": lambda client: client.set(BASE, b"garbage"),
    "no base": lambda client: client.delete(BASE),
    "a base of another type": lambda client: (client.delete(BASE), client.hset(BASE, "a", "b")),
    "a log with more": lambda client: client.rpush(LOG, b"garbage"),
    "a log that is cut": lambda client: client.rpop(LOG),
    "a log in another order": lambda client: client.lmove(LOG, LOG),
    "an update twice": lambda client: client.lset(LOG, 0, client.lindex(LOG, 1)),
    "no log": lambda client: client.delete(LOG),
    "a log of another type": lambda client: (client.delete(LOG), client.set(LOG, b"x")),
}


async def require_damaged(store: GraphStore) -> None:
    with pytest.raises(Problem) as error:
        await store.get("g")
    assert error.value.kind == "graphs-unavailable"
    assert "is damaged" in error.value.detail


async def fill(store: GraphStore) -> None:
    await put(store, "g", ring(3))
    for i in range(4, 7):
        await update(store, "g", node(i, (i, 0)))
    await put(store, "h", ring(4))


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("end", ["restored", "deleted", "replaced"])
def test_one_damaged_graph_disturbs_no_other(redis_server, damage, end):
    server: RedisServer = redis_server()

    async def work():
        async with on_redis(server, 1) as servers, in_redis(server, ROOM, 1 << 30) as other:
            [one] = servers.stores
            await fill(one)
            expected = listed(await one.get("g"))
            DAMAGES[damage](server.client)
            for _ in range(2):  # the first may have to set a key aside
                with pytest.raises(Problem, match="graphs-unavailable"):
                    await other.get("g")
            await require_damaged(other)
            assert listed(await other.get("h")) == listed(ring(4))
            await update(other, "h", node(9, (9, 0)))
            await put(other, "i", ring(3))
            graphs = await other.list_metadata()
            assert list(graphs.graphs) == ["h", "i"]
            assert graphs.damaged == ["g"]
            assert await other.alerts.list_all_pending() == []
            if end == "restored":
                assert listed(await one.get("g")) == expected
                assert listed(await other.get("g")) == expected
                assert servers.count(0, "restored") == 1
                assert (await update(other, "g", node(9, (9, 0)))).revision == 5
                assert (await one.get("g")).num_nodes == 7
            elif end == "deleted":
                await other.delete("g")
                with pytest.raises(Problem, match="unknown-graph"):
                    await one.get("g")
                assert server.client.keys("basin:graph:/g:*") == []
            else:
                await put(other, "g", ring(5))
                assert listed(await one.get("g")) == listed(ring(5))

    play(work)


def test_another_type_of_the_key_of_all_graphs(redis_server):
    server: RedisServer = redis_server()

    async def work():
        async with on_redis(server) as servers:
            one, two = servers.stores
            await fill(one)
            await put(two, "w", watched_ring(3))
            for key in (
                HEADS,
                "basin:graphs-pending",
                "basin:graphs-watched",
                "basin:graphs-ended",
            ):
                server.client.delete(key)
                server.client.set(key, "x")
                with pytest.raises(Problem, match="graphs-unavailable"):
                    await put(one, "i", ring(3))
                assert server.client.get(f"basin:damaged:{key[6:]}") == b"x"
                await probe(one)
                await probe(two)
                graphs = await one.list_metadata()
                assert list(graphs.graphs) == ["g", "h", "w"]
                assert (await two.get("g")).num_nodes == 6
                [watched] = await one.alerts.list_changed_graphs()
                assert watched.place == GraphKey("", "w")

    play(work)


def test_entries_that_no_server_wrote_are_set_aside(redis_server):
    server: RedisServer = redis_server()
    client, rows = server.client, make_rows(20)

    async def work():
        async with on_redis(server) as servers:
            one, two = servers.stores
            await put(one, "s", stream())
            await put(one, "w", watched_ring(3))
            added = await one.add_transactions("s", SETTINGS.schema, rows.take(np.arange(10)))
            client.hset(HEADS, b"\xff", b"{}")
            for key in ("pending", "webhooks", "watched"):
                for field in (b"\xff", b"/x", b"garbage"):
                    client.hset(f"basin:graphs-{key}", field, b"\xff")
                client.hset(f"basin:graphs-{key}", "/y", b'["","x","t","u",0]')
            client.hset("basin:graphs-webhooks", "/s", b"{")
            client.hset("basin:graphs-watched", "/w", b"{")
            [head] = [head for id, head in (await one.list_metadata()).graphs.items() if id == "w"]
            changed = f"basin:graph:/w:changed:{head.tag}"
            client.hset(changed, "garbage", b"[]")
            client.hset(changed, "7:ab", b"{")
            await two.alerts.list_all_webhooks()  # what is set aside is listed again after it
            await two.alerts.list_changed_graphs()
            for _ in range(2):
                pending = await one.alerts.list_all_pending()
                assert await two.alerts.list_all_pending() == pending
                webhooks = await two.alerts.list_all_webhooks()
                assert sorted(each.place.id for each in webhooks) == ["s", "w"]
                [watched] = await two.alerts.list_changed_graphs()
            assert watched.place.id == "w"
            changes = await two.alerts.read_changed(watched)
            assert [(each.revision, each.node_ids) for each in changes] == [(1, None), (7, None)]
            assert client.hexists("basin:damaged:graphs-pending", "/x")
            [pending] = await two.alerts.list_all_pending()
            assert pending.node_ids == added.new
            assert await two.alerts.record(pending, [make_alert("1"), b"garbage", make_alert("2")])
            alerts = await one.alerts.read("s", added.head.tag, 0, 2)
            assert alerts == [(1, make_alert("1")), (3, make_alert("2"))]
            damaged = {label for name, label, _ in servers.events[1] if name == "damaged"}
            assert damaged == {"graphs"}

    play(work)


def test_transactions_wait_while_their_graph_is_damaged(redis_server):
    server: RedisServer = redis_server()

    async def work():
        async with on_redis(server) as servers:
            one, two = servers.stores
            await put(one, "g", stream())
            added = await one.add_transactions("g", SETTINGS.schema, make_rows(10))
            [pending] = added.pending
            server.client.hset(HEADS, "g", b"garbage")
            assert not await two.alerts.record(pending, [make_alert("1")])
            assert await two.alerts.record_accounts(pending, []) is None
            assert len(await two.alerts.list_all_pending()) == 1
            assert (await one.get("g")).num_nodes == 10
            assert await two.alerts.record(pending, [make_alert("1")])

    play(work)


def test_what_earlier_versions_wrote_gets_the_same_digest_from_all(redis_server):
    server: RedisServer = redis_server()
    newer = ("form", "length", "check", "digest", "base_digest", "snapshot", "replaces")

    async def work():
        async with in_redis(server, ROOM, 1 << 30) as store:
            await fill(store)
            before = (await store.get("g")).digest
            expected = listed(await store.get("g"))
        for id in ("g", "h"):
            head = orjson.loads(server.client.hget(HEADS, id) or b"")
            older = {name: value for name, value in head.items() if name not in newer}
            server.client.hset(HEADS, id, orjson.dumps(older))
        async with on_redis(server) as servers:
            one, two = servers.stores
            assert (await one.list_metadata()).graphs["g"].digest == before
            assert listed(await two.get("g")) == expected
            assert (await update(two, "g", node(9, (9, 0)))).revision == 5
            assert (await one.get("g")).num_nodes == 7

    play(work)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE heads SET head = X'00ff' WHERE id = 'g'",
        "UPDATE heads SET head = replace(head, 'revision', 'rexision') WHERE id = 'g'",
        "UPDATE bases SET base = X'00ff' WHERE id = 'g'",
        "DELETE FROM bases WHERE id = 'g'",
        "UPDATE updates SET made = X'00ff' WHERE id = 'g' AND revision = 3",
        "DELETE FROM updates WHERE id = 'g' AND revision = 3",
    ],
)
def test_damaged_rows_of_sqlite(tmp_path, statement):
    path = tmp_path / "g.sqlite"

    async def work():
        async with in_sqlite(path, ROOM, 1 << 30) as store:
            await fill(store)
        with sqlite3.connect(path) as file:
            file.execute(statement)
        file.close()
        async with in_sqlite(path, ROOM, 1 << 30) as store:
            await require_damaged(store)
            assert listed(await store.get("h")) == listed(ring(4))
            await update(store, "h", node(9, (9, 0)))
            await put(store, "i", ring(3))
            listing = await store.list_metadata()
            assert {"h", "i"} <= set(listing.graphs)
            await store.delete("g")
            with pytest.raises(Problem, match="unknown-graph"):
                await store.get("g")
            await put(store, "g", ring(5))

    play(work)


def test_the_past_of_a_graph_is_bounded(monkeypatch):
    monkeypatch.setattr("service.storage.graphs.past.MAX_DIGESTS", 4)
    monkeypatch.setattr("service.storage.graphs.past._CHANGE_BYTES", 30)
    digests = [f"{i:064x}" for i in range(40)]
    past = GraphPast(3, digests[3])
    for i in range(4, 40):
        past.add(PastChange(i, digests[i], b"ten bytes.", ToScore()))
        assert past.revision == i
        assert past.get(i) == digests[i]
        assert past.get(i + 1) is None
    remembered = [i for i in range(40) if past.get(i) == digests[i]]
    assert remembered == list(range(past.first, 40))
    assert 4 <= len(remembered) <= 8
    assert [change.revision for change in past.list_changes(37)] == [38, 39]
    assert [change.revision for change in past.list_changes()] == [37, 38, 39]
    other = GraphPast(38, digests[38])
    assert past.find_common(other) == 38
    assert past.find_common(GraphPast(39, digests[0])) is None
    replaced = past.replace(40, digests[0], digests[39])
    assert (replaced.get(39), replaced.get(40)) == (digests[39], digests[0])
    assert replaced.list_changes() == []
    assert past.replace(40, digests[0], digests[1]).get(38) is None
