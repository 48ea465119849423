"""Alerts that a Redis has lost which comes back with the same graph."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from service.endpoints.alerts.backlog import NodeQueue
from service.storage.graphs import GraphStore, ScoredNodes, WatchedGraph
from service.validation.ids import NodeId
from tests.support.graph_stores import (
    go_back,
    make_alert,
    node,
    on_redis,
    play,
    probe,
    put,
    update,
    watched_ring,
)
from tests.support.transaction_graphs import SETTINGS, make_rows, stream


async def take_changes(store: GraphStore, graph: WatchedGraph, queue: NodeQueue) -> None:
    """Add to the queue what is to be scored, as a server does."""
    for change in await store.alerts.read_changed(graph, queue.unfinished):
        queue.add(range(9) if change.node_ids is None else change.node_ids, [change.key])


async def score(
    store: GraphStore, graph: WatchedGraph, queue: NodeQueue, above: Sequence[NodeId], count: int
) -> None:
    """Score the next nodes of the queue as a server does, those of `above` above the threshold."""
    assert await store.alerts.claim(graph.place, "scoring", 60)
    await take_changes(store, graph, queue)
    part = list(queue)[:count]
    revision = (await store.get_metadata(graph.place.id)).revision
    alerts = {id: make_alert(str(id)) for id in part if id in above}
    below = [id for id in part if id not in above]
    finished = queue.list_finished(len(part))
    raised = await store.alerts.record_scores(ScoredNodes(graph, revision, alerts, below, finished))
    assert raised is not None
    queue.remove(len(part))


async def read(store: GraphStore, graph: WatchedGraph, after: int = 0) -> list[tuple[int, bytes]]:
    return await store.alerts.read(graph.place.id, graph.tag, after, 100)


def test_lost_alerts_of_an_unchanged_graph_are_raised_again(saved):
    above = (0, 4, 5, 7)

    async def work():
        async with on_redis(saved, 1) as servers:
            [one] = servers.stores
            await put(one, "g", watched_ring(9))
            [graph] = await one.alerts.list_changed_graphs()
            queue = NodeQueue()
            await score(one, graph, queue, above, 3)
            saved.client.save()
            await score(one, graph, queue, above, 3)
            sent = await read(one, graph)
            assert [alert for _, alert in sent] == [make_alert(id) for id in "045"]
            go_back(saved)
            await probe(one)
            # What was being scored when Redis went back goes on, and all is scored again after it.
            await score(one, graph, queue, above, 3)
            while len(queue):
                await score(one, graph, queue, above, 3)
            assert await one.alerts.read_changed(graph) == []
            # A client that has the first three gets all later ones, lost ones again.
            later = [alert for _, alert in await read(one, graph, sent[-1][0])]
            assert later == [make_alert(id) for id in "745"]
            assert servers.count(0, "lost") == servers.count(0, "restored") == 0

    play(work)


def test_scores_that_are_under_way_do_not_finish_those_that_a_restore_asks_for(saved):
    async def work():
        async with on_redis(saved, 1) as servers:
            [one] = servers.stores
            await put(one, "g", watched_ring(9))
            [graph] = await one.alerts.list_changed_graphs()
            queue = NodeQueue()
            await score(one, graph, queue, (3,), 9)
            await update(one, "g", node(20, (20, 0)))
            await take_changes(one, graph, queue)
            saved.client.flushall()
            await probe(one)
            finished = queue.list_finished(len(queue))
            assert await one.alerts.claim(graph.place, "scoring", 60)
            scored = ScoredNodes(graph, 2, {}, list(queue), finished)
            assert await one.alerts.record_scores(scored) == 0
            queue.remove(len(queue))
            assert None in [each.node_ids for each in await one.alerts.read_changed(graph)]
            await score(one, graph, queue, (3,), 9)
            assert [alert for _, alert in await read(one, graph)] == [make_alert("3")]
            assert await one.alerts.read_changed(graph) == []

    play(work)


@pytest.mark.parametrize("is_newer", [True, False])
def test_numbers_of_alerts_go_on_above_those_that_were_lost(saved, is_newer):
    """Whether Redis has a graph that is newer than that of the server, or the same."""
    rows = make_rows(40)

    async def work():
        async with on_redis(saved) as servers:
            one, two = servers.stores
            await put(one, "g", stream())

            async def raise_alert(store: GraphStore, first: int):
                part = rows.take(np.array([first]))
                added = await store.add_transactions("g", SETTINGS.schema, part)
                [pending] = added.pending
                assert await store.alerts.record(pending, [make_alert(str(first))])
                return added.head

            head = await raise_alert(one, 0)
            for first in (1, 2):
                await raise_alert(one, first)
            last = await two.add_transactions("g", SETTINGS.schema, rows.take(np.array([9])))
            if not is_newer:
                await one.get("g")
            saved.client.save()
            [pending] = last.pending
            assert await two.alerts.record(pending, [make_alert("9")])
            (*_, (number, _)) = await two.alerts.read("g", head.tag, 0, 10)
            go_back(saved)
            await probe(one)
            await raise_alert(one, 20)
            assert await one.alerts.record(pending, [make_alert("9")])
            alerts = await one.alerts.read("g", head.tag, number, 10)
            assert [alert for _, alert in alerts] == [make_alert("20"), make_alert("9")]

    play(work)
