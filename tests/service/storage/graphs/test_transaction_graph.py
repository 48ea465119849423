"""Graphs of transactions, in SQLite and in Redis: what lasts, what is forgotten, alerts."""

from __future__ import annotations

import asyncio
import math
import sqlite3
from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest

from models.inputs.transactions import TransactionHistory
from service.errors import Problem
from service.storage.graphs import NewTransactions, StreamSettings, TransactionGraph
from service.storage.graphs.base import GraphKey
from service.storage.sqlite import StoreError
from tests.support.graph_stores import in_redis, in_sqlite, make_alert, play, ring
from tests.support.transaction_graphs import AT, RECIPE, ROOM, SETTINGS, make_rows

PLACE = GraphKey("", "g")


@pytest.fixture(params=["sqlite", "redis"])
def opened(request, tmp_path):
    """Opens a store, the same one each time."""
    if request.param == "sqlite":
        return lambda: in_sqlite(tmp_path / "g.sqlite", ROOM, 1 << 30)
    server = request.getfixturevalue("redis_server")()
    return lambda: in_redis(server, ROOM, 1 << 30)


async def put(store, settings: StreamSettings = SETTINGS) -> None:
    empty = TransactionGraph(settings, None, -math.inf, 0)
    await store.put("g", *await store.build(lambda: empty))


async def add(store, rows: NewTransactions):
    added = await store.add_transactions("g", SETTINGS.schema, rows)
    return added.head, added.new


def neighborhoods(graph: TransactionGraph, rows: NewTransactions):
    taken, node_ids = graph.build_neighborhoods(graph.find_targets(rows.node_ids, AT), 10_000, AT)
    assert node_ids[: len(rows.node_ids)] == rows.node_ids
    return taken.x, taken.edge_index, node_ids


def test_what_is_added_is_there_after_a_restart(opened, monkeypatch):
    monkeypatch.setattr("service.storage.graphs.graph_cache._LOG_BYTES", 2000)
    rows = make_rows(200)

    async def work():
        async with opened() as store:
            await put(store)
            for begin in range(0, 200, 10):
                _, new = await add(store, rows.take(np.arange(begin, begin + 10)))
                assert new == rows.node_ids[begin : begin + 10]
            head = await store.get_metadata("g")
            assert (head.num_nodes, head.revision, head.model) == (200, 21, "model")
            assert head.since > 1
            before = await store.get_transactions("g")
            described = before.describe(rows.node_ids)
            expected = neighborhoods(before, rows.take(np.arange(100, 200)))
        async with opened() as store:
            graph = await store.get_transactions("g")
            assert graph.describe(rows.node_ids) == described
            restored = neighborhoods(graph, rows.take(np.arange(100, 200)))
            np.testing.assert_allclose(restored[0], expected[0], rtol=1e-6, atol=1e-6)
            np.testing.assert_array_equal(restored[1], expected[1])
            assert restored[2] == expected[2]
            _, new = await add(store, rows)  # all of it again
            assert new == []
            assert (await store.get_metadata("g")).revision == head.revision

    play(work)


def test_it_describes_rows_as_they_are_sent():
    rows = make_rows(50)
    graph = TransactionGraph(SETTINGS, rows, -math.inf, 1)
    late = replace(
        rows.take(np.array([49])),
        node_ids=["late"],
        rows=replace(rows.rows.take(np.array([49])), time=rows.sent[49:] - 3.0),
        sent=rows.sent[49:] - 3.0,
    )
    change = graph.plan(late)
    assert change is not None
    graph.commit(change, 2)
    first, last = graph.describe(["t0", "late"])
    assert first["when"] == rows.sent[0]
    assert first["device"] is None
    assert first["late_by"] == 0
    assert last["when"] == rows.sent[49] - 3.0
    assert last["late_by"] == pytest.approx(3.0)
    assert graph.plan(late) is None


def test_what_is_forgotten_changes_no_score():
    rows = make_rows(5000)
    whole = TransactionHistory(RECIPE)
    whole.append(rows.rows)
    graph = TransactionGraph(SETTINGS, None, -math.inf, 0)
    sizes = list[int]()
    for begin in range(0, 5000, 50):
        change = graph.plan(rows.take(np.arange(begin, begin + 50)))
        assert change is not None
        graph.commit(change, graph.revision + 1)
        if graph.should_compact:
            graph = graph.compacted()
        sizes.append(graph.num_nodes)
        recent = np.arange(begin + 30, begin + 50)
        x, edges, _ = neighborhoods(graph, rows.take(recent))
        expected, _, own = whole.build_graph(recent)
        np.testing.assert_allclose(x[: len(own)], expected.x[own], rtol=1e-5, atol=1e-5)
        assert len(x) == len(expected.x)
        ends = np.sort(x[edges].reshape(-1, x.shape[1]), 0)
        ends_expected = np.sort(expected.x[expected.edge_index].reshape(-1, x.shape[1]), 0)
        np.testing.assert_allclose(ends, ends_expected, rtol=1e-5, atol=1e-5)
    assert max(sizes) < 2000
    oldest = next(node_id for node_id in rows.node_ids if node_id in graph)
    with pytest.raises(Problem) as error:
        graph.find_targets(["t4950", oldest], AT)
    [fault] = error.value.faults
    assert (fault.pointer, fault.code) == ("/transactions/1", "expired")


