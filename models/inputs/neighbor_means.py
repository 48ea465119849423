"""How the nodes of a part of a large graph are described as in all of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from models.inputs.graph import OutsideNeighbors
from models.kernels import node_features as kernels

NeighborsFunc = Callable[[np.ndarray, int, bool], tuple[np.ndarray, np.ndarray]]
"""Neighbours of rows along one relation, as CSR; with True whichever way the edges point."""


@dataclass(frozen=True)
class NeighborRule:
    """Which neighbours a network describes a node by; see `models.inputs.features.NodeFeatures`."""

    hops: int
    relations: int
    undirected: bool
    self_loops: bool


class NeighborMeans:
    """Features and log(1 + degree) of all rows of a graph, and their means over the neighbours 1 to
    `hops` - 1 steps away; from these follow the `OutsideNeighbors` of any part of the graph.

    Where rows change, they are computed again, and what depends on them as all of it would be. Not
    safe for several threads.
    """

    def __init__(self, rule: NeighborRule, features: int) -> None:
        self._rule = rule
        self._layers = np.zeros((rule.relations, rule.hops, 0, features + 1))
        self._is_changed = np.zeros(0, bool)
        self._is_pending = np.zeros(0, bool)  # what depends on the row is yet to be computed

    @property
    def nbytes(self) -> int:
        return self._layers.nbytes

    def mark_changed(self, rows: np.ndarray) -> None:
        """Remember that the features or edges of these rows are no longer what they were."""
        if len(rows):
            self._grow(int(rows.max()) + 1)
            self._is_changed[rows] = True

    def refresh(
        self,
        x: np.ndarray,
        neighbors: NeighborsFunc,
        count_edges: Callable[[np.ndarray], int],
        max_edges: int | None = None,
    ) -> bool:
        """Compute rows that changed, and what depends on them unless that takes more than
        `max_edges` edges.

        Args:
            x: features of all rows (rows, F).
            count_edges: how many edges some rows have.

        Returns:
            Whether everything is as if computed from nothing.
        """
        changed = np.flatnonzero(self._is_changed)
        if len(changed) and self._rule.hops:
            for relation, layers in enumerate(self._layers):
                seen = neighbors(changed, relation, self._rule.undirected)
                layers[0, changed, :-1] = x[changed]
                layers[0, changed, -1] = np.log1p(np.diff(seen[0]).astype(float))
                for hop in range(1, self._rule.hops):
                    kernels.average(changed, *seen, layers[hop - 1], layers[hop])
        self._is_pending |= self._is_changed
        self._is_changed[:] = False
        if max_edges == 0:
            return not self._is_pending.any()
        for relation in range(self._rule.relations if self._rule.hops > 1 else 0):
            if not self._propagate(relation, len(x), neighbors, count_edges, max_edges):
                return False
        self._is_pending[:] = False
        return True

    def _propagate(
        self,
        relation: int,
        rows: int,
        neighbors: NeighborsFunc,
        count_edges: Callable[[np.ndarray], int],
        max_edges: int | None,
    ) -> bool:
        """Compute what depends on pending rows; False where that is too much."""
        layers, undirected = self._layers[relation], self._rule.undirected
        is_touched, touched = self._is_pending.copy(), np.flatnonzero(self._is_pending)
        if not len(touched):
            return True
        if max_edges is not None and count_edges(touched) > max_edges:
            return False
        seen = neighbors(touched, relation, undirected)
        for hop in range(1, self._rule.hops):
            if len(touched) < rows:
                near = seen if undirected else neighbors(touched, relation, True)
                is_touched[near[1]] = True
                touched = np.flatnonzero(is_touched)
                if max_edges is not None and count_edges(touched) > max_edges:
                    return False
                seen = neighbors(touched, relation, undirected)
            kernels.average(touched, *seen, layers[hop - 1], layers[hop])
        return True

    def sum_outside(
        self, rows: np.ndarray, place: np.ndarray, neighbors: NeighborsFunc
    ) -> OutsideNeighbors:
        """Sum over the neighbours of `rows` that are not in a part of the graph.

        Args:
            rows: all rows of the part.
            place: of each row of the graph its place in the part, below 0 where it has none.
        """
        relations, hops, _, width = self._layers.shape
        nodes = relations, len(rows)
        count, squares = np.zeros(nodes), np.zeros((*nodes, width))
        sums = np.zeros((*nodes, hops, width))
        for relation, layers in enumerate(self._layers):
            seen = neighbors(rows, relation, self._rule.undirected)
            kernels.add_outside(
                *seen, place, layers, count[relation], sums[relation], squares[relation]
            )
        return OutsideNeighbors(count, sums, squares)

    def _grow(self, rows: int) -> None:
        relations, hops, now, width = self._layers.shape
        if rows > now:
            spare = max(rows, now + now // 4) - now
            more = np.zeros((relations, hops, spare, width))
            self._layers = np.concatenate([self._layers, more], 2)
            no = np.zeros(spare, bool)
            self._is_changed = np.concatenate([self._is_changed, no])
            self._is_pending = np.concatenate([self._is_pending, no])
