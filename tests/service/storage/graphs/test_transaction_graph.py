"""Graphs of transactions, in SQLite and in Redis: what lasts, what is forgotten, alerts."""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace

import numpy as np
import pytest

from models.inputs.transactions import TransactionHistory, TransactionRecipe, Transactions
from service.errors import Problem
from service.storage.graphs import GraphLimits, NewTransactions, StreamSettings, TransactionGraph
from service.storage.graphs.base import GraphKey
from service.storage.sqlite import StoreError
from service.validation.arrays import pointer_builder
from tests.support.graph_stores import in_redis, in_sqlite, play, ring

ROOM = GraphLimits(max_graphs=3, max_nodes=5000, max_edges=10)
AT = pointer_builder("transactions")
RECIPE = TransactionRecipe(
    time="when",
    source="source",
    target="target",
    amount="amount",
    categories={"kind": ("k0",)},
    shared=("device",),
    numbers=("fee",),
    medians={"amount": 1.0, "fee": 0.0},
    with_missing=("amount",),
    calendar=False,
    windows=(5.0, 20.0),
    accounts_pay_and_are_paid=True,
)
SETTINGS = StreamSettings("model", RECIPE, None, 2 * RECIPE.reach)
PLACE = GraphKey("", "g")


def make_rows(count: int, seed: int = 0) -> NewTransactions:
    rng = np.random.default_rng(seed)

    def names(prefix: str, many: int) -> np.ndarray:
        return np.array([f"{prefix}{i}" for i in rng.integers(many, size=count)], object)

    amount = rng.exponential(10, count)
    amount[rng.random(count) < 0.1] = np.nan
    device = names("d", 5)
    device[::7] = ""
    rows = Transactions(
        np.sort(rng.random(count) * count),
        *(names("a", 20), names("a", 20), amount),
        {"kind": names("k", 3), "device": device},
        {"fee": rng.random(count)},
    )
    return NewTransactions([f"t{i}" for i in range(count)], rows, rows.time)


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
    head, new, _ = await store.add_transactions("g", SETTINGS.schema, rows)
    return head, new


def neighborhoods(graph: TransactionGraph, rows: NewTransactions):
    taken, node_ids = graph.build_neighborhoods(rows.node_ids, 10_000, AT)
    assert node_ids[: len(rows.node_ids)] == rows.node_ids
    return taken.x, taken.edge_index, node_ids


def test_what_is_added_is_there_after_a_restart(opened, monkeypatch):
    monkeypatch.setattr("service.storage.graphs.store._LOG_BYTES", 2000)
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
        graph.build_neighborhoods(["t4950", oldest], 10_000, AT)
    [fault] = error.value.faults
    assert (fault.pointer, fault.code) == ("/transactions/1", "expired")


def test_alerts_are_recorded_once_with_numbers(opened):
    rows = make_rows(40)

    async def work():
        async with opened() as store:
            await put(store)
            head, new = await add(store, rows)
            _, again, pending = await store.add_transactions("g", SETTINGS.schema, rows)
            assert again == []  # what was not scored is, when it is sent again
            assert [each.revision for each in pending] == [head.revision]
            raised = store.alerts.watch("g")
            [pending] = await store.alerts.list_pending()
            assert (pending.place, pending.revision) == (PLACE, head.revision)
            assert pending.node_ids == new
            assert await store.alerts.record("g", head.revision, [b"1", b"2"])
            assert raised.is_set()
            assert not await store.alerts.record("g", head.revision, [b"1", b"2"])
            assert await store.alerts.list_pending() == []
            assert await store.add_transactions("g", SETTINGS.schema, rows) == (head, [], [])
        async with opened() as store:
            assert await store.alerts.read("g", 0, 10) == [(1, b"1"), (2, b"2")]
            assert await store.alerts.read("g", 1, 10) == [(2, b"2")]
            assert await store.alerts.read("g", 0, 1) == [(1, b"1")]
            later = rows.take(np.arange(40))
            later = NewTransactions([f"u{i}" for i in range(40)], later.rows, later.sent + 40)
            later = replace(later, rows=replace(later.rows, time=later.sent))
            head, _ = await add(store, later)
            assert await store.alerts.record("g", head.revision, [b"3"])
            assert await store.alerts.read("g", 2, 10) == [(3, b"3")]
            await put(store)  # another graph: nothing of the one before
            assert await store.alerts.read("g", 0, 10) == []
            await add(store, rows)
            await store.delete("g")
            assert await store.alerts.list_pending() == []

    play(work)


def test_the_oldest_alerts_are_dropped(opened, monkeypatch):
    for module in ("sqlite", "redis"):
        monkeypatch.setattr(f"service.storage.graphs.{module}.KEPT_ALERTS", 3)
    rows = make_rows(40)

    async def work():
        async with opened() as store:
            await put(store)
            for i in range(10):
                head, _ = await add(store, rows.take(np.arange(4 * i, 4 * i + 4)))
                assert await store.alerts.record("g", head.revision, [b"%d" % i])
            assert await store.alerts.read("g", 0, 10) == [(8, b"7"), (9, b"8"), (10, b"9")]

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
                    _, _, [pending] = await store.add_transactions("g", SETTINGS.schema, row)
                    alert = [rows.node_ids[i].encode()]
                    await store.alerts.record("g", pending.revision, alert)

            await asyncio.gather(send(one, 0), send(two, 1))
            graphs = [await store.get_transactions("g") for store in (one, two)]
            of_both = [neighborhoods(graph, rows) for graph in graphs]
            for a, b in zip(*of_both, strict=True):
                np.testing.assert_array_equal(a, b)
            alerts = await one.alerts.read("g", 0, 1000)
            assert [number for number, _ in alerts] == list(range(1, 201))
            assert {alert.decode() for _, alert in alerts} == set(rows.node_ids)

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