def test_alerts_are_recorded_once_with_numbers(opened):
    rows = make_rows(40)

    async def work():
        async with opened() as store:
            await put(store)
            first = await store.add_transactions("g", SETTINGS.schema, rows)
            again = await store.add_transactions("g", SETTINGS.schema, rows)
            assert again.new == []  # what was not scored is, when it is sent again
            assert [each.revision for each in again.pending] == [first.head.revision]
            raised = store.alerts.watch("g")
            [pending] = await store.alerts.list_all_pending()
            assert (pending.place, pending.revision) == (PLACE, first.head.revision)
            assert pending.node_ids == first.new
            assert await store.alerts.record(pending, [make_alert("1"), make_alert("2")])
            assert raised.is_set()
            assert not await store.alerts.record(pending, [make_alert("1"), make_alert("2")])
            assert await store.alerts.list_all_pending() == []
            again = await store.add_transactions("g", SETTINGS.schema, rows)
            assert (again.new, again.pending) == ([], [])
        tag = first.head.tag
        async with opened() as store:
            assert await store.alerts.read("g", tag, 0, 10) == [
                (1, make_alert("1")),
                (2, make_alert("2")),
            ]
            assert await store.alerts.read("g", tag, 1, 10) == [(2, make_alert("2"))]
            assert await store.alerts.read("g", tag, 0, 1) == [(1, make_alert("1"))]
            sent = rows.sent + 40
            ids = [f"u{i}" for i in range(40)]
            later = NewTransactions(ids, replace(rows.rows, time=sent), sent)
            [pending] = (await store.add_transactions("g", SETTINGS.schema, later)).pending
            assert await store.alerts.record(pending, [make_alert("3")])
            assert await store.alerts.read("g", tag, 2, 10) == [(3, make_alert("3"))]

    play(work)


@pytest.mark.parametrize("deleted", [False, True])
def test_another_graph_has_nothing_of_the_one_before(opened, deleted):
    rows, hook = make_rows(40), replace(SETTINGS, webhook="https://a.b/c")

    async def work():
        async with opened() as store:
            await put(store, hook)
            before = await store.add_transactions("g", SETTINGS.schema, rows)
            [pending] = before.pending
            assert await store.alerts.record(pending, [make_alert("1")])
            [first] = await store.alerts.list_all_webhooks()
            assert (first.place, first.url, first.delivered) == (PLACE, hook.webhook, 0)
            other = NewTransactions([f"v{i}" for i in range(40)], rows.rows, rows.sent + 40)
            other = replace(other, rows=replace(rows.rows, time=other.sent))
            again = await store.add_transactions("g", SETTINGS.schema, other)
            if deleted:
                await store.delete("g")
                assert await store.alerts.list_all_pending() == []
            await put(store, hook)
            after = await store.add_transactions("g", SETTINGS.schema, rows)
            [later] = after.pending
            assert await store.alerts.read("g", after.head.tag, 0, 10) == []
            assert await store.alerts.read("g", before.head.tag, 0, 10) == []
            for old in again.pending:  # of a request that was slow
                assert not await store.alerts.record(old, [make_alert("old")])
            assert await store.alerts.record(later, [make_alert("new")])
            await store.alerts.mark_delivered(first, 1)
            [second] = await store.alerts.list_all_webhooks()
            assert (second.tag, second.delivered) == (after.head.tag, 0)
            assert await store.alerts.claim(second.place, "delivering", 60)
            await store.alerts.mark_delivered(second, 1)
            assert [each.delivered for each in await store.alerts.list_all_webhooks()] in ([], [1])
            assert await store.alerts.claim(
                second.place, "delivering", 60
            )  # the one before has ended

    play(work)


def test_one_server_at_a_time_delivers(redis_server):
    server, hook = redis_server(), replace(SETTINGS, webhook="https://a.b/c")

    async def work():
        async with in_redis(server, ROOM, 1 << 30) as one, in_redis(server, ROOM, 1 << 30) as two:
            await put(one, hook)
            [webhook] = await two.alerts.list_all_webhooks()
            assert await one.alerts.claim(webhook.place, "delivering", 60)
            assert not await two.alerts.claim(webhook.place, "delivering", 60)
            await two.alerts.mark_delivered(webhook, 0)  # ends no claim but its own
            assert not await two.alerts.claim(webhook.place, "delivering", 60)
            await one.alerts.mark_delivered(webhook, 0)
            assert await two.alerts.claim(webhook.place, "delivering", 60)

    play(work)


