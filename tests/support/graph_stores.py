"""Small graphs, and the stores to keep them in."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np

from models.inputs.graph import Graph
from service.storage.graphs import (
    DynamicGraph,
    GraphLimits,
    GraphMetadata,
    GraphSnapshot,
    GraphStore,
    Schema,
    SqliteGraphLog,
    Update,
)
from service.storage.graphs.redis import RedisGraphLog
from service.storage.redis_client import RedisClient
from tests.support.redis_server import RedisServer

SCHEMA = Schema(("a",), ("only",))
ROOM = GraphLimits(max_graphs=3, max_nodes=1000, max_edges=2000)
NONE = np.empty((0, 1), np.float32)
NONE_OF_ONE = np.zeros((1, 1), np.float32)
MANY = (1000, 0, 1000, 100_000)  # neighbours, seed, nodes and edges


def ring(nodes: int) -> DynamicGraph:
    row = np.arange(nodes)
    x = row[:, None].astype(np.float32)
    graph = Graph(x, np.stack([row, (row + 1) % nodes]))
    return DynamicGraph(SCHEMA, GraphSnapshot(graph, list(range(nodes)), 0))


async def put(store: GraphStore, id: str, graph: DynamicGraph) -> tuple[GraphMetadata, bool]:
    return await store.put(id, *await store.build(lambda: graph))


async def update(store: GraphStore, id: str, change: Update) -> GraphMetadata:
    return await store.update(id, SCHEMA, change)


def node(id: int, *edges: tuple[int, int]) -> Update:
    made = tuple((source, target, 0) for source, target in edges)
    return Update((id,), np.full((1, 1), id, np.float32), made)


def listed(graph: DynamicGraph) -> tuple[list, list, list]:
    whole = graph.snapshot()
    order = np.argsort(whole.node_ids)
    place = np.argsort(order)
    edges = sorted(map(tuple, place[whole.graph.edge_index].T.tolist()))
    return [whole.node_ids[i] for i in order], whole.graph.x[order, 0].tolist(), edges


@asynccontextmanager
async def in_sqlite(path: Path, room: GraphLimits, memory_bytes: int) -> AsyncIterator[GraphStore]:
    store = GraphStore(SqliteGraphLog(path), room, memory_bytes)
    store.start()
    try:
        yield store
    finally:
        await asyncio.to_thread(store.close)


@asynccontextmanager
async def in_redis(
    server: RedisServer, room: GraphLimits, memory_bytes: int
) -> AsyncIterator[GraphStore]:
    link = RedisClient(server.url, 0.5)
    store = GraphStore(RedisGraphLog(link), room, memory_bytes)
    store.start()
    try:
        yield store
    finally:
        await asyncio.to_thread(store.close)
        await link.close()


def play(work) -> None:
    asyncio.run(work())


def drop_digests(file: sqlite3.Connection) -> None:
    """Make the tables those of a version that had no digests of rows."""
    for (table,) in file.execute("SELECT name FROM sqlite_schema WHERE type = 'table'").fetchall():
        file.execute(f"ALTER TABLE {table} DROP COLUMN digest")
