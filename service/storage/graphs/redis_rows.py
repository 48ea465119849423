"""Values of hashes in Redis: metadata of the graphs of an owner, and rows of those of all owners
with the field of each."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from pydantic import TypeAdapter

from service.storage.graphs.base import WatchedGraph
from service.storage.graphs.metadata import GraphKey, GraphMetadata, is_graph_id
from service.storage.graphs.redis_keys import name_field, name_pending
from service.validation.ids import NodeId


class PendingRow(NamedTuple):
    owner: str
    id: str
    tag: str
    revision: int
    node_ids: list[NodeId]
    at: float
    digest: str = ""


class WebhookRow(NamedTuple):
    owner: str
    id: str
    tag: str
    url: str
    delivered: int


class WatchedRow(NamedTuple):
    owner: str
    id: str
    tag: str


PENDING_ROWS = TypeAdapter(PendingRow)
WEBHOOK_ROWS = TypeAdapter(WebhookRow)
WATCHED_ROWS = TypeAdapter(WatchedRow)


def name_pending_row(row: PendingRow) -> str:
    graph = WatchedGraph(GraphKey(row.owner, row.id), row.tag)
    return name_pending(graph, row.revision, row.digest)


def name_row(row: WebhookRow | WatchedRow) -> str:
    return name_field(GraphKey(row.owner, row.id))


def parse_heads(
    entries: Iterable[tuple[bytes, bytes]],
) -> tuple[dict[str, GraphMetadata], list[bytes]]:
    """Return the graphs of an owner by id, and the ids of those that are damaged."""
    heads, damaged = dict[str, GraphMetadata](), list[bytes]()
    for raw_id, raw in sorted(entries):
        id = raw_id.decode(errors="replace")
        try:
            head = GraphMetadata.from_bytes(raw)
        except ValueError:
            head = None
        if head is None or not is_graph_id(id):
            damaged.append(raw_id)
        else:
            heads[id] = head
    return heads, damaged
