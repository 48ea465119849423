"""What the nodes of a stored graph are described by, renewed where the graph changes."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import final

import numpy as np

from models.inputs.graph import OutsideNeighbors
from models.inputs.neighbor_means import Csr, NeighborMeans, NeighborRule, NeighborsFunc
from models.kernels import node_features as kernels
from service.storage.graphs.half_edges import ROW_SHIFT, HalfEdges

MAX_EDGES = 1 << 17
"""Edges that are read whenever something changes, in a few milliseconds."""
PAUSE_FACTOR = 20
"""What takes more edges is computed again after a pause: this factor times how long it took."""


@dataclass(frozen=True)
class GraphArrays:
    """A stored graph, as it is while its lock is held: features, edges, deleted rows, labels."""

    x: np.ndarray
    edges: HalfEdges
    is_deleted: np.ndarray
    revision: int
    labels: np.ndarray | None = None


@dataclass(frozen=True)
class GraphPart:
    """Some rows of a graph at a revision.

    Attributes:
        seen: of each relation their neighbours.
        is_inside: whether each row of the graph is among them.
        later: rows that changed, their features and labels, and the neighbours of any rows, where
            means are to be computed of what depends on them.
    """

    revision: int
    seen: list[Csr]
    is_inside: np.ndarray
    later: tuple[np.ndarray, np.ndarray, np.ndarray | None, NeighborsFunc] | None


@final
class GraphDescription:
    """Means over neighbours by one rule.

    Two locks: `lock` is held while a neighbourhood is described, and the lock of the graph while
    the graph is read. What takes long is done under the first alone, so no change waits for it.
    """

    def __init__(self, rule: NeighborRule, features: int) -> None:
        self.lock = threading.Lock()
        self.revision = -1
        """Last change that all means include."""
        self._rule, self._means = rule, NeighborMeans(rule, features)
        self._is_changed = np.zeros(0, bool)
        self._is_complete, self._is_half_done, self._due = False, False, 0.0

    @property
    def nbytes(self) -> int:
        return self._means.nbytes + self._is_changed.nbytes

    def mark_changed(self, rows: np.ndarray) -> None:
        """Remember that the features, edges or labels of these rows are others now."""
        if len(rows) and (spare := int(rows.max()) + 1 - len(self._is_changed)) > 0:
            more = np.zeros(max(spare, len(self._is_changed) // 4), bool)
            self._is_changed = np.concatenate([self._is_changed, more])
        self._is_changed[rows] = True

    def read(self, graph: GraphArrays, rows: np.ndarray) -> GraphPart:
        """Take what is needed to describe `rows`, under both locks, and compute means of what
        changed where that is quick."""
        if self._is_half_done:  # what was computed failed, as for lack of memory
            self._means, self._is_complete = NeighborMeans(self._rule, graph.x.shape[1]), False
            self._is_changed[:] = True
            self._due = 0.0
        self._is_half_done = True
        changed = np.flatnonzero(self._is_changed[: len(graph.is_deleted)])
        self._is_changed[:] = False
        x, is_due = graph.x[changed], time.monotonic() >= self._due
        labels = None if graph.labels is None else graph.labels[changed]
        live = self._read_neighbors(graph.edges, graph.is_deleted)
        is_small = self._is_complete and graph.edges.count(changed) <= MAX_EDGES
        if is_small or not is_due:
            limit = MAX_EDGES if is_small else 0
            given = changed, x, live, graph.edges.count, limit
            self._is_complete = self._means.update(*given, labels=labels)
            changed, x, labels = changed[:0], x[:0], None
        else:
            self._is_complete = False  # until `sum_outside` computes what depends on them
        if self._is_complete:
            self.revision = graph.revision
        later = None
        if not self._is_complete and is_due:
            snapshot = self._read_neighbors(graph.edges.copy(), graph.is_deleted.copy())
            later = changed, x, labels, snapshot
        is_inside = np.zeros(len(graph.is_deleted), bool)
        is_inside[rows] = True
        relations = range(self._rule.relations)
        seen = [live(rows, relation, self._rule.undirected) for relation in relations]
        return GraphPart(graph.revision, seen, is_inside, later)

    def sum_outside(self, part: GraphPart) -> OutsideNeighbors:
        """Return what neighbours outside of `part` add, under `lock` alone."""
        if part.later is not None:
            start = time.monotonic()
            changed, x, labels, neighbors = part.later
            self._means.update(changed, x, neighbors, labels=labels)
            self._is_complete, self.revision = True, part.revision
            self._due = time.monotonic() + PAUSE_FACTOR * (time.monotonic() - start)
        outside = self._means.sum_outside(part.seen, part.is_inside)
        self._is_half_done = False
        return outside

    def _read_neighbors(self, edges: HalfEdges, is_deleted: np.ndarray) -> NeighborsFunc:
        def neighbors(rows: np.ndarray, relation: int, either_way: bool) -> Csr:
            given = rows, *edges.gather(rows), ROW_SHIFT, relation, is_deleted
            return kernels.list_neighbors(*given, either_way, self._rule.self_loops)

        return neighbors
