"""An atomic update of a stored graph, and what it makes of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

import numpy as np
import orjson

from service.storage.graphs.half_edges import RowEdges
from service.validation.ids import NodeId

Edge = tuple[NodeId, NodeId, int]
"""Source id, target id and relation number."""


@dataclass(frozen=True)
class Update:
    """Delete edges, delete nodes with all their edges, then insert or replace nodes with features
    x (N, F) float32, then add edges, in this order. An edge that is there stays, and takes the
    features that come with it: edge_attr (E, P) float32, where edges of the graph have any. Last
    come labels of nodes, by id: 1 fraud, 0 none, `UNKNOWN`.

    An update is idempotent, so a client may retry it.
    """

    nodes: tuple[NodeId, ...]
    x: np.ndarray
    edges: tuple[Edge, ...]
    delete_nodes: tuple[NodeId, ...] = ()
    delete_edges: tuple[Edge, ...] = ()
    edge_attr: np.ndarray | None = None
    labels: tuple[tuple[NodeId, int], ...] = ()

    def to_json(self) -> bytes:
        parts = [self.nodes, self.x.tolist(), self.edges, self.delete_nodes, self.delete_edges]
        if self.edge_attr is not None or self.labels:
            parts.append(None if self.edge_attr is None else self.edge_attr.tolist())
        if self.labels:
            parts.append(self.labels)
        return orjson.dumps(parts)

    @classmethod
    def from_json(cls, text: bytes, width: int, edge_width: int = 0) -> Self:
        """Restore what `to_json` wrote, for nodes with `width` and edges with `edge_width`
        features."""
        nodes, x, edges, delete_nodes, delete_edges, *more = orjson.loads(text)
        attr, labels = [*more, None, None][:2]
        table = np.array(x, np.float32).reshape(len(nodes), width)
        return cls(
            *(tuple(nodes), table, _edges(edges), tuple(delete_nodes), _edges(delete_edges)),
            None if attr is None else np.array(attr, np.float32).reshape(len(edges), edge_width),
            tuple((id, int(label)) for id, label in labels or ()),
        )


@dataclass(frozen=True)
class Change:
    """What an update makes of a graph: of some rows their edges, who comes and goes, and of some
    rows the label."""

    update: Update
    halves: dict[int, RowEdges]
    deleted: list[tuple[NodeId, int]]
    new: list[tuple[NodeId, int]]
    rows: np.ndarray
    x: np.ndarray
    num_nodes: int
    num_edges: int
    labelled: list[tuple[int, int]]


def _edges(rows: Iterable[list[NodeId]]) -> tuple[Edge, ...]:
    return tuple((source, target, int(relation)) for source, target, relation in rows)