def test_what_is_not_scored_is_not_forgotten(opened):
    settings = replace(SETTINGS, keep=RECIPE.reach)
    rows = make_rows(4000)

    async def work():
        async with opened() as store:
            await put(store, settings)
            first = await store.add_transactions("g", SETTINGS.schema, rows)
            sent = rows.sent[-1:] + 1.0
            for name in ("a", "b"):
                one = rows.take(np.array([0]))
                one = NewTransactions([name], replace(one.rows, time=sent), sent)
                added = await store.add_transactions("g", SETTINGS.schema, one)
                if name == "a":
                    assert added.graph.num_nodes == 4001
                    for pending in (*first.pending, *added.pending):
                        assert await store.alerts.record(pending, [])
            assert added.graph.num_nodes < 2000
            assert "t0" in first.graph  # which is still to be scored there

    play(work)


@pytest.mark.parametrize("version", [1, 2, 3])
def test_a_file_of_a_version_before_is_opened(tmp_path, version):
    path = tmp_path / "g.sqlite"

    async def work():
        async with in_sqlite(path, ROOM, 1 << 30) as store:
            await store.put("ring", *await store.build(lambda: ring(3)))
        with closing(sqlite3.connect(path)) as file:
            since = {2: ("pending", "alerts", "webhooks"), 3: ("changed", "above"), 4: ("scored",)}
            for table in (table for later in range(version + 1, 5) for table in since[later]):
                file.execute(f"DROP TABLE {table}")
            file.execute(f"PRAGMA user_version = {version}")
        async with in_sqlite(path, ROOM, 1 << 30) as store:
            assert (await store.get_nodes_and_edges("ring")).num_nodes == 3
            await put(store)
            added = await store.add_transactions("g", SETTINGS.schema, make_rows(10))
            assert len(added.pending) == 1

    play(work)


def test_the_oldest_alerts_are_dropped(opened, monkeypatch):
    for module in ("sqlite_alerts", "redis_alerts"):
        monkeypatch.setattr(f"service.storage.graphs.{module}.KEPT_ALERTS", 3)
    rows = make_rows(40)

    async def work():
        async with opened() as store:
            await put(store)
            for i in range(10):
                row = rows.take(np.arange(4 * i, 4 * i + 4))
                added = await store.add_transactions("g", SETTINGS.schema, row)
                assert await store.alerts.record(added.pending[0], [make_alert(str(i))])
            left = await store.alerts.read("g", added.head.tag, 0, 10)
            assert left == [(8, make_alert("7")), (9, make_alert("8")), (10, make_alert("9"))]

    play(work)


def test_a_change_that_is_not_written_is_not_there(opened, monkeypatch):
    rows = make_rows(40)

    async def work():
        async with opened() as store:
            await put(store)
            await add(store, rows.take(np.arange(20)))

            def fail(*arguments):
                raise StoreError("no room")

            with monkeypatch.context() as patch:
                patch.setattr(store._log, "append", fail)
                with pytest.raises(Problem, match="graphs-unavailable"):
                    await add(store, rows.take(np.arange(20, 40)))
            assert (await store.get_transactions("g")).num_nodes == 20
            _, new = await add(store, rows)
            assert new == rows.node_ids[20:]

    play(work)


def test_servers_add_to_one_graph(redis_server):
    server = redis_server()
    rows = make_rows(200)
    sent = rows.sent * SETTINGS.max_late / 250  # none is too late, whichever server is quicker
    rows = replace(rows, rows=replace(rows.rows, time=sent), sent=sent)

    async def work():
        async with in_redis(server, ROOM, 1 << 30) as one, in_redis(server, ROOM, 1 << 30) as two:
            await put(one)

            async def send(store, begin: int):
                for i in range(begin, 200, 2):  # late ones too
                    row = rows.take(np.array([i]))
                    added = await store.add_transactions("g", SETTINGS.schema, row)
                    await store.alerts.record(added.pending[0], [make_alert(rows.node_ids[i])])

            await asyncio.gather(send(one, 0), send(two, 1))
            graphs = [await store.get_transactions("g") for store in (one, two)]
            of_both = [neighborhoods(graph, rows) for graph in graphs]
            for a, b in zip(*of_both, strict=True):
                np.testing.assert_array_equal(a, b)
            alerts = await one.alerts.read("g", (await one.get_metadata("g")).tag, 0, 1000)
            assert [number for number, _ in alerts] == list(range(1, 201))
            assert {alert for _, alert in alerts} == set(map(make_alert, rows.node_ids))

    play(work)


def test_kinds_are_kept_apart(opened):
    async def work():
        async with opened() as store:
            await put(store)
            await store.put("ring", *await store.build(lambda: ring(3)))
            assert (await store.get_nodes_and_edges("ring")).num_nodes == 3
            for wrong in (store.get_nodes_and_edges("g"), store.get_transactions("ring")):
                with pytest.raises(Problem, match="invalid-request"):
                    await wrong

    play(work)
