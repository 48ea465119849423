"""Keys of stored graphs in Redis, and of which type each is."""

from __future__ import annotations

from service.storage.graphs.base import SharedWork, WatchedGraph
from service.storage.graphs.metadata import GraphKey
from service.storage.redis_client import PREFIX

PENDING = f"{PREFIX}graphs-pending"
WEBHOOKS = f"{PREFIX}graphs-webhooks"
WATCHED = f"{PREFIX}graphs-watched"
ENDED = f"{PREFIX}graphs-ended"
"""Tags of graphs that were deleted or replaced, by when."""
SHARED = {PENDING: "hash", WEBHOOKS: "hash", WATCHED: "hash", ENDED: "zset"}
_GRAPH = f"{PREFIX}graph:"
_TYPES = {
    "base": "string",
    "log": "list",
    "alerts": "stream",
    "changed": "hash",
    "above": "set",
    "scored": "hash",
    "delivering": "string",
    "scoring": "string",
}


def name_heads(owner: str) -> str:
    return f"{PREFIX}graphs:{owner}"


def name_field(place: GraphKey) -> str:
    return f"{place.owner}/{place.id}"


def parse_field(field: str) -> GraphKey:
    owner, _, id = field.rpartition("/")
    return GraphKey(owner, id)


def name_base(place: GraphKey) -> str:
    return f"{_GRAPH}{name_field(place)}:base"


def name_log(place: GraphKey) -> str:
    return f"{_GRAPH}{name_field(place)}:log"


def name_alerts(graph: WatchedGraph) -> str:
    return f"{_GRAPH}{name_field(graph.place)}:alerts:{graph.tag}"


def name_changed(graph: WatchedGraph) -> str:
    return f"{_GRAPH}{name_field(graph.place)}:changed:{graph.tag}"


def name_above(graph: WatchedGraph) -> str:
    return f"{_GRAPH}{name_field(graph.place)}:above:{graph.tag}"


def name_scored(graph: WatchedGraph) -> str:
    return f"{_GRAPH}{name_field(graph.place)}:scored:{graph.tag}"


def name_claim(place: GraphKey, work: SharedWork) -> str:
    return f"{_GRAPH}{name_field(place)}:{work}"


def match_all(place: GraphKey) -> str:
    """Return the pattern of all keys of a graph; ids have no character that it needs escaped."""
    return f"{_GRAPH}{name_field(place)}:*"


def find_type(key: str, place: GraphKey) -> str:
    """Return the type that a key of a graph has."""
    kind, _, _ = key.removeprefix(f"{_GRAPH}{name_field(place)}:").partition(":")
    return _TYPES.get(kind, "")


def name_pending(graph: WatchedGraph, revision: int, digest: str) -> str:
    """Return the field of transactions that wait to be scored."""
    return f"{prefix_pending(graph)}{name_change(revision, digest)}"


def prefix_pending(graph: WatchedGraph) -> str:
    return f"{name_field(graph.place)}:{graph.tag}:"


def name_change(revision: int, digest: str) -> str:
    """Return the name of a revision; earlier versions knew no digests."""
    return f"{revision}:{digest}" if digest else str(revision)
