"""Interface of the durable log of stored graphs: a snapshot, and the updates since."""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from enum import Enum, auto
from typing import NamedTuple, Self

import orjson

from service.storage.graphs.stored_graph import Schema
from service.validation.ids import NodeId

KEPT_ALERTS = 100_000  # of each graph


class GraphKey(NamedTuple):
    """Name of the API key that owns a graph, and the id of the graph."""

    owner: str
    id: str


@dataclass(frozen=True)
class GraphMetadata:
    """Schema, size and version of a graph.

    `revision` counts updates and replacements; `since` is the revision of the snapshot that the
    updates are based on; `tag` distinguishes a graph from the one that replaced it; `model` scores
    its transactions, and is None of a graph of nodes and edges.
    """

    features: tuple[str, ...]
    relations: tuple[str, ...]
    num_nodes: int
    num_edges: int
    revision: int = 0
    since: int = 0
    tag: str = field(default_factory=lambda: secrets.token_hex(8))
    model: str | None = None
    edge_features: tuple[str, ...] = ()

    @classmethod
    def from_schema(cls, schema: Schema, num_nodes: int, num_edges: int, model: str | None) -> Self:
        """Return the metadata of a new graph."""
        names = schema.features, schema.relations
        return cls(*names, num_nodes, num_edges, model=model, edge_features=schema.edge_features)

    def to_json(self) -> bytes:
        return orjson.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: bytes | str) -> Self:
        found = orjson.loads(text)
        names = ("features", "relations", "edge_features")
        return cls(**found | {name: tuple(found.get(name, ())) for name in names})

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
    """Transactions that are stored and may not be scored yet, since `at` (seconds since 1970).

    `tag` is that of their graph: one that took its place has another, and counts revisions anew.
    """

    place: GraphKey
    tag: str
    revision: int
    node_ids: list[NodeId]
    at: float


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
        """Store or replace a graph; return its revision: 1, or one above the replaced one."""

    @abstractmethod
    def append(
        self,
        place: GraphKey,
        before: GraphMetadata,
        after: GraphMetadata,
        update: bytes,
        room: GraphLimits,
        pending: list[NodeId] | None = None,
    ) -> WriteResult:
        """Store an update of the graph whose metadata is `before`; with it that the `pending`
        transactions are to be scored."""

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
    def read_alerts(
        self, place: GraphKey, tag: str, after: int, limit: int
    ) -> list[tuple[int, bytes]]:
        """Return the next alerts of the graph with this tag, each with its number: 1, 2, 3, ... The
        last `KEPT_ALERTS` of a graph are kept; none of a graph that was replaced."""

    @abstractmethod
    def list_all_webhooks(self) -> list[Webhook]:
        """Return the webhooks of all owners that may have alerts to deliver."""

    @abstractmethod
    def claim_webhook(self, webhook: Webhook, seconds: float) -> bool:
        """Whether this server may deliver for so long: no other one does."""

    @abstractmethod
    def mark_delivered(self, webhook: Webhook, number: int) -> None:
        """Store that the alert of this number was delivered, and end the claim."""


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
