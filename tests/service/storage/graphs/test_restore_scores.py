"""What is scored again, and what is not, where Redis comes back older or empty."""

from __future__ import annotations

import numpy as np

from service.storage.graphs import GraphStore
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


def test_what_was_to_be_scored_is_scored_again(saved):
    rows = make_rows(60)

    async def work():
        async with on_redis(saved) as servers:
            one, two = servers.stores
            await put(one, "g", stream())

            async def add(first: int, store: GraphStore = one, scored: bool = True):
                part = rows.take(np.arange(first, first + 10))
                return await store.add_transactions("g", SETTINGS.schema, part, scored)

            for first in (0, 10):
                [pending] = (await add(first)).pending
                assert await one.alerts.record(pending, [make_alert(str(first))])
            saved.client.save()
            [scored] = (await add(20)).pending
            assert await one.alerts.record(scored, [make_alert("20")])
            await add(30, scored=False)
            head = (await add(40, two)).head
            assert (await one.get("g")).revision == head.revision
            go_back(saved)
            await probe(one)
            await probe(two)
            pending = await two.alerts.list_all_pending()
            assert [each.revision for each in pending] == [4, 6]
            assert [each.node_ids for each in pending] == [
                rows.node_ids[20:30],
                rows.node_ids[40:50],
            ]
            assert pending[0].digest == scored.digest
            assert await two.alerts.record(pending[0], [make_alert("20")])
            assert not await one.alerts.record(scored, [make_alert("20")])
            alerts = await two.alerts.read("g", head.tag, 0, 10)
            assert [alert for _, alert in alerts] == [
                make_alert(name) for name in ("0", "10", "20")
            ]
            # A client that had the third already asks for those after it, and misses none.
            assert alerts[2][0] > 3
            [webhook] = await two.alerts.list_all_webhooks()
            assert (webhook.url, webhook.tag) == ("https://a.b/c", head.tag)

    play(work)


def test_touched_nodes_are_scored_again(saved):
    async def work():
        async with on_redis(saved) as servers:
            one, two = servers.stores
            await put(one, "g", watched_ring(9))
            [graph] = await one.alerts.list_changed_graphs()
            saved.client.save()
            await update(one, "g", node(20, (20, 0)))
            await update(two, "g", node(21, (21, 4)))
            await one.get("g")
            go_back(saved)
            await probe(two)
            changes = await two.alerts.read_changed(graph)
            assert [each.revision for each in changes] == [1, 2, 3]
            assert changes[0].node_ids is None
            assert sorted(map(int, changes[1].node_ids or ())) == [0, 20]
            assert sorted(map(int, changes[2].node_ids or ())) == [4, 21]
            saved.client.flushall()
            await probe(one)
            change = (await one.alerts.read_changed(graph))[-1]
            assert (change.revision, change.node_ids) == (3, None)
            assert await one.alerts.list_changed_graphs() == [graph]

    play(work)


def test_scores_of_a_lost_revision_finish_no_other(saved):
    async def work():
        async with on_redis(saved) as servers:
            one, two = servers.stores
            await put(one, "s", stream())
            rows = make_rows(30)

            def take(first: int):
                return rows.take(np.arange(first, first + 10))

            saved.client.save()
            added = await one.add_transactions("s", SETTINGS.schema, take(0))
            go_back(saved)
            await probe(two)
            other = await two.add_transactions("s", SETTINGS.schema, take(10))
            assert other.head.revision == added.head.revision
            await probe(one)
            assert not await one.alerts.record(added.pending[0], [make_alert("0")])
            [left] = await one.alerts.list_all_pending()
            assert left.node_ids == rows.node_ids[10:20]
            assert await one.alerts.record(left, [])

    play(work)
