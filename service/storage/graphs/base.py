"""Interface of the durable log of stored graphs: a snapshot, and the updates since."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Literal, NamedTuple

from service.storage.graphs.digests import begin_digest, extend_over, hash_snapshot
from service.storage.graphs.metadata import GraphKey, GraphLimits, GraphMetadata
from service.storage.graphs.past import PastChange
from service.storage.graphs.stored_graph import ToScore
from service.storage.sqlite import StoreError
from service.validation.ids import NodeId

KEPT_ALERTS = 100_000  # of each graph
SharedWork = Literal["delivering", "scoring"]
"""What one of several servers does at a time for a graph."""


class WriteResult(Enum):
    DONE = auto()
    STALE = auto()  # another has changed it first
    TOO_MANY_GRAPHS = auto()
    TOO_MANY_NODES = auto()
    TOO_MANY_EDGES = auto()


@dataclass(frozen=True)
class PendingScore:
    """Transactions that are stored and may not be scored yet, since `at` (seconds since 1970, by
    the clock of the server that stored them, so only for order).

    `tag` is that of their graph: one that took its place has another, and counts revisions anew.
    `digest` is that of the revision, blank where an earlier version stored it: after Redis has lost
    a revision another one may have its number.
    """

    place: GraphKey
    tag: str
    revision: int
    node_ids: list[NodeId]
    at: float
    digest: str = ""


class AccountScore(NamedTuple):
    """An account as of a transaction; `alert` is None where it is below the threshold."""

    account: str
    alert: bytes | None


class WatchedGraph(NamedTuple):
    """A graph whose nodes raise alerts; one that took its place has another tag."""

    place: GraphKey
    tag: str


class ChangeKey(NamedTuple):
    """Revision that changed nodes, and its digest."""

    revision: int
    digest: str


@dataclass(frozen=True)
class ChangedNodes:
    """Nodes of a watched graph that a revision changed or deleted; None for all of them. What
    depends on them is to be scored. `digest` is as in `PendingScore`; where all nodes are to be
    scored again, a mark of its own follows, so that scores from before do not finish it."""

    revision: int
    node_ids: list[NodeId] | None
    digest: str = ""

    @property
    def key(self) -> ChangeKey:
        return ChangeKey(self.revision, self.digest)


@dataclass(frozen=True)
class ScoredNodes:
    """Scores of some nodes of a watched graph.

    Attributes:
        revision: all of them include the changes up to it.
        above: alerts of the nodes at or above the threshold.
        below: the other nodes.
        finished: revisions of which everything that depends on them is scored now.
    """

    graph: WatchedGraph
    revision: int
    above: Mapping[NodeId, bytes]
    below: Sequence[NodeId]
    finished: Sequence[ChangeKey]

    def without(self, later: Iterable[ChangedNodes]) -> ScoredNodes:
        """Return it without the nodes that later revisions change: those are scored again, and one
        that was deleted, or deleted and added anew, is not to be remembered as it was."""
        changed = {node_id for each in later for node_id in each.node_ids or ()}
        above = {node_id: alert for node_id, alert in self.above.items() if node_id not in changed}
        below = [node_id for node_id in self.below if node_id not in changed]
        return replace(self, above=above, below=below)


@dataclass(frozen=True)
class Webhook:
    """Where alerts of a graph are sent, and the number of the last one that was."""

    place: GraphKey
    tag: str
    url: str
    delivered: int


@dataclass(frozen=True)
class LogContents:
    """A stored graph: its snapshot file, unless the reader has it, and the updates since."""

    metadata: GraphMetadata
    snapshot_file: bytes | None
    updates: list[bytes]

    def migrate(self) -> LogContents:
        """Return what an earlier version wrote with the digests that all servers give it."""
        snapshot = hash_snapshot(self.snapshot_file or b"")
        first = begin_digest(self.metadata.tag, snapshot)
        digests = {"digest": extend_over(first, self.updates), "base_digest": first}
        return replace(self, metadata=replace(self.metadata, **digests, snapshot=snapshot))

    def find_damage(self, revision: int, digest: str) -> str:
        """Return why this is not what leads from a revision with this digest, or from the snapshot,
        to the metadata; blank if it is."""
        head = self.metadata
        if self.snapshot_file is not None and hash_snapshot(self.snapshot_file) != head.snapshot:
            return "the snapshot is not that of the graph"
        if len(self.updates) != head.revision - revision:
            return f"{len(self.updates)} updates lead from revision {revision} to {head.revision}"
        if extend_over(digest, self.updates) != head.digest:
            return f"the updates do not lead from revision {revision} to {head.revision}"
        return ""


@dataclass(frozen=True)
class GraphList:
    """Graphs of an owner by id, and the ids of those whose metadata is damaged."""

    graphs: dict[str, GraphMetadata]
    damaged: list[str]


@dataclass(frozen=True)
class RestoredGraph:
    """A graph as a server holds it, to be written to a log that has an older state or none.

    Attributes:
        snapshot_file: None if the log has all but `changes`.
        changes: updates to append, or of which what was to be scored may be lost.
        has_lost_alerts: whether alerts of the graph may be lost too.
    """

    head: GraphMetadata
    snapshot_file: bytes | None
    changes: Sequence[PastChange]
    has_lost_alerts: bool
    webhook: str | None


class DamagedGraphError(StoreError):
    """What a log has of a graph is not what a server wrote."""


class RefusedError(StoreError):
    """The log is available, but refuses this write, as where it is full."""


class GraphLog(ABC):
    """Called from one thread, which may block. A change is durable once its `batch` ends; if the
    batch raises, all of it is rolled back. All methods raise `StoreError`; those that read a graph
    raise `DamagedGraphError`, and have reported it."""

    is_shared: bool
    """Whether other servers write to this log too."""

    @abstractmethod
    def open(self) -> None: ...

    @abstractmethod
    def close(self) -> None: ...

    @contextmanager
    def batch(self) -> Iterator[None]:
        yield

    @abstractmethod
    def add_restore(
        self,
        restore: Callable[[], object],
        restore_refused: Callable[[], object],
        list_again: Callable[[GraphKey], object],
    ) -> None:
        """Add a function that is called, in another thread, when the log may have lost something,
        and that writes what only this server has within `restoring`; one that writes again what
        was refused then; and one that calls `list_again` where the entry of a graph for background
        work was damaged."""

    @contextmanager
    def restoring(self) -> Iterator[None]:
        yield

    @abstractmethod
    def count(self, event: Literal["failures", "restored", "lost"], number: int = 1) -> None:
        """Count graphs that were restored or could not be, or changes that were lost."""

    @abstractmethod
    def report_damaged(self, key: str, reason: str) -> None:
        """Count, and log once, what is not what a server wrote."""

    def make_damage(self, place: GraphKey, reason: str) -> DamagedGraphError:
        """Report that a graph is damaged; return the error to raise."""
        self.report_damaged("/".join(place), reason)
        return DamagedGraphError(reason)

    @abstractmethod
    def list_metadata(self, owner: str) -> GraphList: ...

    def migrate_all(self, owner: str, graphs: GraphList) -> GraphList:
        """Give the graphs of an earlier version their digests, and leave out those that a server
        has marked as damaged."""
        heads, damaged = dict[str, GraphMetadata](), list(graphs.damaged)
        for id, head in graphs.graphs.items():
            migrated: GraphMetadata | None = head
            if not head.digest:
                try:
                    migrated = self.read_head(GraphKey(owner, id))
                except DamagedGraphError:
                    damaged.append(id)
                    continue
            if migrated is not None and migrated.is_damaged:
                damaged.append(id)
            elif migrated is not None:
                heads[id] = migrated
        return GraphList(heads, sorted(damaged))

    @abstractmethod
    def read_head(self, place: GraphKey) -> GraphMetadata | None:
        """Return the metadata of a graph; None if it was deleted or never was."""

    @abstractmethod
    def read(self, place: GraphKey, known: GraphMetadata | None) -> LogContents | None:
        """Read a graph; of a `known` one only the updates since, unless these do not lead from it
        to what is stored now."""

    @abstractmethod
    def put(
        self,
        place: GraphKey,
        head: GraphMetadata,
        base: bytes,
        room: GraphLimits,
        webhook: str | None = None,
    ) -> tuple[WriteResult, GraphMetadata, GraphMetadata | None]:
        """Store or replace a graph, whose `snapshot` is known; return its metadata, with revision
        1 or one above the replaced one, and those of the replaced one. All nodes of one with
        `head.watch` are to be scored."""

    @abstractmethod
    def append(
        self,
        place: GraphKey,
        before: GraphMetadata,
        after: GraphMetadata,
        update: bytes,
        room: GraphLimits,
        to_score: ToScore,
    ) -> WriteResult:
        """Store an update of the graph whose metadata is `before`, and what of it is to be scored.
        Whether a deleted node was above the threshold is forgotten."""

    @abstractmethod
    def replace_snapshot(self, place: GraphKey, head: GraphMetadata, base: bytes) -> bool:
        """Replace all updates up to the revision of `head` by a snapshot, whose hash and digest
        `head` has; return whether that was done. It is optional: updates are durable without it."""

    @abstractmethod
    def restore(
        self, place: GraphKey, now: GraphMetadata | None, graph: RestoredGraph, is_damaged: bool
    ) -> bool:
        """Write a graph in place of what is stored now, where this is still `now`; None if there is
        no graph, or with `is_damaged` one whose metadata is damaged. Return whether it was."""

    @abstractmethod
    def delete(self, place: GraphKey, tag: str | None = None) -> str | None:
        """Delete a graph and its alerts, if it has the tag; return its tag, blank if that is not
        known, None if there was no graph."""

    @abstractmethod
    def find_ended(self, tags: Sequence[str]) -> set[str]:
        """Return which tags are of graphs that were deleted or replaced, as far as the log
        remembers that."""

    @abstractmethod
    def note_ended(self, tags: Sequence[str]) -> None:
        """Remember that graphs were deleted, where the log has lost that."""

    @abstractmethod
    def list_again(
        self, place: GraphKey, head: GraphMetadata, webhook: str | None, has_lost_alerts: bool
    ) -> None:
        """Store, where that is lost, that background work is to look at a graph. If it may have
        lost alerts, all nodes of a watched graph are scored again, and numbers of alerts go on
        above those that were lost."""

    @abstractmethod
    def score_all(self, place: GraphKey, head: GraphMetadata) -> None:
        """Store that all nodes of a watched graph are to be scored again."""

    @abstractmethod
    def list_all_pending(self) -> list[PendingScore]:
        """Return the pending transactions of all owners, the oldest first."""

    @abstractmethod
    def record_alerts(self, pending: PendingScore, alerts: list[bytes]) -> bool:
        """Store the alerts of transactions that are scored now; return False, and store nothing, if
        they were scored before or another graph took the place of theirs."""

    @abstractmethod
    def record_accounts(self, pending: PendingScore, scores: Sequence[AccountScore]) -> int | None:
        """Store the scores, in order, of the accounts of transactions that are scored now. Once all
        earlier transactions of the graph are scored too, add the alerts of the accounts that are
        above the threshold and were not before. Return how many alerts this call added, also of
        later transactions that waited for these; None, and nothing is stored, if they were scored
        before or another graph took the place of theirs."""

    @abstractmethod
    def read_alerts(
        self, place: GraphKey, tag: str, after: int, limit: int
    ) -> list[tuple[int, bytes]]:
        """Return the next alerts of the graph with this tag, each with its number: 1, 2, 3, ...,
        and higher ones where alerts may be lost (`alert_numbers`). The last `KEPT_ALERTS` of a
        graph are kept; none of a graph that was replaced."""

    @abstractmethod
    def list_all_webhooks(self) -> list[Webhook]:
        """Return the webhooks of all owners that may have alerts to deliver."""

    @abstractmethod
    def claim(self, place: GraphKey, work: SharedWork, seconds: float) -> bool:
        """Whether this server may do the work for so long: no other one does. A claim that this
        server has is renewed."""

    @abstractmethod
    def mark_delivered(self, webhook: Webhook, number: int) -> None:
        """Store that the alert of this number was delivered, and end the claim."""

    @abstractmethod
    def list_changed_graphs(self) -> list[WatchedGraph]:
        """Return the watched graphs of all owners that have nodes to be scored."""

    @abstractmethod
    def read_changed(
        self, graph: WatchedGraph, after: int, known: Collection[ChangeKey] = ()
    ) -> list[ChangedNodes]:
        """Return what the revisions after this one changed and is to be scored, in order, without
        those that are `known`."""

    @abstractmethod
    def record_scores(self, scored: ScoredNodes) -> int | None:
        """Store the alerts of nodes that are above the threshold and were not before, and which
        nodes are; return how many alerts. None, and nothing is stored, if another graph took the
        place of this one, or another server scores it."""


def check_limits(
    heads: dict[str, GraphMetadata], place: GraphKey, after: GraphMetadata, room: GraphLimits
) -> WriteResult:
    """Check the limits for a graph and the others of its owner."""
    others = [head for id, head in heads.items() if id != place.id]
    before = heads.get(place.id)
    if before is None and len(others) >= room.max_graphs:
        return WriteResult.TOO_MANY_GRAPHS
    # What makes a graph smaller is never refused.
    for count, maximum, refusal in (
        ("num_nodes", room.max_nodes, WriteResult.TOO_MANY_NODES),
        ("num_edges", room.max_edges, WriteResult.TOO_MANY_EDGES),
    ):
        grows = before is None or getattr(after, count) > getattr(before, count)
        if grows and sum(getattr(head, count) for head in (*others, after)) > maximum:
            return refusal
    return WriteResult.DONE
