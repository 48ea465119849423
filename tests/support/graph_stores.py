"""Small graphs, and the stores to keep them in."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import orjson

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
    WatchSettings,
)
from service.storage.graphs.redis import RedisGraphLog
from service.storage.redis_client import RedisClient
from tests.support.redis_server import RedisServer

SCHEMA = Schema(("a",), ("only",))
WATCH = WatchSettings("m", threshold=0.5, webhook="https://a.b/c")
ROOM = GraphLimits(max_graphs=3, max_nodes=1000, max_edges=2000)
NONE = np.empty((0, 1), np.float32)
NONE_OF_ONE = np.zeros((1, 1), np.float32)
MANY = (1000, 0, 1000, 100_000)  # neighbours, seed, nodes and edges


def ring(nodes: int) -> DynamicGraph:
    row = np.arange(nodes)
    x = row[:, None].astype(np.float32)
    graph = Graph(x, np.stack([row, (row + 1) % nodes]))
    return DynamicGraph(SCHEMA, GraphSnapshot(graph, list(range(nodes)), 0))


def watched_ring(nodes: int) -> DynamicGraph:
    row = np.arange(nodes)
    graph = Graph(np.zeros((nodes, 1), np.float32), np.stack([row, (row + 1) % nodes]))
    return DynamicGraph(SCHEMA, GraphSnapshot(graph, list(range(nodes)), 0), WATCH)


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
    server: RedisServer,
    room: GraphLimits,
    memory_bytes: int,
    events: list[tuple[str, str, int]] | None = None,
) -> AsyncIterator[GraphStore]:
    """A store of a server that has probed Redis once; `events` are what it counts."""
    counted = [] if events is None else events
    link = RedisClient(server.url, 2.0, lambda *event: counted.append(event))
    store = GraphStore(RedisGraphLog(link), room, memory_bytes)
    store.start()
    await link.probe()
    try:
        yield store
    finally:
        await asyncio.to_thread(store.close)
        await link.close()


@dataclass
class Servers:
    """Stores of servers on one Redis, and what each of them counted."""

    redis: RedisServer
    stores: list[GraphStore]
    events: list[list[tuple[str, str, int]]] = field(default_factory=list)

    def count(self, store: int, event: str) -> int:
        return sum(number for name, _, number in self.events[store] if name == event)


@asynccontextmanager
async def on_redis(server: RedisServer, number: int = 2) -> AsyncIterator[Servers]:
    """Stores of as many servers, each with events of its own."""
    async with AsyncExitStack() as stack:
        events: list[list[tuple[str, str, int]]] = [[] for _ in range(number)]
        stores = [
            await stack.enter_async_context(in_redis(server, ROOM, 1 << 30, counted))
            for counted in events
        ]
        yield Servers(server, stores, events)


async def probe(store: GraphStore) -> None:
    """Look at Redis, as a server does each second, and restore what it has lost."""
    assert isinstance(store._log, RedisGraphLog)
    await store._log._redis.probe()


def go_back(server: RedisServer) -> None:
    """Let Redis come back as it was when it was saved (`client.save()`)."""
    server.kill()
    server.start()


def make_alert(name: str) -> bytes:
    return orjson.dumps({"alert": name})


def play(work) -> None:
    asyncio.run(work())
