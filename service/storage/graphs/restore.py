"""Writes what a server holds of a graph where Redis has lost it, and sees what is lost for good."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import final

import structlog

from service.storage.graphs.base import GraphLog, RestoredGraph
from service.storage.graphs.digests import hash_snapshot
from service.storage.graphs.dynamic_graph import DynamicGraph
from service.storage.graphs.metadata import GraphKey, GraphMetadata
from service.storage.graphs.past import GraphPast
from service.storage.graphs.snapshot_file import encode_snapshot
from service.storage.graphs.stored_graph import StoredGraph
from service.storage.graphs.transaction_graph import TransactionGraph

_MAX_DELETED = 100_000


@dataclass
class CachedGraph:
    """A graph in memory, with the bytes of its log (`logged`) and of its snapshot file.

    Attributes:
        is_unchecked: whether Redis may have lost it, so that absent does not mean deleted.
    """

    live: StoredGraph
    head: GraphMetadata
    past: GraphPast
    logged: int
    base_bytes: int
    used: float
    is_unchecked: bool = False

    @property
    def nbytes(self) -> int:
        return self.live.nbytes + self.past.nbytes

    @property
    def webhook(self) -> str | None:
        return find_webhook(self.live)

    def has_in_past(self, head: GraphMetadata) -> bool:
        """Whether the graph with this metadata is this one at that time, or one that it
        replaced."""
        return self.past.get(head.revision) == head.digest

    def replace_snapshot(self, base: bytes) -> GraphMetadata:
        """Return the metadata with `base`, all of this graph, as its snapshot file."""
        head, snapshot = self.head, hash_snapshot(base)
        versions = {"since": head.revision, "base_digest": head.digest}
        return replace(head, **versions, snapshot=snapshot, replaces="")


def find_webhook(graph: StoredGraph) -> str | None:
    """Return the URL to which alerts of a graph are sent."""
    if isinstance(graph, TransactionGraph):
        return graph.settings.webhook
    if isinstance(graph, DynamicGraph) and graph.watch is not None:
        return graph.watch.webhook
    return None


@final
class GraphRestorer:
    """Runs in the writer thread; all methods raise `StoreError`."""

    def __init__(self, log: GraphLog) -> None:
        self._log = log
        self._deleted = OrderedDict[str, GraphKey]()  # by tag

    def note_deleted(self, place: GraphKey, tag: str) -> None:
        """Remember that this server has deleted a graph, or has seen that it was."""
        self._deleted[tag] = place
        if len(self._deleted) > _MAX_DELETED:
            self._deleted.popitem(last=False)

    def is_deleted(self, tag: str) -> bool:
        """Whether the graph was deleted, or replaced, as far as this server or Redis knows."""
        return tag in self._deleted or tag in self._log.find_ended([tag])

    def knows_deleted(self, head: GraphMetadata) -> bool:
        """Whether this server knows that the graph was deleted, so that Redis has lost that."""
        return head.tag in self._deleted

    def delete_again(self) -> None:
        """Delete what Redis has again though this server knows that it was deleted."""
        for owner in {place.owner for place in self._deleted.values()}:
            for id, head in self._log.list_metadata(owner).graphs.items():
                if head.tag in self._deleted and self._log.delete(GraphKey(owner, id), head.tag):
                    structlog.get_logger().warning("graph deleted again", graph=id)
                    self._log.count("restored")
        self._log.note_ended(list(self._deleted))

    def restore(
        self,
        place: GraphKey,
        entry: CachedGraph,
        now: GraphMetadata | None,
        *,
        is_damaged: bool = False,
    ) -> bool:
        """Write a graph in place of `now`, an older or damaged state; return False if that has
        changed meanwhile.

        The changes that Redis lacks are written as they were, if this server remembers all of them;
        else the whole graph is. What was to be scored of them is to be scored again, and all nodes
        of a watched graph, as their alerts may be lost.
        """
        after = entry.past.revision if now is None and is_damaged else 0
        changes = entry.past.list_changes(after if now is None else now.revision)
        is_known = now is not None and len(changes) == entry.past.revision - now.revision
        if now is not None and is_known and now.tag == entry.head.tag and not is_damaged:
            head, base = entry.head.with_base_of(now), None
        else:
            base = encode_snapshot(entry.live)
            head = entry.replace_snapshot(base)
        has_lost_alerts = entry.is_unchecked or not is_damaged
        graph = RestoredGraph(head, base, changes, has_lost_alerts, entry.webhook)
        if not self._log.restore(place, now, graph, is_damaged):
            return False
        entry.head, entry.is_unchecked = head, False
        if base is not None:
            entry.logged, entry.base_bytes = 0, len(base)
        self._log.count("restored")
        structlog.get_logger().warning(
            "graph restored",
            graph=place.id,
            revision=head.revision,
            digest=head.short_digest,
            lost_since=None if now is None else now.revision,
            was_damaged=is_damaged,
        )
        return True

    def note_replaced(self, place: GraphKey, entry: CachedGraph, fresh: CachedGraph) -> None:
        """See whether what Redis has in place of `entry` followed it, or is another history: then
        what this server had more is lost, and nodes may have been scored by it."""
        ours, theirs = entry.past, fresh.past
        if theirs.first > ours.revision:
            return  # all that is known of it is newer
        common = ours.find_common(theirs)
        if common == ours.revision:
            return
        if fresh.head.tag != entry.head.tag and self._log.find_ended([entry.head.tag]):
            return
        lost = 1 if common is None else ours.revision - common
        self._log.count("lost", lost)
        structlog.get_logger().error(
            "graph has another history in redis",
            graph=place.id,
            revision=ours.revision,
            digest=entry.head.short_digest,
            revision_in_redis=fresh.head.revision,
            digest_in_redis=fresh.head.short_digest,
            lost=lost,
        )
        if fresh.head.watch is not None:
            self._log.score_all(place, fresh.head)


def list_least_used(entries: dict[GraphKey, CachedGraph], other: GraphKey) -> Iterable[GraphKey]:
    """Return all graphs but one, the least recently used first."""
    places = [place for place in entries if place != other]
    return sorted(places, key=lambda place: entries[place].used)


def make_entry(
    live: StoredGraph, head: GraphMetadata, past: GraphPast, base_bytes: int
) -> CachedGraph:
    return CachedGraph(live, head, past, 0, base_bytes, time.monotonic())
