"""Stored graphs where Redis comes back older or empty."""

from __future__ import annotations

import asyncio

import pytest

from service.errors import Problem
from service.storage.graphs import GraphKey, GraphStore, WatchedGraph
from tests.support.graph_stores import (
    ROOM,
    go_back,
    in_redis,
    listed,
    node,
    on_redis,
    play,
    probe,
    put,
    ring,
    update,
    watched_ring,
)
from tests.support.transaction_graphs import stream


@pytest.mark.parametrize("newer_first", [True, False])
def test_changes_that_redis_lost_are_written_again(saved, newer_first):
    async def work():
        async with on_redis(saved) as servers:
            one, two = servers.stores
            await put(one, "g", ring(3))
            await update(one, "g", node(4, (4, 0)))
            assert listed(await two.get("g")) == listed(await one.get("g"))
            saved.client.save()
            await update(one, "g", node(5, (5, 0)))
            before = await update(one, "g", node(6, (6, 0)))
            go_back(saved)
            for store in (one, two) if newer_first else (two, one):
                await probe(store)
            for store in (one, two):
                assert await store.get_metadata("g") == before
                assert (await store.get("g")).digest == before.digest
                assert (await store.get("g")).num_nodes == 6
            assert before.since == 1  # the changes were written, and not the whole graph
            assert servers.count(0, "restored") == 1
            assert servers.count(0, "lost") == servers.count(1, "lost") == 0
            after = await update(two, "g", node(7, (7, 0)))
            assert after.revision == 5
        async with in_redis(saved, ROOM, 1 << 30) as three:
            graph = await three.get("g")
            assert (graph.revision, graph.digest) == (5, after.digest)
            assert graph.num_nodes == 7

    play(work)


@pytest.mark.parametrize("loss", ["flushall", "older than all that is remembered"])
def test_a_whole_graph_is_written_again(saved, monkeypatch, loss):
    if loss != "flushall":
        monkeypatch.setattr("service.storage.graphs.past._MAX_CHANGES", 3)

    async def work():
        async with on_redis(saved) as servers:
            one, two = servers.stores
            await put(one, "g", ring(3))
            await put(one, "s", stream())
            saved.client.save()
            for i in range(4, 14):
                head = await update(one, "g", node(i, (i, 0)))
            assert (await two.get("g")).num_nodes == 13
            if loss == "flushall":
                saved.client.flushall()
            else:
                go_back(saved)
            await probe(two)
            await probe(one)
            for store in (one, two):
                after = await store.get_metadata("g")
                assert (after.revision, after.digest) == (11, head.digest)
                assert after.since == 11
                assert (await store.get_metadata("s")).model == "model"
            await update(two, "g", node(20, (20, 0)))
            assert listed(await one.get("g")) == listed(await two.get("g"))

    play(work)


def test_where_histories_have_parted_redis_counts(saved):
    async def work():
        async with on_redis(saved) as servers:
            one, two = servers.stores
            await put(one, "g", watched_ring(3))
            await update(two, "g", node(4, (4, 0)))
            saved.client.save()
            lost = await update(one, "g", node(5, (5, 0)))
            await update(one, "g", node(6, (6, 0)))
            go_back(saved)
            await probe(two)  # and this one goes on before the other has noticed
            head = await update(two, "g", node(7, (7, 0)))
            assert (head.revision, head.tag) == (lost.revision, lost.tag)
            assert head.digest != lost.digest
            await probe(one)
            assert await one.get_metadata("g") == head
            assert listed(await one.get("g")) == listed(await two.get("g"))
            assert servers.count(0, "lost") == 2
            assert servers.count(0, "restored") == servers.count(1, "restored") == 0
            # Nodes may have been scored by what was lost.
            changes = await one.alerts.read_changed(WatchedGraph(GraphKey("", "g"), head.tag))
            assert None in [each.node_ids for each in changes if each.revision == 3]

    play(work)


def test_a_replacement_that_redis_lost_is_written_again(saved):
    async def work():
        async with on_redis(saved) as servers:
            one, two = servers.stores
            await put(one, "g", ring(3))
            await update(one, "g", node(4))
            await two.get("g")
            saved.client.save()
            await update(one, "g", node(5))
            head, is_new = await put(one, "g", ring(7))
            assert (head.revision, is_new) == (4, False)
            go_back(saved)
            await probe(two)
            await probe(one)
            for store in (one, two):
                after = await store.get_metadata("g")
                assert (after.tag, after.digest) == (head.tag, head.digest)
                assert (await store.get("g")).num_nodes == 7
            assert servers.count(0, "lost") == servers.count(1, "lost") == 0

    play(work)


