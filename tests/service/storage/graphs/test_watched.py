"""What of a watched graph is to be scored, and which nodes are above the threshold."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from models.inputs.graph import Graph
from service.storage.graphs import (
    DynamicGraph,
    GraphSnapshot,
    GraphStore,
    ScoredNodes,
    Update,
    WatchedGraph,
    WatchSettings,
)
from service.storage.graphs.base import GraphKey
from service.validation.ids import NodeId
from tests.support.graph_stores import (
    NONE,
    ROOM,
    SCHEMA,
    in_redis,
    in_sqlite,
    make_alert,
    node,
    play,
    put,
    ring,
    update,
)

WATCH = WatchSettings("m", threshold=0.5, webhook="https://a.b/c")


def watched_ring(nodes: int) -> DynamicGraph:
    row = np.arange(nodes)
    graph = Graph(np.zeros((nodes, 1), np.float32), np.stack([row, (row + 1) % nodes]))
    return DynamicGraph(SCHEMA, GraphSnapshot(graph, list(range(nodes)), 0), WATCH)


async def claim(store: GraphStore) -> WatchedGraph:
    """Claim the graph that has changed."""
    [graph] = await store.alerts.list_changed_graphs()
    assert await store.alerts.claim(graph.place, "scoring", 60)
    return graph


async def record(
    store: GraphStore,
    graph: WatchedGraph,
    revision: int,
    above: Sequence[NodeId] = (),
    below: Sequence[NodeId] = (),
    finished: Sequence[int] = (),
) -> int | None:
    alerts = {node_id: make_alert(f"{node_id} at {revision}") for node_id in above}
    changes = await store.alerts.read_changed(graph)
    keys = [each.key for each in changes if each.revision in finished]
    return await store.alerts.record_scores(ScoredNodes(graph, revision, alerts, below, keys))


async def read(store: GraphStore, graph: WatchedGraph) -> list[bytes]:
    return [alert for _, alert in await store.alerts.read("g", graph.tag, 0, 100)]


@pytest.fixture(params=["sqlite", "redis"])
def opened(request, tmp_path):
    """Opens a store, the same one each time."""
    if request.param == "sqlite":
        return lambda: in_sqlite(tmp_path / "g.sqlite", ROOM, 1 << 30)
    server = request.getfixturevalue("redis_server")()
    return lambda: in_redis(server, ROOM, 1 << 30)


def test_what_changes_is_to_be_scored_until_it_is(opened):
    async def work():
        async with opened() as store:
            await put(store, "other", ring(3))
            await put(store, "g", watched_ring(9))
            await update(store, "g", node(20, (20, 0)))
            await update(store, "g", Update((), NONE, (), (3,), ((5, 6, 0),)))
            await update(store, "g", Update((), NONE, (), (3,), ()))  # which changes nothing
            assert (await store.get_metadata("g")).watch == WATCH
        async with opened() as store:
            assert (await store.get_nodes_and_edges("g")).watch == WATCH
            graph = await claim(store)
            assert graph.place == GraphKey("", "g")
            changes = await store.alerts.read_changed(graph)
            assert [
                (each.revision, each.node_ids and sorted(map(int, each.node_ids)))
                for each in changes
            ] == [(1, None), (2, [0, 20]), (3, [2, 3, 4, 5, 6])]
            known = {each.key for each in changes[:2]}
            assert await store.alerts.read_changed(graph, known) == changes[2:]
            head = await store.get_metadata("g")
            assert await store.alerts.find_scored_revision("g", head) == 0
            assert await record(store, graph, 3, [1], [2], [1]) == 1
            assert await store.alerts.find_scored_revision("g", head) == 1
            assert await record(store, graph, 3, [], [], [2, 3]) == 0
            assert await store.alerts.list_changed_graphs() == []
            assert await store.alerts.find_scored_revision("g", head) == 3
            [webhook] = await store.alerts.list_all_webhooks()
            assert webhook.url == WATCH.webhook

    play(work)


def test_a_node_raises_another_alert_once_it_was_below(opened):
    async def work():
        async with opened() as store:
            await put(store, "g", watched_ring(9))
            graph = await claim(store)
            assert await record(store, graph, 1, [1, 2, 3], [4]) == 3
            assert await record(store, graph, 1, [2, 4]) == 1
            assert await store.alerts.claim(graph.place, "scoring", 0.05)  # until then
        async with opened() as store:
            while not await store.alerts.claim(graph.place, "scoring", 60):
                pass
            assert await record(store, graph, 1, [4], [1]) == 0
            assert await record(store, graph, 1, [1, 2]) == 1
            assert await read(store, graph) == [
                make_alert("1 at 1"),
                make_alert("2 at 1"),
                make_alert("3 at 1"),
                make_alert("4 at 1"),
                make_alert("1 at 1"),
            ]

    play(work)


def test_a_deleted_node_is_forgotten_and_so_is_its_score(opened):
    async def work():
        async with opened() as store:
            await put(store, "g", watched_ring(9))
            graph = await claim(store)
            assert await record(store, graph, 1, [1, 2, 7]) == 3
            await update(store, "g", Update((), NONE, (), (1, 2)))
            # Both come back; one was scored before it was deleted, and that is not recorded.
            await update(store, "g", node(1))
            await update(store, "g", node(2))
            assert await record(store, graph, 1, [1, 3], [7, 8]) == 0  # all are neighbours or gone
            assert await record(store, graph, 1, [5], [7]) == 1
            assert await record(store, graph, 4, [1, 2, 7], [], [1, 2, 3, 4]) == 3
            assert await read(store, graph) == [
                *(
                    make_alert("1 at 1"),
                    make_alert("2 at 1"),
                    make_alert("7 at 1"),
                    make_alert("5 at 1"),
                ),
                *(make_alert("1 at 4"), make_alert("2 at 4"), make_alert("7 at 4")),
            ]

    play(work)


@pytest.mark.parametrize("deleted", [False, True])
def test_another_graph_has_nothing_of_the_one_before(opened, deleted):
    async def work():
        async with opened() as store:
            await put(store, "g", watched_ring(9))
            graph = await claim(store)
            assert await record(store, graph, 1, [1]) == 1
            if deleted:
                await store.delete("g")
                assert await store.alerts.list_changed_graphs() == []
            await put(store, "g", watched_ring(5))
            other = await claim(store)
            assert other.tag != graph.tag
            assert await record(store, graph, 1, [2], [], [1]) is None
            assert await record(store, other, 2, [1]) == 1
            assert await read(store, other) == [make_alert("1 at 2")]
            revision = 1 if deleted else 2
            [change] = await store.alerts.read_changed(other)
            assert (change.revision, change.node_ids) == (revision, None)
            await put(store, "g", ring(5))
            assert await store.alerts.list_changed_graphs() == []
            assert await record(store, other, 2, [1]) is None

    play(work)


def test_one_server_at_a_time_scores(redis_server):
    server = redis_server()

    async def work():
        async with in_redis(server, ROOM, 1 << 30) as one, in_redis(server, ROOM, 1 << 30) as two:
            await put(one, "g", watched_ring(9))
            graph = await claim(one)
            assert not await two.alerts.claim(graph.place, "scoring", 60)
            assert await two.alerts.claim(graph.place, "delivering", 60)
            assert await record(two, graph, 1, [1], [], [1]) is None
            await update(two, "g", node(20, (20, 0)))
            assert await record(one, graph, 1, [0, 1], [], [1]) == 1  # 0 has changed since
            assert await one.alerts.claim(graph.place, "scoring", 0.05)  # until then
            while not await two.alerts.claim(graph.place, "scoring", 60):
                pass
            assert await record(one, graph, 2, [0]) is None
            assert await record(two, graph, 2, [0, 1], [], [2]) == 1
            assert await one.alerts.list_changed_graphs() == []

    play(work)
