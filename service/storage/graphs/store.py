"""Stored graphs, which can be updated while they are scored."""

from __future__ import annotations

import asyncio
import copy
import math
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import final

from service.errors import make_problem
from service.storage.graphs.alerts import AddedTransactions, AlertSignals, AlertStore
from service.storage.graphs.base import GraphList, GraphLog, PendingScore
from service.storage.graphs.digests import hash_snapshot
from service.storage.graphs.dynamic_graph import DynamicGraph
from service.storage.graphs.graph_cache import GraphCache, make_unknown_problem
from service.storage.graphs.metadata import GraphKey, GraphLimits, GraphMetadata, is_graph_id
from service.storage.graphs.new_transactions import (
    Addition,
    Labelling,
    NewLabels,
    NewTransactions,
)
from service.storage.graphs.snapshot_file import encode_snapshot
from service.storage.graphs.stored_graph import Schema, StoredGraph
from service.storage.graphs.transaction_graph import TransactionGraph
from service.storage.graphs.update import Change, Update
from service.storage.graphs.writer import GroupCommitWriter
from service.supervisor import Supervisor

_AGAIN_S = 5.0  # after which what Redis refused is written again


@final
class GraphStore:
    """Graphs by id, separate for each API key. All methods may be called from the event loop.

    An update returns once it is durable; a reader may see it a moment earlier, but always sees
    a consistent graph. While Redis is unavailable graphs in memory can be read in their last known
    state, and none can be changed.
    """

    def __init__(self, journal: GraphLog, room: GraphLimits, memory_bytes: int) -> None:
        self._log, self._memory_bytes = journal, memory_bytes
        self._cache = GraphCache(journal, room, memory_bytes)
        self._writer = GroupCommitWriter(journal, self._cache.clear)
        journal.add_restore(self._restore_all, self._restore_refused, self._cache.list_again)
        self._one, self._builder = asyncio.Semaphore(), ThreadPoolExecutor(1, "graph-builder")
        self._owner, self._last_tried = "", -math.inf
        self._signals = AlertSignals()

    def scoped_to(self, owner: str) -> GraphStore:
        """Return the store as the API key of this name sees it."""
        if not owner:
            return self
        view = copy.copy(self)
        view._owner = owner
        return view

    def start(self, supervisor: Supervisor | None = None) -> None:
        self._writer.start(supervisor or Supervisor())

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
        return self._cache.nbytes

    async def list_metadata(self) -> GraphList:
        """Return the metadata of all graphs, by id."""
        work = partial(self._cache.list_metadata, self._owner)
        return await asyncio.wrap_future(self._writer.submit(work))

    async def get_metadata(self, id: str) -> GraphMetadata:
        """Return the metadata of one graph.

        Raises:
            Problem: there is no such graph.
        """
        work = partial(self._cache.read_head, self._place(id))
        return await asyncio.wrap_future(self._writer.submit(work))

    async def get(self, id: str, at: str = "/id") -> StoredGraph:
        """Return a graph, including all updates that have returned.

        Args:
            at: JSON pointer to its id in the request, for errors.

        Raises:
            Problem: there is no such graph, or it cannot be read.
        """
        place = self._place(id, at)
        if not self._log.is_shared and (graph := self._cache.get(place)) is not None:
            if len(self._cache) > 1 and self.cached_bytes > self._memory_bytes:
                self._writer.submit(lambda: self._cache.evict(place))
            return graph
        entry = await asyncio.wrap_future(self._writer.submit(lambda: self._cache.read(place, at)))
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
        if not is_graph_id(id):
            rule = (
                "A graph id has 1 to 64 characters of a-z, 0-9, -, _ and ., and starts with a "
                "letter or digit."
            )
            raise make_problem("invalid-request", "/id", "not_allowed", rule)
        place, schema = GraphKey(self._owner, id), graph.schema
        head = GraphMetadata.from_schema(schema, graph.num_nodes, graph.num_edges)
        if isinstance(graph, TransactionGraph):
            head = replace(head, model=graph.settings.model)
        elif isinstance(graph, DynamicGraph):
            head = replace(head, watch=graph.watch)
        snapshot = await asyncio.get_running_loop().run_in_executor(None, hash_snapshot, base)
        head = replace(head, snapshot=snapshot)
        work = partial(self._cache.put, place, graph, base, head)
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
        work = partial(self._cache.update, place, schema, update)
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
        work = partial(self._cache.update, place, schema, replace(rows, is_scored=scored))
        head, change, graph = await asyncio.wrap_future(self._writer.submit(work))
        assert isinstance(graph, TransactionGraph)
        new = change.update.node_ids if isinstance(change, Addition) else []
        pending = list[PendingScore]()
        if scored and new:
            version = head.tag, head.revision
            pending.append(PendingScore(place, *version, new, time.time(), head.digest))
        if scored and len(new) < len(among):  # an earlier request stored the others
            # SQLite, where no other revision has its number, stores no digest of it.
            mine = {(each.revision, digest) for each in pending for digest in ("", each.digest)}
            pending += [
                other
                for other in await self.alerts.list_all_pending()
                if (other.place, other.tag) == (place, head.tag)
                and (other.revision, other.digest) not in mine
                and among.issuperset(other.node_ids)
            ]
        return AddedTransactions(head, graph, new, pending)

    async def add_labels(
        self, id: str, schema: Schema, labels: NewLabels | Update
    ) -> tuple[GraphMetadata, int]:
        """Store labels of transactions, or an update with those of nodes; return how many there
        were not yet.

        Raises:
            Problem: no such graph, transaction or node, or the graph is another one now.
        """
        work = partial(self._cache.update, self._place(id), schema, labels)
        head, change, _ = await asyncio.wrap_future(self._writer.submit(work))
        if isinstance(change, Change):
            self._signals.notify_change(head)
            return head, len(change.labelled)
        return head, len(change.rows) if isinstance(change, Labelling) else 0

    async def delete(self, id: str) -> None:
        """Delete a graph.

        Raises:
            Problem: there is no such graph.
        """
        work = partial(self._cache.delete, self._place(id))
        await asyncio.wrap_future(self._writer.submit(work))

    def _place(self, id: str, at: str = "/id") -> GraphKey:
        if not is_graph_id(id):
            raise make_unknown_problem(at)
        return GraphKey(self._owner, id)

    def _restore_all(self) -> None:
        """Restore, in the writer thread, what Redis has lost.

        Raises:
            StoreError: Redis is unavailable.
        """
        if (error := self._writer.run_next(self._cache.restore_all)) is not None:
            raise error

    def _restore_refused(self) -> None:
        now = time.monotonic()
        if self._cache.has_refused and now - self._last_tried >= _AGAIN_S:
            self._last_tried = now  # each try encodes a graph, which other requests wait for
            self._writer.run_next(self._cache.restore_refused)