async def is_gone(store: GraphStore) -> bool:
    try:
        await store.get("g")
    except Problem as problem:
        return problem.kind == "unknown-graph"
    return False


def test_a_deletion_that_redis_lost_is_done_again(saved):
    async def work():
        async with on_redis(saved) as servers:
            one, two = servers.stores
            await put(one, "g", ring(3))
            await two.get("g")
            saved.client.save()
            await two.delete("g")
            go_back(saved)
            await probe(one)
            await probe(two)
            assert await is_gone(one)
            assert await is_gone(two)
            assert servers.count(1, "restored") == 1
            # Both know it: an empty Redis gets nothing back.
            saved.client.flushall()
            await probe(one)
            await probe(two)
            assert await is_gone(one)

    play(work)


def test_what_another_server_deleted_is_not_restored(saved):
    async def work():
        async with on_redis(saved) as servers:
            one, two = servers.stores
            await put(one, "g", ring(3))
            await put(two, "h", ring(4))
            await two.delete("g")
            saved.client.save()
            go_back(saved)  # nothing is lost
            await probe(one)  # which has not asked for it since
            await probe(two)
            assert await is_gone(one)
            assert await is_gone(two)
            assert (await one.get("h")).num_nodes == 4
            assert servers.count(0, "restored") == servers.count(1, "restored") == 0

    play(work)


def test_a_graph_that_took_the_place_of_a_deleted_one_stays(saved):
    async def work():
        async with on_redis(saved) as servers:
            one, _ = servers.stores
            await put(one, "g", ring(3))
            await update(one, "g", node(4))
            saved.client.save()
            await one.delete("g")
            head, is_new = await put(one, "g", ring(5))
            assert (head.revision, is_new) == (1, True)
            go_back(saved)
            await probe(one)
            assert (await one.get_metadata("g")).digest == head.digest
            async with in_redis(saved, ROOM, 1 << 30) as three:
                assert (await three.get("g")).num_nodes == 5

    play(work)


def test_what_redis_refuses_is_restored_later(saved):
    async def work():
        async with on_redis(saved) as servers:
            one, two = servers.stores
            saved.client.save()
            await put(one, "g", ring(3))
            go_back(saved)
            saved.client.config_set("maxmemory", 1)
            await probe(one)
            await probe(two)
            assert (await one.get("g")).num_nodes == 3
            saved.client.config_set("maxmemory", 0)
            await probe(one)  # no request to this server is needed
            assert (await two.get("g")).num_nodes == 3

    play(work)


def test_what_redis_refused_stays_in_memory_until_it_is_restored(saved):
    async def work():
        async with in_redis(saved, ROOM, 1) as one:
            saved.client.save()
            await put(one, "g", ring(3))
            go_back(saved)
            saved.client.config_set("maxmemory", 1)
            await probe(one)
            one._cache.evict(GraphKey("", "other"))  # as when that one is loaded
            assert one.cached_bytes > 1
            saved.client.config_set("maxmemory", 0)
            await probe(one)
            one._cache.evict(GraphKey("", "other"))
            assert one.cached_bytes == 0
            assert (await one.get("g")).num_nodes == 3

    play(work)


@pytest.mark.parametrize("kind", ["delete", "put", "update"])
def test_what_is_refused_has_not_happened(saved, kind):
    async def work():
        async with on_redis(saved, 1) as servers:
            [one] = servers.stores
            await put(one, "g", ring(3))
            saved.client.save()
            saved.kill()
            works = {
                "delete": lambda: one.delete("g"),
                "put": lambda: put(one, "g", ring(5)),
                "update": lambda: update(one, "g", node(9)),
            }
            with pytest.raises(Problem, match="graphs-unavailable"):
                await works[kind]()
            assert listed(await one.get("g")) == listed(ring(3))
            saved.start()
            await probe(one)
            assert listed(await one.get("g")) == listed(ring(3))
            async with in_redis(saved, ROOM, 1 << 30) as two:
                assert listed(await two.get("g")) == listed(ring(3))
            await works[kind]()

    play(work)


def test_reads_go_on_while_a_server_restores(saved):
    async def work():
        async with on_redis(saved, 1) as servers:
            [one] = servers.stores
            await put(one, "g", ring(3))
            saved.client.flushall()
            read = await asyncio.gather(probe(one), *(one.get("g") for _ in range(20)))
            assert all(graph.num_nodes == 3 for graph in read[1:])

    play(work)
