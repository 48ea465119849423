"""Stored graphs, in SQLite and in Redis: what lasts, and who sees it when."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from service.errors import Problem
from service.storage.graphs import (
    GraphLimits,
    Schema,
    Update,
)
from tests.support.graph_stores import (
    MANY,
    NONE,
    NONE_OF_ONE,
    listed,
    node,
    play,
    put,
    ring,
    update,
)


def test_what_is_stored_and_changed_is_there_after_a_restart(opened):
    async def work():
        async with opened() as store:
            head, new = await put(store, "g", ring(5))
            assert new
            assert (head.num_nodes, head.num_edges, head.revision) == (5, 5, 1)
            for i in range(5, 40):
                head = await update(store, "g", node(i, (i, i - 1), (i, 0)))
            assert (head.num_nodes, head.num_edges, head.revision) == (40, 75, 36)
            gone = Update((), NONE, (), (7, 8), ((0, 1, 0),))
            head = await update(store, "g", gone)
            assert (head.num_nodes, head.revision) == (38, 37)
            before = listed(await store.get("g"))
        async with opened() as store:
            assert await store.get_metadata("g") == head
            assert listed(await store.get("g")) == before
            again = await update(store, "g", gone)
            assert again.revision == 37  # nothing changed

    play(work)


def test_many_changes_are_written_as_a_base(opened, monkeypatch):
    monkeypatch.setattr("service.storage.graphs.graph_cache._LOG_BYTES", 200)

    async def work():
        async with opened() as store:
            await put(store, "g", ring(3))
            for i in range(3, 60):
                await update(store, "g", node(i, (i, i - 1)))
            head, before = await store.get_metadata("g"), listed(await store.get("g"))
            assert head.since > 1
            assert head.revision == 58
        async with opened() as store:
            assert listed(await store.get("g")) == before
            assert (await update(store, "g", node(90))).revision == 59

    play(work)


def test_an_edge_that_goes_and_comes_again_is_no_change(opened, monkeypatch):
    """Whatever order edges lie in: in memory, in a base, on another server."""
    monkeypatch.setattr("service.storage.graphs.graph_cache._LOG_BYTES", 0)

    async def work():
        async with opened() as store:
            await put(store, "g", ring(4))
            for i in (3, 2):
                await update(store, "g", Update((), NONE, ((0, i, 0),)))
            before = await store.get_metadata("g")
            again = Update((), NONE, ((0, 1, 0),), (), ((0, 1, 0),))
            assert (await update(store, "g", again)).revision == before.revision
            both = Update((9,), NONE_OF_ONE, ((0, 1, 0), (9, 0, 0)), (), ((0, 1, 0), (0, 3, 0)))
            after = await update(store, "g", both)
            assert after.revision == before.revision + 1
            assert after.num_edges == before.num_edges
            there = listed(await store.get("g"))
        async with opened() as store:
            assert listed(await store.get("g")) == there
            assert await store.get_metadata("g") == after

    play(work)


def test_one_that_fails_fails_alone(opened, monkeypatch):
    async def work():
        async with opened() as store:
            await put(store, "g", ring(3))
            await put(store, "broken", ring(3))
            read = store._log.read

            def broken(place, known):
                assert place.id != "broken"
                return read(place, known)

            monkeypatch.setattr(store._log, "read", broken)
            store._cache.clear()
            asked = [store.get("broken" if i == 3 else "g") for i in range(8)]
            asked += [update(store, "g", node(10 + i)) for i in range(8)]
            found = await asyncio.gather(*asked, return_exceptions=True)
            failed = [i for i, one in enumerate(found) if isinstance(one, BaseException)]
            assert failed == [3]
            assert isinstance(found[3], AssertionError)
            assert (await store.get("g")).num_nodes == 11

    play(work)


def test_a_change_made_for_another_graph_is_refused(opened):
    async def work():
        async with opened() as store:
            await put(store, "g", ring(3))
            other = Schema(("b",), ("only",))
            with pytest.raises(Problem, match="graph-replaced"):
                await store.update("g", other, node(5))

    play(work)


def test_after_the_end_nothing_waits(opened):
    async def work():
        async with opened() as store:
            await put(store, "g", ring(3))
        with pytest.raises(Problem, match="graphs-unavailable"):
            await update(store, "g", node(5))

    play(work)


def test_a_graph_that_replaces_another_goes_on_counting(opened):
    async def work():
        async with opened() as store:
            await put(store, "g", ring(5))
            await update(store, "g", node(9))
            head, new = await put(store, "g", ring(7))
            assert (new, head.revision, head.num_nodes) == (False, 3, 7)
            assert listed(await store.get("g")) == listed(ring(7))
            await store.delete("g")
            assert (await store.list_metadata()).graphs == {}
            for ask in (
                store.get("g"),
                store.get_metadata("g"),
                store.delete("g"),
                store.get("../x"),
            ):
                with pytest.raises(Problem, match="unknown-graph"):
                    await ask
            with pytest.raises(Problem, match="unknown-graph"):
                await update(store, "g", node(1))

    play(work)


def test_owners_have_their_own(opened):
    async def work():
        async with opened() as store:
            one, two = store.scoped_to("one"), store.scoped_to("two")
            await put(one, "g", ring(5))
            await put(two, "g", ring(6))
            assert (await one.get_metadata("g")).num_nodes == 5
            await two.delete("g")
            assert (await one.get("g")).num_nodes == 5
            assert (await store.list_metadata()).graphs == {}

    play(work)


def test_room_is_each_owners(opened):
    async def work():
        async with opened(GraphLimits(max_graphs=2, max_nodes=12, max_edges=12)) as store:
            one, two = store.scoped_to("one"), store.scoped_to("two")
            await put(one, "g", ring(5))
            await put(one, "h", ring(5))
            await put(two, "g", ring(12))
            five_more = Update((), NONE, tuple((0, i, 0) for i in range(5)))
            for refused, detail in (
                (put(one, "i", ring(1)), "2 graphs"),
                (put(one, "h", ring(8)), "12 nodes"),
                (update(one, "h", five_more), "12 edges"),
            ):
                with pytest.raises(Problem, match="store-full") as told:
                    await refused
                assert detail in told.value.detail
            await update(one, "g", node(5))
            await update(one, "g", node(6))
            with pytest.raises(Problem, match="store-full"):
                await update(one, "g", node(7))
            await update(one, "g", node(6, (6, 5)))  # it was there
            await update(one, "g", Update((), NONE, (), (6,)))
            await update(one, "g", node(7))
            assert (await one.get_metadata("g")).num_nodes == 7
        async with opened(GraphLimits(max_graphs=2, max_nodes=3, max_edges=3)) as store:
            one = store.scoped_to("one")  # what has become too large may become smaller
            await update(one, "g", Update((), NONE, (), (6, 7)))
            await put(one, "h", ring(4))

    play(work)


def test_those_not_asked_for_leave_the_memory_and_come_back(opened):
    async def work():
        async with opened(memory=1) as store:
            for name in ("a", "b", "c"):
                await put(store, name, ring(10))
            for i in range(10, 20):
                for name in ("a", "b", "c"):
                    await update(store, name, node(i, (i, 0)))
            for name in ("a", "b", "c"):
                assert (await store.get(name)).num_nodes == 20
            assert len(store._cache) == 1

    play(work)


def test_changes_at_once_are_all_made_and_none_is_seen_in_part(opened):
    """Each change adds a node with an edge to all that are there: no graph between two changes has
    a node without."""

    async def work():
        async with opened(GraphLimits(1, 1000, 100_000)) as store:
            await put(store, "g", ring(1))
            over = asyncio.Event()

            async def look() -> int:
                looked = 0
                while not over.is_set():
                    graph = await store.get("g")
                    near = await asyncio.to_thread(graph.sample_neighborhood, [0], 1, *MANY)
                    n, e = near.graph.num_nodes, near.graph.edge_index.shape[1]
                    assert e == 1 + 2 * (n - 1)
                    assert near.revision >= n - 1
                    looked += 1
                return looked

            looking = asyncio.create_task(look())
            updates = [node(i, (i, 0), (0, i)) for i in range(1, 200)]
            heads = []
            while updates:
                some, updates = updates[:20], updates[20:]
                heads += await asyncio.gather(*(update(store, "g", change) for change in some))
            over.set()
            assert await looking > 3
            assert sorted(head.revision for head in heads) == list(range(2, 201))
            assert (await store.get("g")).num_nodes == 200

    play(work)


def test_what_is_deleted_takes_no_memory_for_long(opened):
    async def work():
        async with opened() as store:
            await put(store, "g", ring(5))
            graph = await store.get("g")
            before = graph.nbytes
            for _ in range(3000 // 500):
                many = range(100, 600)
                x = np.zeros((500, 1), np.float32)
                edges = tuple((0, id, 0) for id in many)
                await update(store, "g", Update(tuple(many), x, edges))
                await update(store, "g", Update((), NONE, (), tuple(many)))
            after = await store.get("g")
            assert after is not graph
            assert listed(after) == listed(ring(5))
            assert after.sample_neighborhood([0], 1, *MANY).node_ids[0] == 0
            assert after.nbytes < before + 600_000

    play(work)
