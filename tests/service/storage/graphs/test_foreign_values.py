"""What other programs, or a damaged disk, left in a store of graphs beside what servers wrote."""

from __future__ import annotations

import sqlite3

import numpy as np
import orjson

from tests.support.graph_stores import (
    ROOM,
    go_back,
    in_redis,
    in_sqlite,
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


def test_a_foreign_entry_among_alerts_holds_up_no_reader(redis_server):
    server: RedisServer = redis_server()

    async def work():
        async with in_redis(server, ROOM, 1 << 30) as store:
            await put(store, "g", watched_ring(9))
            [graph] = await store.alerts.list_changed_graphs()
            key = f"basin:graph:/g:alerts:{graph.tag}"
            server.client.xadd(key, {"alert": make_alert("1")}, id="1-0")
            server.client.xadd(key, {"alert": "garbage"}, id="5-1")
            server.client.xadd(key, {"alert": make_alert("6")}, id="6-0")
            for limit in (1, 2, 100):
                read, after = list[bytes](), 0
                while page := await store.alerts.read("g", graph.tag, after, limit):
                    read += [alert for _, alert in page]
                    after = page[-1][0]
                assert read == [make_alert("1"), make_alert("6")]

    play(work)


def test_alerts_of_another_type_do_not_keep_a_graph_from_being_restored(saved):
    async def work():
        async with on_redis(saved, 1) as servers:
            [one] = servers.stores
            await put(one, "g", watched_ring(9))
            [graph] = await one.alerts.list_changed_graphs()
            saved.client.save()
            head = await update(one, "g", node(20, (20, 0)))
            go_back(saved)
            saved.client.set(f"basin:graph:/g:alerts:{graph.tag}", "x")
            await probe(one)  # sets the key aside
            assert saved.client.llen("basin:graph:/g:log") == 0  # the graph is restored whole later
            await probe(one)
            assert await one.get_metadata("g") == head
            assert saved.client.llen("basin:graph:/g:log") == 1
            assert saved.client.get(f"basin:damaged:graph:/g:alerts:{graph.tag}") == b"x"
            assert await one.alerts.read("g", graph.tag, 0, 10) == []

    play(work)


def test_rows_with_keys_that_are_no_text_are_left_alone(tmp_path):
    path = tmp_path / "g.sqlite"

    async def fill():
        async with in_sqlite(path, ROOM, 1 << 30) as store:
            await put(store, "a", ring(3))
            await put(store, "s", stream())
            rows = make_rows(20)
            added = await store.add_transactions("s", SETTINGS.schema, rows.take(np.arange(10)))
            await store.alerts.record(added.pending[0], [make_alert("1")])
            await store.add_transactions("s", SETTINGS.schema, rows.take(np.arange(10, 20)))
            await put(store, "w", watched_ring(9))

    async def work():
        async with in_sqlite(path, ROOM, 1 << 30) as store:
            graphs = await store.list_metadata()
            assert (list(graphs.graphs), graphs.damaged) == (["s", "w"], [])
            graph = await store.get("w")
            assert await store.alerts.list_all_pending() == []
            assert await store.alerts.list_all_webhooks() == []
            assert await store.alerts.list_changed_graphs() == []
            assert await store.get("w") is graph
            await update(store, "w", node(20, (20, 0)))

    play(fill)
    with sqlite3.connect(path) as db:
        db.execute("UPDATE heads SET id = CAST(x'61ff' AS TEXT) WHERE id = 'a'")
        db.execute("UPDATE pending SET id = CAST(x'73ff' AS TEXT)")
        db.execute("UPDATE webhooks SET owner = CAST(x'ff' AS TEXT)")
        db.execute("UPDATE alerts SET owner = CAST(x'ff' AS TEXT)")
        db.execute("UPDATE changed SET tag = CAST(x'ff' AS TEXT)")
    db.close()
    play(work)


def test_a_foreign_field_among_graphs_is_not_listed(redis_server):
    server: RedisServer = redis_server()

    async def work():
        async with in_redis(server, ROOM, 1 << 30) as store:
            await put(store, "g", ring(3))
            head = server.client.hget("basin:graphs:", "g")
            for id in (b"G G", b"g\xff", b"g\n"):
                server.client.hset("basin:graphs:", id, head)
            graphs = await store.list_metadata()
            assert (list(graphs.graphs), graphs.damaged) == (["g"], [])

    play(work)


def test_two_transactions_of_one_revision_are_distinct(redis_server):
    """After Redis has lost a revision, another one may have its number."""
    server: RedisServer = redis_server()

    async def work():
        async with in_redis(server, ROOM, 1 << 30) as store:
            await put(store, "s", stream())
            rows = make_rows(4)
            first = await store.add_transactions("s", SETTINGS.schema, rows.take(np.arange(2)))
            [lost] = first.pending
            [(field, row)] = server.client.hgetall("basin:graphs-pending").items()
            server.client.hdel("basin:graphs-pending", field)
            owner, id, tag, revision, *others = orjson.loads(row)
            field = f"/s:{tag}:{revision + 1}:{lost.digest}"
            row = orjson.dumps([owner, id, tag, revision + 1, *others])
            server.client.hset("basin:graphs-pending", field, row)
            added = await store.add_transactions("s", SETTINGS.schema, rows)
            assert added.new == ["t2", "t3"]
            assert [each.revision for each in added.pending] == [revision + 1] * 2
            assert [each.node_ids for each in added.pending] == [["t2", "t3"], ["t0", "t1"]]

    play(work)
