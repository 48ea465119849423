"""Changes that Redis has made, of which the connection broke before the reply."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

import pytest

from service.storage.graphs import redis as module
from tests.support.graph_stores import listed, node, on_redis, play, probe, put, ring, update
from tests.support.transaction_graphs import SETTINGS, make_rows, stream


@pytest.fixture
def lose_reply(monkeypatch) -> Callable:
    """Loses the reply of the next EXEC; before the server tries again, `then` is called."""
    execute = module.execute

    def lose(then: Callable[[], object] = lambda: None) -> None:
        def execute_once(pipeline) -> bool:
            monkeypatch.setattr(module, "execute", execute)
            assert execute(pipeline)
            then()
            return False

        monkeypatch.setattr(module, "execute", execute_once)

    return lose


def in_loop(loop: asyncio.AbstractEventLoop, work: Callable) -> Callable[[], object]:
    """Return a function for another thread, which runs `work` in the loop."""
    return lambda: asyncio.run_coroutine_threadsafe(work(), loop).result(10)


def test_a_change_whose_reply_is_lost_is_done_once(saved, lose_reply):
    async def work():
        async with on_redis(saved) as servers:
            one, two = servers.stores
            await put(one, "g", stream())
            rows = make_rows(10)
            lose_reply()
            added = await one.add_transactions("g", SETTINGS.schema, rows)
            assert (added.new, added.head.revision) == (rows.node_ids, 2)
            [pending] = await one.alerts.list_all_pending()
            assert [pending.revision] == [each.revision for each in added.pending]
            lose_reply()
            head, is_new = await put(one, "h", ring(3))
            assert (head.revision, is_new) == (1, True)
            assert (await two.get("h")).digest == head.digest

    play(work)


def test_a_graph_whose_reply_is_lost_and_that_another_server_has_changed(saved, lose_reply):
    async def work():
        async with on_redis(saved) as servers:
            one, two = servers.stores
            loop = asyncio.get_running_loop()
            await put(one, "g", ring(3))
            await two.get("g")
            lose_reply(in_loop(loop, partial(update, two, "g", node(20, (20, 0)))))
            head, is_new = await put(one, "g", ring(4))
            assert (head.revision, is_new) == (2, False)
            ours, theirs = await one.get("g"), await two.get("g")
            assert (ours.revision, ours.digest) == (3, theirs.digest)
            assert listed(ours) == listed(theirs)
            assert ours.num_nodes == 5
            assert servers.count(0, "lost") == 0

    play(work)


def test_a_deletion_whose_reply_is_lost_is_one(saved, lose_reply):
    async def work():
        async with on_redis(saved, 1) as servers:
            [one] = servers.stores
            await put(one, "g", ring(3))
            saved.client.save()
            lose_reply()
            await one.delete("g")
            assert (await one.list_metadata()).graphs == {}
            saved.kill()
            saved.start()  # which has the graph again
            await probe(one)
            assert (await one.list_metadata()).graphs == {}
            assert servers.count(0, "restored") == 1

    play(work)


def test_a_deletion_whose_reply_is_lost_deletes_no_later_graph(saved, lose_reply):
    async def work():
        async with on_redis(saved) as servers:
            one, two = servers.stores
            loop = asyncio.get_running_loop()
            await put(one, "g", ring(3))
            lose_reply(in_loop(loop, partial(put, two, "g", ring(5))))
            await one.delete("g")
            assert (await one.get("g")).num_nodes == 5
            assert (await two.get("g")).revision == 1

    play(work)
