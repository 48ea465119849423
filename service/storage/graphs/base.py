"""Interface of the durable log of stored graphs: a snapshot, and the updates since."""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from enum import Enum, auto
from typing import Literal, NamedTuple, Self

import orjson

from service.storage.graphs.stored_graph import Schema
from service.validation.ids import NodeId

KEPT_ALERTS = 100_000  # of each graph
SharedWork = Literal["delivering", "scoring"]
"""What one of several servers does at a time for a graph."""


class GraphKey(NamedTuple):
    """Name of the API key that owns a graph, and the id of the graph."""

    owner: str
    id: str


@dataclass(frozen=True)
class WatchSettings:
    """How the nodes of a graph are scored after each change.

    Attributes:
        threshold: probability from which on a node raises an alert; None for that of the model.
        hops, max_neighbors: the neighbourhood in which a node is scored; None for the model's.
        webhook: URL to which alerts are sent.
    """

    model: str
    threshold: float | None = None
    hops: int | None = None
    max_neighbors: int | None = None
    webhook: str | None = None


@dataclass(frozen=True)
class GraphMetadata:
    """Schema, size and version of a graph.

    `revision` counts updates and replacements; `since` is the revision of the snapshot that the
    updates are based on; `tag` distinguishes a graph from the one that replaced it; `model` scores
    its transactions, and is None of a graph of nodes and edges; `watch` says how the nodes of such
    a graph are scored, and is None if they raise no alerts.
    """

    features: tuple[str, ...]
    relations: tuple[str, ...]
    num_nodes: int
    num_edges: int
    revision: int = 0
    since: int = 0
    tag: str = field(default_factory=lambda: secrets.token_hex(8))
    model: str | None = None
    watch: WatchSettings | None = None
    edge_features: tuple[str, ...] = ()

    @classmethod
    def from_schema(cls, schema: Schema, num_nodes: int, num_edges: int) -> Self:
        """Return the metadata of a new graph."""
        names = schema.features, schema.relations
        return cls(*names, num_nodes, num_edges, edge_features=schema.edge_features)

    def to_json(self) -> bytes:
        return orjson.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: bytes | str) -> Self:
        found = orjson.loads(text)
        columns = ("features", "relations", "edge_features")
        names = {name: tuple(found.get(name, ())) for name in columns}
        if (watch := found.get("watch")) is not None:
            found["watch"] = WatchSettings(**watch)
        return cls(**found | names)

    def next_revision(self, num_nodes: int, num_edges: int) -> GraphMetadata:
        """Return the metadata after one more update."""
        revision = self.revision + 1
        return replace(self, num_nodes=num_nodes, num_edges=num_edges, revision=revision)


@dataclass(frozen=True)
class GraphLimits:
    """Storage limits of one owner."""

    max_graphs: int
    max_nodes: int
    max_edges: int


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
    """

    place: GraphKey
    tag: str
    revision: int
    node_ids: list[NodeId]
    at: float


class AccountScore(NamedTuple):
    """An account as of a transaction; `alert` is None where it is below the threshold."""

    account: str
    alert: bytes | None


@dataclass(frozen=True)
class TouchedNodes:
    """Nodes whose features or edges an update changes, and nodes that it deletes."""

    node_ids: list[NodeId]
    deleted: list[NodeId]


class WatchedGraph(NamedTuple):
    """A graph whose nodes raise alerts; one that took its place has another tag."""

    place: GraphKey
    tag: str


@dataclass(frozen=True)
class ChangedNodes:
    """Nodes of a watched graph that a revision changed or deleted; None for all of them. What
    depends on them is to be scored."""

    revision: int
    node_ids: list[NodeId] | None


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
    finished: Sequence[int]

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


class GraphLog(ABC):
    """Called from one thread, which may block. A change is durable once its `batch` ends; if the
    batch raises, all of it is rolled back. All methods raise `StoreError`."""

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
    def list_metadata(self, owner: str) -> dict[str, GraphMetadata]:
        """Return the metadata of all graphs of an owner, by id."""

    @abstractmethod
    def put(
        self,
        place: GraphKey,
        head: GraphMetadata,
        base: bytes,
        room: GraphLimits,
        webhook: str | None = None,
    ) -> tuple[WriteResult, int]:
        """Store or replace a graph; return its revision: 1, or one above the replaced one. All
        nodes of one with `head.watch` are to be scored."""

    @abstractmethod
    def append(
        self,
        place: GraphKey,
        before: GraphMetadata,
        after: GraphMetadata,
        update: bytes,
        room: GraphLimits,
        pending: list[NodeId] | None = None,
        touched: TouchedNodes | None = None,
    ) -> WriteResult:
        """Store an update of the graph whose metadata is `before`; with it that the `pending`
        transactions, or what depends on the `touched` nodes, are to be scored. Whether a deleted
        node was above the threshold is forgotten."""

    @abstractmethod
    def replace_snapshot(self, place: GraphKey, head: GraphMetadata, base: bytes) -> bool:
        """Replace all updates up to the revision of `head` by a snapshot; return whether that was
        done. It is optional: updates are durable without it."""

    @abstractmethod
    def read(self, place: GraphKey, known: GraphMetadata | None) -> LogContents | None:
        """Read a graph; of a `known` one only the updates since, unless it was replaced."""

    @abstractmethod
    def delete(self, place: GraphKey) -> bool:
        """Delete a graph and its alerts; return whether there was one."""

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
        """Return the next alerts of the graph with this tag, each with its number: 1, 2, 3, ... The
        last `KEPT_ALERTS` of a graph are kept; none of a graph that was replaced."""

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
    def read_changed(self, graph: WatchedGraph, after: int) -> list[ChangedNodes]:
        """Return what the revisions after this one changed and is to be scored, in order."""

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
