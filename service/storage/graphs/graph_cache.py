"""Graphs in memory, each as the log has it."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import final

from safetensors import SafetensorError

from service.errors import Problem, make_problem
from service.storage.graphs.base import (
    DamagedGraphError,
    GraphList,
    GraphLog,
    LogContents,
    RefusedError,
    WriteResult,
)
from service.storage.graphs.digests import extend_digest
from service.storage.graphs.dynamic_graph import DynamicGraph
from service.storage.graphs.limits import require_room
from service.storage.graphs.metadata import GraphKey, GraphLimits, GraphMetadata
from service.storage.graphs.new_transactions import NewLabels, NewTransactions
from service.storage.graphs.past import GraphPast, PastChange
from service.storage.graphs.restore import (
    CachedGraph,
    GraphRestorer,
    find_webhook,
    list_least_used,
    make_entry,
)
from service.storage.graphs.snapshot_file import decode_snapshot, encode_snapshot
from service.storage.graphs.stored_graph import Schema, StoredChange, StoredGraph
from service.storage.graphs.update import Update
from service.storage.graphs.writer import unavailable
from service.storage.sqlite import StoreError

_LOG_BYTES = 1 << 20  # of updates, before a small graph gets a new snapshot
_TRIES = 64
_EVICT_EVERY = 256  # updates between two checks of the memory limit
_UNREADABLE = (ValueError, LookupError, TypeError, ArithmeticError, SafetensorError, Problem)


@final
class GraphCache:
    """Runs in the writer thread, but for `get`, `nbytes` and `len`.

    With a log that other servers write too, each read compares the metadata. A state that this
    server has left behind is a loss of Redis, and is brought up again; one that it does not know is
    what Redis has, and counts (`GraphRestorer`).
    """

    def __init__(self, log: GraphLog, room: GraphLimits, memory_bytes: int) -> None:
        self._log, self._room, self._memory_bytes = log, room, memory_bytes
        self._entries = dict[GraphKey, CachedGraph]()
        self._refused = set[GraphKey]()  # to be restored again
        self._restorer = GraphRestorer(log)

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def nbytes(self) -> int:
        """Approximate memory."""
        return sum(entry.nbytes for entry in list(self._entries.values()))

    def get(self, place: GraphKey) -> StoredGraph | None:
        """Return a graph if it is in memory."""
        if (entry := self._entries.get(place)) is None:
            return None
        entry.used = time.monotonic()
        return entry.live

    def clear(self) -> None:
        self._entries.clear()

    def read(self, place: GraphKey, at: str = "/id") -> CachedGraph:
        """Return a graph as it is now or, while Redis is unavailable, as it was last known.

        Args:
            at: JSON pointer to its id in the request, for errors.

        Raises:
            Problem: there is no such graph, or it is damaged.
            StoreError: the log cannot be read.
        """
        entry = self._entries.get(place)
        if entry is None or self._log.is_shared:
            try:
                entry = self._compare(place, entry)
            except DamagedGraphError as error:
                raise _damaged_graph() from error
            except StoreError:
                if entry is None or not self._log.is_shared:
                    raise
            if entry is None:
                raise make_unknown_problem(at)
        entry.used = time.monotonic()
        return entry

    def read_head(self, place: GraphKey) -> GraphMetadata:
        """Return the metadata of a graph.

        Raises:
            Problem, StoreError: as `read`.
        """
        try:
            entry = self._entries.get(place)
            if entry is not None:
                entry = self._compare(place, entry)
            head = self._log.read_head(place) if entry is None else entry.head
        except DamagedGraphError as error:
            raise _damaged_graph() from error
        if head is None:
            raise make_unknown_problem("/id")
        if head.is_damaged:
            raise _damaged_graph()
        return head

    def list_metadata(self, owner: str) -> GraphList:
        """Return the graphs of an owner; what is damaged is restored first, if it is in memory.

        Raises:
            StoreError: the log cannot be read.
        """
        graphs = self._log.list_metadata(owner)
        damaged = [GraphKey(owner, id) for id in graphs.damaged]
        if not (restorable := [place for place in damaged if place in self._entries]):
            return graphs
        for place in restorable:
            with suppress(Problem):
                self.read(place)
        return self._log.list_metadata(owner)

    def put(
        self, place: GraphKey, graph: StoredGraph, base: bytes, head: GraphMetadata
    ) -> tuple[GraphMetadata, bool]:
        """Store a graph, whose snapshot file is `base`; return whether the id is new.

        Raises:
            Problem: a storage limit.
            StoreError: the log cannot be written, and then has nothing of it or all.
        """
        webhook = find_webhook(graph)
        outcome, stored, _ = self._log.put(place, head, base, self._room, webhook)
        require_room(outcome, self._room)
        graph.revision, graph.digest = stored.revision, stored.digest
        version = stored.revision, stored.digest, stored.replaces
        before = self._entries.get(place)
        past = before.past.replace(*version) if before else GraphPast.from_replaced(*version)
        entry = make_entry(graph, stored, past, len(base))
        self._hold(place, entry)
        return stored, stored.revision == 1

    def update(
        self, place: GraphKey, schema: Schema, update: Update | NewTransactions | NewLabels
    ) -> tuple[GraphMetadata, StoredChange | None, StoredGraph]:
        """Apply an update; return what it changes, and the graph that has it.

        Raises:
            Problem: the update does not fit the graph, or a storage limit.
            StoreError: the log cannot be read or written.
        """
        attempt: tuple[GraphMetadata, StoredChange] | None = None
        for _ in range(_TRIES):
            entry = self.read(place)
            if attempt is not None and entry.has_in_past(attempt[0]):
                return *attempt, entry.live  # the connection broke after it was stored
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
            made = change.update.to_json()
            digest = extend_digest(entry.head.digest, made)
            after = entry.head.next_revision(change.num_nodes, change.num_edges, digest)
            to_score, attempt = entry.live.list_to_score(change), (after, change)
            outcome = self._log.append(place, entry.head, after, made, self._room, to_score)
            if outcome is WriteResult.STALE:
                continue
            require_room(outcome, self._room)
            entry.live.commit(change, after.revision, digest)
            self._remember(entry, PastChange(after.revision, digest, made, to_score))
            entry.head, entry.logged = after, entry.logged + len(made)
            if entry.logged > max(entry.base_bytes, _LOG_BYTES):
                self._write_snapshot(place, entry)
            if after.revision % _EVICT_EVERY == 0:
                self.evict(place)
            return after, change, entry.live
        raise unavailable("Other servers keep changing this graph. Retry after 1 s.")

    def delete(self, place: GraphKey) -> None:
        """Delete a graph.

        Raises:
            Problem: there is no such graph.
            StoreError: the log cannot be written; the graph stays.
        """
        tag = self._log.delete(place)
        entry = self._entries.pop(place, None)
        if tag is None:
            raise make_unknown_problem("/id")
        if not tag and entry is not None:  # its metadata was damaged
            tag = entry.head.tag
            self._log.note_ended([tag])
        if tag:
            self._restorer.note_deleted(place, tag)

    def restore_all(self) -> StoreError | None:
        """Compare all graphs in memory with Redis, which may have lost what it held, and restore
        them; return why that was not possible."""
        for entry in self._entries.values():
            entry.is_unchecked = True
        try:
            with self._log.restoring():
                self._restorer.delete_again()
                self._refused = set(self._entries)
                self._restore_refused()
        except StoreError as error:
            return error
        return None

    @property
    def has_refused(self) -> bool:
        """Whether there are graphs that Redis did not take back, as where it is full."""
        return bool(self._refused)

    def restore_refused(self) -> None:
        """Restore the graphs that Redis did not take back, as far as it does now."""
        with suppress(StoreError):  # Redis is unavailable; the next call tries again
            self._restore_refused()

    def _restore_refused(self) -> None:
        for place in list(self._refused):
            try:
                if (entry := self._entries.get(place)) is not None:  # else it was deleted
                    self._compare(place, entry)
            except DamagedGraphError:
                pass
            except RefusedError:  # it would refuse the others too
                return
            self._refused.discard(place)

    def list_again(self, place: GraphKey) -> None:
        """Store again that background work is to look at a graph."""
        with suppress(Problem, StoreError):
            entry = self.read(place)
            self._log.list_again(place, entry.head, entry.webhook, has_lost_alerts=False)

    def evict(self, place: GraphKey) -> None:
        """Evict the least recently used graphs other than `place` while over the limit. Those that
        are yet to be restored stay: this server alone may have them."""
        taken = self.nbytes
        for other in list_least_used(self._entries, place):
            if taken <= self._memory_bytes:
                break
            if other not in self._refused:
                taken -= self._entries.pop(other).nbytes

    def _compare(self, place: GraphKey, entry: CachedGraph | None) -> CachedGraph | None:
        """Return a graph as the log has it, after the log was brought up to what is in memory where
        it is older or damaged; None if it was deleted or never was."""
        for _ in range(_TRIES):
            try:
                head = self._log.read_head(place)
            except DamagedGraphError:
                if entry is None:
                    raise
                if self._restorer.restore(place, entry, None, is_damaged=True):
                    return entry
                continue
            if head is None:
                if entry is None:
                    return None
                if not entry.is_unchecked or self._restorer.is_deleted(entry.head.tag):
                    self._restorer.note_deleted(place, entry.head.tag)
                    self._entries.pop(place, None)
                    return None
                if self._restorer.restore(place, entry, None):
                    return entry
                continue
            if head.is_damaged and (entry is None or not entry.has_in_past(head)):
                raise DamagedGraphError("it was marked as damaged")
            if entry is not None:
                if head.digest == entry.head.digest and not head.is_damaged:
                    if entry.is_unchecked:
                        self._log.list_again(place, head, entry.webhook, has_lost_alerts=True)
                    entry.head, entry.is_unchecked = head, False
                    return entry
                if entry.has_in_past(head) or self._restorer.knows_deleted(head):
                    if self._restorer.restore(place, entry, head, is_damaged=head.is_damaged):
                        return entry
                    continue
            contents = self._log.read(place, None if entry is None else entry.head)
            if contents is None:
                continue
            fresh = self._take(place, entry, contents)
            if not fresh.is_unchecked:
                return fresh
            entry = fresh  # compare it once more: its alerts may be lost
        raise StoreError("other servers keep changing this graph")

    def _take(
        self, place: GraphKey, entry: CachedGraph | None, contents: LogContents
    ) -> CachedGraph:
        """Bring a graph up to what was read, or load it."""
        if entry is not None and contents.snapshot_file is None:
            self._apply(place, entry, contents)
            entry.head = contents.metadata
            if isinstance(entry.live, DynamicGraph):
                self._compact(place, entry)
            return entry
        head, file = contents.metadata, contents.snapshot_file or b""
        try:
            live = decode_snapshot(head, file)
        except _UNREADABLE as error:  # an earlier version wrote it, without a digest
            raise self._log.make_damage(place, repr(error)) from error
        past = GraphPast.from_replaced(head.since, head.base_digest, head.replaces)
        fresh = make_entry(live, head, past, len(file))
        self._apply(place, fresh, contents)
        if entry is not None:
            self._restorer.note_replaced(place, entry, fresh)
            fresh.is_unchecked = entry.is_unchecked
        self._hold(place, fresh)
        return fresh

    def _apply(self, place: GraphKey, entry: CachedGraph, contents: LogContents) -> None:
        live = entry.live
        for update in contents.updates:
            try:
                to_score = live.apply_logged(update)
            except _UNREADABLE as error:
                self._entries.pop(place, None)  # it has a part of the updates
                raise self._log.make_damage(place, repr(error)) from error
            self._remember(entry, PastChange(live.revision, live.digest, update, to_score))
            entry.logged += len(update)

    def _remember(self, entry: CachedGraph, change: PastChange) -> None:
        if self._log.is_shared:  # else there is none that could lose it
            entry.past.add(change)

    def _compact(self, place: GraphKey, entry: CachedGraph) -> None:
        """Rebuild the graph without what is out of use, once that is the majority; not while some
        of it is still to be scored."""
        if not entry.live.should_compact:
            return
        if all(pending.place != place for pending in self._log.list_all_pending()):
            live = entry.live.compacted()
            live.digest = entry.live.digest
            entry.live = live

    def _write_snapshot(self, place: GraphKey, entry: CachedGraph) -> None:
        base = encode_snapshot(entry.live)
        head = entry.replace_snapshot(base)
        if self._log.replace_snapshot(place, head, base):
            entry.head, entry.logged, entry.base_bytes = head, 0, len(base)
        else:  # try again once the log has doubled
            entry.base_bytes = 2 * entry.logged

    def _hold(self, place: GraphKey, entry: CachedGraph) -> None:
        """Add the graph to the cache."""
        self._entries[place] = entry
        self.evict(place)


def _damaged_graph() -> Problem:
    return Problem(
        "graph-damaged",
        "What is stored of this graph is damaged; the server log has the key and the reason. "
        "Another server that has it in memory restores it when it is asked for it. Else store it "
        "anew with PUT /graphs/{id}, delete it, or restore a backup of the store.",
    )


def make_unknown_problem(at: str) -> Problem:
    detail = "No such graph. GET /graphs lists the graphs of this API key."
    return make_problem("unknown-graph", at, "unknown_graph", detail)
