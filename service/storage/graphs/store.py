"""Stored graphs, which can be updated while they are scored."""

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
from service.storage.graphs.alerts import AddedTransactions, AlertSignals, AlertStore
from service.storage.graphs.base import (
    GraphKey,
    GraphLimits,
    GraphLog,
    GraphMetadata,
    PendingScore,
    TouchedNodes,
    WriteResult,
)
from service.storage.graphs.dynamic_graph import Change, DynamicGraph
from service.storage.graphs.limits import require_room
from service.storage.graphs.new_transactions import NewLabels, NewTransactions
from service.storage.graphs.snapshot_file import encode_snapshot, restore_graph
from service.storage.graphs.stored_graph import Schema, StoredChange, StoredGraph
from service.storage.graphs.transaction_graph import (
    Addition,
    Labelling,
    TransactionGraph,
)
from service.storage.graphs.update import Update
from service.storage.graphs.writer import GroupCommitWriter, unavailable
from service.storage.sqlite import StoreError
from service.validation.ids import NodeId

ID = re.compile(r"[a-z0-9](?:[a-z0-9_-]|\.(?!\.)){0,63}")
_LOG_BYTES = 1 << 20  # of updates, before a small graph gets a new snapshot
_TRIES = 64
_EVICT_EVERY = 256  # updates between two checks of the memory limit


@dataclass
class _CachedGraph:
    """A graph in memory, with the bytes of its log (`logged`) and of its snapshot file."""

    live: StoredGraph
    head: GraphMetadata
    logged: int
    base_bytes: int
    used: float


