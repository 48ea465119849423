"""What changes of a stored graph at once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

import numpy as np
import orjson

from service.validation.ids import NodeId

Edge = tuple[NodeId, NodeId, int]
"""Source, target and number of the relation."""


@dataclass(frozen=True)
class Update:
    """First edges go, then nodes with all their edges; then nodes are set, with x (N, F) float32,
    whether they were there or not; then edges are added, each of which is there but once.

    Done twice it is as done once, so a client may send it again.
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
        """What `dumps` wrote, of nodes with `width` features."""
        nodes, x, edges, delete_nodes, delete_edges = orjson.loads(text)
        table = np.array(x, np.float32).reshape(len(nodes), width)
        return cls(tuple(nodes), table, _edges(edges), tuple(delete_nodes), _edges(delete_edges))


def _edges(rows: Iterable[list[NodeId]]) -> tuple[Edge, ...]:
    return tuple((source, target, int(relation)) for source, target, relation in rows)
