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

    Where rows change, what depends on them is computed again, as all of it would be. Not safe for
    several threads.
    """

    def __init__(self, rule: NeighborRule, features: int) -> None:
        self._rule = rule
        self._layers = np.zeros((rule.relations, rule.hops, 0, features + 1))
        self._is_changed = np.zeros(0, bool)

    @property
    def nbytes(self) -> int:
        return self._layers.nbytes

    def mark_changed(self, rows: np.ndarray) -> None:
        """Remember that the features or edges of these rows are no longer what they were."""
        if len(rows):
            self._grow(int(rows.max()) + 1)
            self._is_changed[rows] = True

    def refresh(self, x: np.ndarray, neighbors: NeighborsFunc) -> None:
        """Compute what depends on rows that changed; `x` (rows, F) are the features of all."""
        changed = np.flatnonzero(self._is_changed)
        if not len(changed) or not self._rule.hops:
            return
        for relation, layers in enumerate(self._layers):
            is_touched, touched = self._is_changed.copy(), changed
            seen = neighbors(touched, relation, self._rule.undirected)
            layers[0, changed, :-1] = x[changed]
            layers[0, changed, -1] = np.log1p(np.diff(seen[0]).astype(float))
            for hop in range(1, self._rule.hops):
                if len(touched) < len(x):
                    near = seen if self._rule.undirected else neighbors(touched, relation, True)
                    is_touched[near[1]] = True
                    touched = np.flatnonzero(is_touched)
                    seen = neighbors(touched, relation, self._rule.undirected)
                kernels.average(touched, *seen, layers[hop - 1], layers[hop])
        self._is_changed[:] = False

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
            self._is_changed = np.concatenate([self._is_changed, np.zeros(spare, bool)])