@final
class GraphStore:
    """Graphs by id, separate for each API key. All methods may be called from the event loop.

    An update returns once it is durable; a reader may see it a moment earlier, but always sees
    a consistent graph. While Redis is unavailable graphs in memory can be read in their last known
    state, and none can be changed.
    """

    def __init__(self, journal: GraphLog, room: GraphLimits, memory_bytes: int) -> None:
        self._log, self._room, self._memory_bytes = journal, room, memory_bytes
        self._cache = dict[GraphKey, _CachedGraph]()  # written only by the writer thread
        self._writer = GroupCommitWriter(journal, self._cache.clear)
        self._one, self._builder = asyncio.Semaphore(), ThreadPoolExecutor(1, "graph-builder")
        self._owner = ""
        self._signals = AlertSignals()

    def scoped_to(self, owner: str) -> GraphStore:
        """Return the store as the API key of this name sees it."""
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
    def is_shared(self) -> bool:
        """Whether other servers write these graphs too."""
        return self._log.is_shared

    @property
    def alerts(self) -> AlertStore:
        """The alerts of the graphs."""
        return AlertStore(self._log, self._writer, self._signals, self._owner)

    @property
    def cached_bytes(self) -> int:
        """Approximate memory of the cached graphs."""
        return sum(entry.live.nbytes for entry in list(self._cache.values()))

    async def list_metadata(self) -> dict[str, GraphMetadata]:
        """Return the metadata of all graphs, by id."""
        owner = self._owner
        return await asyncio.wrap_future(
            self._writer.submit(lambda: self._log.list_metadata(owner))
        )

    async def get_metadata(self, id: str) -> GraphMetadata:
        """Return the metadata of one graph.

        Raises:
            Problem: there is no such graph.
        """
        place = self._place(id)

        def work() -> GraphMetadata:
            if (metadata := self._log.list_metadata(place.owner).get(id)) is not None:
                return metadata
            self._log.read(place, None)  # raises where it is damaged, and so is not listed
            raise _unknown("/id")

        return await asyncio.wrap_future(self._writer.submit(work))

    async def get(self, id: str, at: str = "/id") -> StoredGraph:
        """Return a graph, including all updates that have returned.

        Args:
            at: JSON pointer to its id in the request, for errors.

        Raises:
            Problem: there is no such graph, or it cannot be read.
        """
        place = self._place(id, at)
        entry = self._cache.get(place)
        if entry is not None and not self._log.is_shared:
            entry.used = time.monotonic()
            if len(self._cache) > 1 and self.cached_bytes > self._memory_bytes:
                self._writer.submit(lambda: self._evict(place))
            return entry.live
        entry = await asyncio.wrap_future(self._writer.submit(lambda: self._read(place, at)))
        return entry.live

    async def get_nodes_and_edges(self, id: str) -> DynamicGraph:
        """Return a graph of nodes and edges, as `get`.

        Raises:
            Problem: the graph is one of transactions.
        """
        graph = await self.get(id)
        if not isinstance(graph, DynamicGraph):
            detail = "This graph holds transactions. Send them to POST /graphs/{id}/transactions."
            raise make_problem("invalid-request", "/id", "not_allowed", detail)
        return graph

    async def get_transactions(self, id: str) -> TransactionGraph:
        """Return a graph of transactions, as `get`.

        Raises:
            Problem: the graph is one of nodes and edges.
        """
        graph = await self.get(id)
        if not isinstance(graph, TransactionGraph):
            detail = (
                "This graph holds nodes and edges. Transactions need a graph of their own: PUT "
                "/graphs/{id} with the `model` that reads them."
            )
            raise make_problem("invalid-request", "/id", "not_allowed", detail)
        return graph

    async def build(self, parse: Callable[[], StoredGraph]) -> tuple[StoredGraph, bytes]:
        """Run `parse` in a thread; return its graph and the snapshot file of that. One call runs at
        a time, because it may take seconds."""

        def work() -> tuple[StoredGraph, bytes]:
            graph = parse()
            return graph, encode_snapshot(graph)

        async with self._one:
            return await asyncio.get_running_loop().run_in_executor(self._builder, work)

    async def put(self, id: str, graph: StoredGraph, base: bytes) -> tuple[GraphMetadata, bool]:
        """Store a graph, whose snapshot file is `base`; return whether the id is new.

        Raises:
            Problem: an invalid id, or a storage limit.
        """
        if not ID.fullmatch(id):
            rule = (
                "A graph id has 1 to 64 characters of a-z, 0-9, -, _ and ., and starts with a "
                "letter or digit."
            )
            raise make_problem("invalid-request", "/id", "not_allowed", rule)
        place, schema = GraphKey(self._owner, id), graph.schema
        head = GraphMetadata.from_schema(schema, graph.num_nodes, graph.num_edges)
        webhook = None
        if isinstance(graph, TransactionGraph):
            head, webhook = replace(head, model=graph.settings.model), graph.settings.webhook
        elif isinstance(graph, DynamicGraph) and graph.watch is not None:
            head, webhook = replace(head, watch=graph.watch), graph.watch.webhook

        def work() -> tuple[GraphMetadata, bool]:
            outcome, revision = self._log.put(place, head, base, self._room, webhook)
            require_room(outcome, self._room)
            graph.revision = revision
            stored = replace(head, revision=revision, since=revision)
            self._hold(place, _CachedGraph(graph, stored, 0, len(base), time.monotonic()))
            return stored, revision == 1

        stored = await asyncio.wrap_future(self._writer.submit(work))
        self._signals.notify_change(head)
        return stored

    async def update(self, id: str, schema: Schema, update: Update) -> GraphMetadata:
        """Apply an update atomically.

        Args:
            schema: for which `update` was made.

        Raises:
            Problem: no such graph, the graph now has another schema, an edge between unknown nodes,
                or a storage limit.
        """
        place = self._place(id)
        work = partial(self._update, place, schema, update)
        head, _, _ = await asyncio.wrap_future(self._writer.submit(work))
        self._signals.notify_change(head)
        return head

    async def add_transactions(
        self, id: str, schema: Schema, rows: NewTransactions, scored: bool = True
    ) -> AddedTransactions:
        """Store transactions. Those to be `scored` are pending until their alerts are recorded.

        Raises:
            Problem: see `TransactionGraph.plan`; no such graph, another one now, or a storage
                limit.
        """
        place, among = self._place(id), set(rows.node_ids)
        work = partial(self._update, place, schema, rows, scored)
        head, change, graph = await asyncio.wrap_future(self._writer.submit(work))
        assert isinstance(graph, TransactionGraph)
        new = _new_ids(change)
        pending = list[PendingScore]()
        if scored and new:
            pending.append(PendingScore(place, head.tag, head.revision, new, time.time()))
        if scored and len(new) < len(among):  # an earlier request stored the others
            mine = {each.revision for each in pending}
            pending += [
                other
                for other in await self.alerts.list_all_pending()
                if (other.place, other.tag) == (place, head.tag)
                and other.revision not in mine
                and among.issuperset(other.node_ids)
            ]
        return AddedTransactions(head, graph, new, pending)

    async def add_labels(
        self, id: str, schema: Schema, labels: NewLabels
    ) -> tuple[GraphMetadata, int]:
        """Store labels of transactions; return how many there were not yet.

        Raises:
            Problem: no such graph or transaction, or the graph is another one now.
        """
        work = partial(self._update, self._place(id), schema, labels)
        head, change, _ = await asyncio.wrap_future(self._writer.submit(work))
        return head, len(change.rows) if isinstance(change, Labelling) else 0

    async def delete(self, id: str) -> None:
        """Delete a graph.

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

    # The methods below run in the writer thread.

    def _read(self, place: GraphKey, at: str = "/id") -> _CachedGraph:
        entry = self._cache.get(place)
        if entry is None or self._log.is_shared:
            entry = self._fetched(place, entry, at)
        entry.used = time.monotonic()
        return entry

    def _fetched(self, place: GraphKey, entry: _CachedGraph | None, at: str) -> _CachedGraph:
        try:
            stored = self._log.read(place, None if entry is None else entry.head)
        except StoreError:
            if entry is None or not self._log.is_shared:
                raise
            return entry  # in its last known state
        if stored is None:
            self._cache.pop(place, None)
            raise _unknown(at)
        logged = sum(map(len, stored.updates))
        if entry is not None and stored.snapshot_file is None:
            for update in stored.updates:
                entry.live.apply_logged(update)
            entry.head, entry.logged = stored.metadata, entry.logged + logged
            if isinstance(entry.live, DynamicGraph):
                self._compact(place, entry)
            return entry
        assert stored.snapshot_file is not None
        entry = _CachedGraph(
            restore_graph(stored),
            stored.metadata,
            logged,
            len(stored.snapshot_file),
            time.monotonic(),
        )
        self._hold(place, entry)
        return entry

    def _update(
        self,
        place: GraphKey,
        schema: Schema,
        update: Update | NewTransactions | NewLabels,
        scored: bool = False,
    ) -> tuple[GraphMetadata, StoredChange | None, StoredGraph]:
        """Apply an update; return what it changes, and the graph that has it."""
        for _ in range(_TRIES):
            entry = self._read(place)
            if entry.live.schema != schema:
                raise Problem(
                    "graph-replaced",
                    "The graph has other features or relations now. Read it again with GET "
                    "/graphs/{id}.",
                )
            # Before: what this update adds must be there when it is scored.
            self._compact(place, entry)
            if (change := entry.live.plan(update)) is None:
                return entry.head, None, entry.live
            after, made = (
                entry.head.next_revision(change.num_nodes, change.num_edges),
                change.update.to_json(),
            )
            pending = _new_ids(change) if scored else None
            touched = _list_touched(entry.live, change)
            outcome = self._log.append(place, entry.head, after, made, self._room, pending, touched)
            if outcome is WriteResult.STALE:
                continue
            require_room(outcome, self._room)
            entry.live.commit(change, after.revision)
            entry.head, entry.logged = after, entry.logged + len(made)
            if entry.logged > max(entry.base_bytes, _LOG_BYTES):
                self._write_snapshot(place, entry)
            if after.revision % _EVICT_EVERY == 0:
                self._evict(place)
            return entry.head, change, entry.live
        raise unavailable("Other servers keep changing this graph. Retry after 1 s.")

    def _compact(self, place: GraphKey, entry: _CachedGraph) -> None:
        """Rebuild the graph without what is out of use, once that is the majority; not while some
        of it is still to be scored."""
        if not entry.live.should_compact:
            return
        if all(pending.place != place for pending in self._log.list_all_pending()):
            entry.live = entry.live.compacted()

    def _write_snapshot(self, place: GraphKey, entry: _CachedGraph) -> None:
        base = encode_snapshot(entry.live)
        if self._log.replace_snapshot(place, entry.head, base):
            entry.head = replace(entry.head, since=entry.head.revision)
            entry.logged, entry.base_bytes = 0, len(base)
        else:  # try again once the log has doubled
            entry.base_bytes = 2 * entry.logged

    def _hold(self, place: GraphKey, entry: _CachedGraph) -> None:
        """Add the graph to the cache."""
        self._cache[place] = entry
        self._evict(place)

    def _evict(self, place: GraphKey) -> None:
        """Evict the least recently used graphs other than `place` while over the limit."""
        others = sorted((p for p in self._cache if p != place), key=lambda p: self._cache[p].used)
        taken = sum(entry.live.nbytes for entry in self._cache.values())
        for other in others:
            if taken <= self._memory_bytes:
                break
            taken -= self._cache.pop(other).live.nbytes


def _new_ids(change: StoredChange | None) -> list[NodeId]:
    return change.update.node_ids if isinstance(change, Addition) else []


def _list_touched(graph: StoredGraph, change: StoredChange) -> TouchedNodes | None:
    """Return what of a watched graph is to be scored; None of other graphs."""
    if isinstance(graph, DynamicGraph) and isinstance(change, Change) and graph.watch is not None:
        return graph.list_touched(change)
    return None


def _unknown(at: str) -> Problem:
    detail = "No such graph. GET /graphs lists the graphs of this API key."
    return make_problem("unknown-graph", at, "unknown_graph", detail)
