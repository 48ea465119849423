"""The graphs that are stored, and changed while they are scored."""

from __future__ import annotations

import asyncio
import copy
import re
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import final

from service.errors import Problem, make_problem
from service.storage.graphs.base import GraphKey, GraphLimits, GraphLog, GraphMetadata, WriteResult
from service.storage.graphs.dynamic_graph import DynamicGraph, Schema
from service.storage.graphs.snapshot_file import apply_updates, encode_snapshot, restore_graph
from service.storage.graphs.update import Update
from service.storage.graphs.writer import GroupCommitWriter, unavailable
from service.storage.sqlite import StoreError

ID = re.compile(r"[a-z0-9](?:[a-z0-9_-]|\.(?!\.)){0,63}")
_LOG_BYTES = 1 << 20  # of changes, before all of a small graph is written anew
_TRIES = 64
_LOOK_EVERY = 256  # changes, whether the memory suffices


@dataclass
class _CachedGraph:
    """A graph in memory; how much was written of it since its base, and of that."""

    live: DynamicGraph
    head: GraphMetadata
    logged: int
    base_bytes: int
    used: float


@final
class GraphStore:
    """Graphs by id, of each key its own. All methods may be called from the event loop.

    Who changes a graph waits until the change lasts; who reads one may find it a moment before,
    and always finds it as it is between two changes. While Redis is away graphs that are in memory
    are read as they last were, and none can be changed.
    """

    def __init__(self, journal: GraphLog, room: GraphLimits, memory_bytes: int) -> None:
        self._log, self._room, self._memory_bytes = journal, room, memory_bytes
        self._cache = dict[GraphKey, _CachedGraph]()  # changed by the keeper alone
        self._writer = GroupCommitWriter(journal, self._cache.clear)
        self._one, self._builder = asyncio.Semaphore(), ThreadPoolExecutor(1, "graph-builder")
        self._owner = ""

    def scoped_to(self, owner: str) -> GraphStore:
        """The same store, as the key of this name sees it."""
        if not owner:
            return self
        view = copy.copy(self)
        view._owner = owner
        return view

    def start(self) -> None:
        self._writer.start()

    def close(self) -> None:
        self._writer.close()
        self._builder.shutdown(cancel_futures=True)

    @property
    def cached_bytes(self) -> int:
        """Memory that graphs take, about."""
        return sum(held.live.nbytes for held in list(self._cache.values()))

    async def list_metadata(self) -> dict[str, GraphMetadata]:
        """Every graph there is, by id."""
        owner = self._owner
        return await asyncio.wrap_future(
            self._writer.submit(lambda: self._log.list_metadata(owner))
        )

    async def get_metadata(self, id: str) -> GraphMetadata:
        """
        Raises:
            Problem: there is no such graph.
        """
        if (found := (await self.list_metadata()).get(id)) is None:
            raise _unknown("/id")
        return found

    async def get(self, id: str, at: str = "/id") -> DynamicGraph:
        """A graph, with all changes that have been answered.

        Args:
            at: where in the request it is named.

        Raises:
            Problem: there is no such graph, or it cannot be read.
        """
        place = self._place(id, at)
        held = self._cache.get(place)
        if held is not None and not self._log.is_shared:
            held.used = time.monotonic()
            return held.live
        held = await asyncio.wrap_future(self._writer.submit(lambda: self._read(place, at)))
        return held.live

    async def build(self, parse: Callable[[], DynamicGraph]) -> tuple[DynamicGraph, bytes]:
        """What `parse` makes of a body, and its file: one at a time, for it may take seconds."""

        def work() -> tuple[DynamicGraph, bytes]:
            graph = parse()
            return graph, encode_snapshot(graph.snapshot())

        async with self._one:
            return await asyncio.get_running_loop().run_in_executor(self._builder, work)

    async def put(self, id: str, graph: DynamicGraph, base: bytes) -> tuple[GraphMetadata, bool]:
        """Store a graph, whose file is `base`; was there none of this id before?

        Raises:
            Problem: an id that is none, or no room.
        """
        if not ID.fullmatch(id):
            rule = (
                "A graph id has 1 to 64 characters of a-z, 0-9, -, _ and ., and starts with a "
                "letter or digit."
            )
            raise make_problem("invalid-request", "/id", "not_allowed", rule)
        place, schema = GraphKey(self._owner, id), graph.schema
        head = GraphMetadata(schema.features, schema.relations, graph.num_nodes, graph.num_edges)

        def work() -> tuple[GraphMetadata, bool]:
            outcome, revision = self._log.put(place, head, base, self._room)
            self._require_done(outcome)
            graph.revision = revision
            stored = replace(head, revision=revision, since=revision)
            self._hold(place, _CachedGraph(graph, stored, 0, len(base), time.monotonic()))
            return stored, revision == 1

        return await asyncio.wrap_future(self._writer.submit(work))

    async def update(self, id: str, schema: Schema, update: Update) -> GraphMetadata:
        """Change a graph, all at once.

        Args:
            schema: for which `update` was made.

        Raises:
            Problem: there is no such graph, it has another schema by now, there is an edge between
                nodes it has not, or no room.
        """
        place = self._place(id)
        work = partial(self._update, place, schema, update)
        return await asyncio.wrap_future(self._writer.submit(work))

    async def delete(self, id: str) -> None:
        """
        Raises:
            Problem: there is no such graph.
        """
        place = self._place(id)

        def work() -> None:
            self._cache.pop(place, None)
            if not self._log.delete(place):
                raise _unknown("/id")

        await asyncio.wrap_future(self._writer.submit(work))

    def _place(self, id: str, at: str = "/id") -> GraphKey:
        if not ID.fullmatch(id):
            raise _unknown(at)
        return GraphKey(self._owner, id)

    # What follows is done by the keeper.

    def _read(self, place: GraphKey, at: str = "/id") -> _CachedGraph:
        held = self._cache.get(place)
        if held is None or self._log.is_shared:
            held = self._fetched(place, held, at)
        held.used = time.monotonic()
        return held

    def _fetched(self, place: GraphKey, held: _CachedGraph | None, at: str) -> _CachedGraph:
        try:
            stored = self._log.read(place, None if held is None else held.head)
        except StoreError:
            if held is None or not self._log.is_shared:
                raise
            return held  # as it last was
        if stored is None:
            self._cache.pop(place, None)
            raise _unknown(at)
        logged = sum(map(len, stored.updates))
        if held is not None and stored.snapshot_file is None:
            apply_updates(held.live, stored)
            held.head, held.logged = stored.metadata, held.logged + logged
            self._compact(held)
            return held
        assert stored.snapshot_file is not None
        held = _CachedGraph(
            restore_graph(stored),
            stored.metadata,
            logged,
            len(stored.snapshot_file),
            time.monotonic(),
        )
        self._hold(place, held)
        return held

    def _update(self, place: GraphKey, schema: Schema, update: Update) -> GraphMetadata:
        for _ in range(_TRIES):
            held = self._read(place)
            if held.live.schema != schema:
                raise Problem(
                    "graph-replaced",
                    "The graph has other features or relations now. Read it again with GET "
                    "/graphs/{id}.",
                )
            if (change := held.live.plan(update)) is None:
                return held.head
            after, made = (
                held.head.next_revision(change.num_nodes, change.num_edges),
                update.to_json(),
            )
            outcome = self._log.append(place, held.head, after, made, self._room)
            if outcome is WriteResult.STALE:
                continue
            self._require_done(outcome)
            held.live.commit(change, after.revision)
            held.head, held.logged = after, held.logged + len(made)
            self._compact(held)
            if held.logged > max(held.base_bytes, _LOG_BYTES):
                self._write_snapshot(place, held)
            if after.revision % _LOOK_EVERY == 0:
                self._evict(place)
            return held.head
        raise unavailable("Other servers keep changing this graph. Retry after 1 s.")

    def _compact(self, held: _CachedGraph) -> None:
        """Leave out what was deleted, once that is most of it."""
        if held.live.should_compact:
            held.live = DynamicGraph(held.live.schema, held.live.snapshot())

    def _write_snapshot(self, place: GraphKey, held: _CachedGraph) -> None:
        base = encode_snapshot(held.live.snapshot())
        if self._log.replace_snapshot(place, held.head, base):
            held.head = replace(held.head, since=held.head.revision)
            held.logged, held.base_bytes = 0, len(base)
        else:  # after as much again
            held.base_bytes = 2 * held.logged

    def _hold(self, place: GraphKey, held: _CachedGraph) -> None:
        """Keep it in memory."""
        self._cache[place] = held
        self._evict(place)

    def _evict(self, place: GraphKey) -> None:
        """Those leave the memory that nobody has used for longest, while there is too much; but for
        this one."""
        others = sorted((p for p in self._cache if p != place), key=lambda p: self._cache[p].used)
        taken = sum(each.live.nbytes for each in self._cache.values())
        for other in others:
            if taken <= self._memory_bytes:
                break
            taken -= self._cache.pop(other).live.nbytes

    def _require_done(self, outcome: WriteResult) -> None:
        room = self._room
        detail = {
            WriteResult.TOO_MANY_GRAPHS: (
                f"At most {room.max_graphs} graphs (BASIN_MAX_STORED_GRAPHS) may be stored. "
                "Delete one first."
            ),
            WriteResult.TOO_MANY_NODES: (
                f"Stored graphs may have at most {room.max_nodes} nodes together "
                "(BASIN_MAX_STORED_NODES). Delete a graph or some nodes first."
            ),
            WriteResult.TOO_MANY_EDGES: (
                f"Stored graphs may have at most {room.max_edges} edges together "
                "(BASIN_MAX_STORED_EDGES). Delete a graph or some edges first."
            ),
        }.get(outcome)
        if detail is not None:
            raise Problem("store-full", detail)


def _unknown(at: str) -> Problem:
    detail = "No such graph. GET /graphs lists the graphs of this API key."
    return make_problem("unknown-graph", at, "unknown_graph", detail)
