"""An atomic update of a stored graph."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

import numpy as np
import orjson

from service.validation.ids import NodeId

Edge = tuple[NodeId, NodeId, int]
"""Source id, target id and relation number."""


@dataclass(frozen=True)
class Update:
    """Delete edges, delete nodes with all their edges, then insert or replace nodes with features
    x (N, F) float32, then add edges, of which duplicates are ignored; in this order.

    An update is idempotent, so a client may retry it.
    """

    nodes: tuple[NodeId, ...]
    x: np.ndarray
    edges: tuple[Edge, ...]
    delete_nodes: tuple[NodeId, ...] = ()
    delete_edges: tuple[Edge, ...] = ()

    def to_json(self) -> bytes:
        parts = (self.nodes, self.x.tolist(), self.edges, self.delete_nodes, self.delete_edges)
        return orjson.dumps(parts)

    @classmethod
    def from_json(cls, text: bytes, width: int) -> Self:
        """Restore what `to_json` wrote, for nodes with `width` features."""
        nodes, x, edges, delete_nodes, delete_edges = orjson.loads(text)
        table = np.array(x, np.float32).reshape(len(nodes), width)
        return cls(tuple(nodes), table, _edges(edges), tuple(delete_nodes), _edges(delete_edges))


def _edges(rows: Iterable[list[NodeId]]) -> tuple[Edge, ...]:
    return tuple((source, target, int(relation)) for source, target, relation in rows)
