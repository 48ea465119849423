"""Where stored graphs last: as they once were, and what has changed since."""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from enum import Enum, auto
from typing import NamedTuple, Self

import orjson

from service.storage.graphs.dynamic_graph import Schema


class GraphKey(NamedTuple):
    """Whose graph, and its id."""

    owner: str
    id: str


@dataclass(frozen=True)
class GraphMetadata:
    """What is known of a graph without reading it.

    `revision` counts its changes, also over those that replace it; `since` is the revision of its
    base, on which changes are written; `tag` tells a graph from the one that replaced it.
    """

    features: tuple[str, ...]
    relations: tuple[str, ...]
    num_nodes: int
    num_edges: int
    revision: int = 0
    since: int = 0
    tag: str = field(default_factory=lambda: secrets.token_hex(8))

    @property
    def schema(self) -> Schema:
        return Schema(self.features, self.relations)

    def to_json(self) -> bytes:
        return orjson.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: bytes | str) -> Self:
        found = orjson.loads(text)
        return cls(**found | {name: tuple(found[name]) for name in ("features", "relations")})

    def next_revision(self, num_nodes: int, num_edges: int) -> GraphMetadata:
        """After one change more."""
        revision = self.revision + 1
        return replace(self, num_nodes=num_nodes, num_edges=num_edges, revision=revision)


@dataclass(frozen=True)
class GraphLimits:
    """How much one owner may store."""

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
class LogContents:
    """A graph to be read: its base, unless that is known, and the changes since."""

    metadata: GraphMetadata
    snapshot_file: bytes | None
    updates: list[bytes]


class GraphLog(ABC):
    """Called from one thread, which may block. Every change lasts once the `batch` it is in ends;
    what a batch has changed is as it was where that raises. All methods raise `StoreError`."""

    is_shared: bool
    """Do others write here too?"""

    @abstractmethod
    def open(self) -> None: ...

    @abstractmethod
    def close(self) -> None: ...

    @contextmanager
    def batch(self) -> Iterator[None]:
        yield

    @abstractmethod
    def list_metadata(self, owner: str) -> dict[str, GraphMetadata]:
        """Of all graphs of an owner, by id."""

    @abstractmethod
    def put(
        self, place: GraphKey, head: GraphMetadata, base: bytes, room: GraphLimits
    ) -> tuple[WriteResult, int]:
        """Store a graph, in place of what was there; with its revision, one above that of what was
        there, or 1."""

    @abstractmethod
    def append(
        self,
        place: GraphKey,
        before: GraphMetadata,
        after: GraphMetadata,
        update: bytes,
        room: GraphLimits,
    ) -> WriteResult:
        """Store a change of the graph that was `before`."""

    @abstractmethod
    def replace_snapshot(self, place: GraphKey, head: GraphMetadata, base: bytes) -> bool:
        """Put a base in the place of all changes up to the revision of `head`; was it done? It
        need not be: changes last without it."""

    @abstractmethod
    def read(self, place: GraphKey, known: GraphMetadata | None) -> LogContents | None:
        """A graph; of one that is `known` the changes since, unless it was replaced."""

    @abstractmethod
    def delete(self, place: GraphKey) -> bool:
        """Was there one?"""


def check_limits(
    heads: dict[str, GraphMetadata], place: GraphKey, after: GraphMetadata, room: GraphLimits
) -> WriteResult:
    """Is there room for a graph beside the others of its owner?"""
    others = [head for id, head in heads.items() if id != place.id]
    before = heads.get(place.id)
    if before is None and len(others) >= room.max_graphs:
        return WriteResult.TOO_MANY_GRAPHS
    # What makes a graph smaller is never refused.
    for count, most, refusal in (
        ("num_nodes", room.max_nodes, WriteResult.TOO_MANY_NODES),
        ("num_edges", room.max_edges, WriteResult.TOO_MANY_EDGES),
    ):
        grows = before is None or getattr(after, count) > getattr(before, count)
        if grows and sum(getattr(head, count) for head in (*others, after)) > most:
            return refusal
    return WriteResult.DONE
