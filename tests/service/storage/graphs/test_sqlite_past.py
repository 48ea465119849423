"""What the log in a file needs less than one in Redis, which other servers write too."""

from __future__ import annotations

from dataclasses import replace

import pytest

from service.storage.graphs import GraphKey, GraphMetadata, SqliteGraphLog
from service.storage.graphs import sqlite as module
from service.storage.graphs.base import RefusedError, RestoredGraph
from tests.support.graph_stores import ROOM, SCHEMA, in_sqlite, node, play, put, ring, update


def test_no_changes_are_remembered_to_be_written_again(tmp_path):
    path = tmp_path / "g.sqlite"

    async def work():
        for _ in range(2):
            async with in_sqlite(path, ROOM, 1 << 30) as store:
                if not (await store.list_metadata()).graphs:
                    await put(store, "g", ring(3))
                revision = (await store.get("g")).revision
                assert (await update(store, "g", node(10 + revision))).revision == revision + 1
                assert store._cache._entries[GraphKey("", "g")].past.list_changes() == []

    play(work)


def test_a_graph_that_is_too_large_for_a_row_is_refused_once(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_MAX_BASE", 10)
    log = SqliteGraphLog(tmp_path / "g.sqlite")
    log.open()
    head = replace(GraphMetadata.from_schema(SCHEMA, 3, 3), revision=1, digest="0" * 64)
    graph = RestoredGraph(head, b"x" * 11, [], has_lost_alerts=False, webhook=None)
    with pytest.raises(RefusedError), log.batch():
        log.restore(GraphKey("", "g"), None, graph, is_damaged=True)
    log.close()
