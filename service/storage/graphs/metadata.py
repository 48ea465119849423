"""What a log says of a stored graph: its name, size and version."""

from __future__ import annotations

import hashlib
import re
import secrets
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import NamedTuple, Self

import orjson
from pydantic import TypeAdapter

from service.storage.graphs.digests import begin_digest, shorten_digest
from service.storage.graphs.stored_graph import Schema

_ID = re.compile(r"[a-z0-9](?:[a-z0-9_-]|\.(?!\.)){0,63}")
_CHECKED = re.compile(rb'\{"form":2,"length":(\d+),"check":"(\w+)",')  # form 1 had no check


class DamagedValueError(ValueError):
    """A stored value is not what a server wrote."""


class GraphKey(NamedTuple):
    """Name of the API key that owns a graph, and the id of the graph."""

    owner: str
    id: str


def is_graph_id(id: object) -> bool:
    """Whether this can be the id of a graph: 1 to 64 characters."""
    return isinstance(id, str) and _ID.fullmatch(id) is not None


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
    a graph are scored, and is None if they raise no alerts; `labels` whether its nodes may have
    labels.

    `digest` is of the whole history up to `revision` (`digests`), `base_digest` of that up to
    `since`, `snapshot` of the snapshot file, and `replaces` of the graph whose place the snapshot
    took, blank if there was none. All are blank as long as an earlier version has written them.
    `is_damaged` is set by a server that could not read the graph, for one that has it in memory.
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
    labels: bool = False
    digest: str = ""
    base_digest: str = ""
    snapshot: str = ""
    replaces: str = ""
    is_damaged: bool = False

    @classmethod
    def from_schema(cls, schema: Schema, num_nodes: int, num_edges: int) -> Self:
        """Return the metadata of a new graph."""
        names = schema.features, schema.relations
        more = {"edge_features": schema.edge_features, "labels": schema.labels}
        return cls(*names, num_nodes, num_edges, **more)

    @property
    def short_digest(self) -> str:
        """The digest as clients see it."""
        return shorten_digest(self.digest)

    def to_bytes(self) -> bytes:
        """Return it as JSON that begins with the version of its form, length and SHA-256."""
        fields = orjson.dumps(self)[1:]
        check = hashlib.sha256(fields).hexdigest().encode()
        return b'{"form":2,"length":%d,"check":"%s",%s' % (len(fields), check, fields)

    @staticmethod
    def from_bytes(raw: bytes) -> GraphMetadata:
        """Restore what `to_bytes` or an earlier version wrote.

        Raises:
            DamagedValueError: it is something else.
        """
        return _parse(raw)

    def next_revision(self, num_nodes: int, num_edges: int, digest: str) -> GraphMetadata:
        """Return the metadata after one more update."""
        sizes = {"num_nodes": num_nodes, "num_edges": num_edges}
        return replace(self, **sizes, revision=self.revision + 1, digest=digest)

    def in_place_of(self, before: GraphMetadata | None) -> GraphMetadata:
        """Return the metadata of a new graph, whose `snapshot` is known, once it is stored in place
        of another one or of none."""
        revision, replaces = (1, "") if before is None else (before.revision + 1, before.digest)
        digest = begin_digest(self.tag, self.snapshot)
        versions = {"revision": revision, "since": revision}
        digests = {"digest": digest, "base_digest": digest, "replaces": replaces}
        return replace(self, **versions, **digests)

    def with_base_of(self, other: GraphMetadata) -> GraphMetadata:
        """Return it with another snapshot of the same graph."""
        base = {"since": other.since, "base_digest": other.base_digest}
        return replace(self, **base, snapshot=other.snapshot, replaces=other.replaces)

    def has_base_of(self, other: GraphMetadata) -> bool:
        """Whether both have the same snapshot."""
        ours, theirs = (self.tag, self.since), (other.tag, other.since)
        return (*ours, self.base_digest) == (*theirs, other.base_digest)


_ADAPTER = TypeAdapter(GraphMetadata)


@lru_cache(4096)  # each change reads those of all graphs of its owner
def _parse(raw: bytes) -> GraphMetadata:
    if (begin := _CHECKED.match(raw)) is not None:
        fields, check = raw[begin.end() :], begin[2].decode()
        if len(fields) != int(begin[1]) or hashlib.sha256(fields).hexdigest() != check:
            raise DamagedValueError("the fields do not have the length and digest of the form")
    try:
        head = _ADAPTER.validate_json(raw)
    except ValueError as error:
        raise DamagedValueError("the fields are not those of a graph") from error
    if begin is None and head.digest:
        raise DamagedValueError("the length and digest of the form are missing")
    return head


@dataclass(frozen=True)
class GraphLimits:
    """Storage limits of one owner."""

    max_graphs: int
    max_nodes: int
    max_edges: int
