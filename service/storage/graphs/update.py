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
    x (N, F) float32, then add edges, in this order. An edge that is there stays, and takes the
    features that come with it: edge_attr (E, P) float32, where edges of the graph have any.

    An update is idempotent, so a client may retry it.
    """

    nodes: tuple[NodeId, ...]
    x: np.ndarray
    edges: tuple[Edge, ...]
    delete_nodes: tuple[NodeId, ...] = ()
    delete_edges: tuple[Edge, ...] = ()
    edge_attr: np.ndarray | None = None

    def to_json(self) -> bytes:
        parts = [self.nodes, self.x.tolist(), self.edges, self.delete_nodes, self.delete_edges]
        if self.edge_attr is not None:
            parts.append(self.edge_attr.tolist())
        return orjson.dumps(parts)

    @classmethod
    def from_json(cls, text: bytes, width: int, edge_width: int = 0) -> Self:
        """Restore what `to_json` wrote, for nodes with `width` and edges with `edge_width`
        features."""
        nodes, x, edges, delete_nodes, delete_edges, *attr = orjson.loads(text)
        table = np.array(x, np.float32).reshape(len(nodes), width)
        return cls(
            *(tuple(nodes), table, _edges(edges), tuple(delete_nodes), _edges(delete_edges)),
            np.array(attr[0], np.float32).reshape(len(edges), edge_width) if attr else None,
        )


def _edges(rows: Iterable[list[NodeId]]) -> tuple[Edge, ...]:
    return tuple((source, target, int(relation)) for source, target, relation in rows)
