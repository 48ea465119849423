"""How the nodes of a part of a large graph are described as in all of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from scipy.sparse import csr_matrix

from models.inputs.features import assemble_columns, count_averaged_columns
from models.inputs.graph import OutsideEdges, OutsideNeighbors
from models.inputs.label_columns import mark_known
from models.inputs.tree_ensemble import TreeEnsemble
from models.kernels import node_features as kernels

_ROWS = 8192  # that trees score at a time

Csr = tuple[np.ndarray, np.ndarray]
NeighborsFunc = Callable[[np.ndarray, int, bool], Csr]
"""Neighbours of rows along one relation; with True whichever way the edges point."""


@dataclass(frozen=True)
class NeighborRule:
    """Which neighbours a network describes a node by; see `models.inputs.features.NodeFeatures`."""

    hops: int
    relations: int
    undirected: bool
    self_loops: bool
    deviation_hops: int = 1
    trees: TreeEnsemble | None = None
    labels: bool = False

    def width(self, features: int) -> int:
        """W, the number of columns that are averaged at each hop."""
        return count_averaged_columns(features, self.deviation_hops)


def sum_outside_edges(
    rule: NeighborRule,
    num_nodes: int,
    node_e: np.ndarray,
    relation_e: np.ndarray,
    is_outward_e: np.ndarray,
    attr_eP: np.ndarray,
) -> OutsideEdges:
    """Sum up the edges from the N nodes of a part of a graph to others.

    Args:
        node_e: the end of each edge that is in the part; `is_outward_e`: whether it is the source.
    """
    seen_e = rule.undirected | ~is_outward_e
    group_e = ((relation_e * num_nodes + node_e) * 2 + is_outward_e)[seen_e]
    attr_eP = np.asarray(attr_eP[seen_e], np.float64)
    shape = rule.relations, num_nodes, 2
    groups = 2 * rule.relations * num_nodes

    def sum_groups(values_eP: np.ndarray) -> np.ndarray:
        return np.stack([np.bincount(group_e, v_e, groups) for v_e in values_eP.T], 1)

    count_G = np.bincount(group_e, minlength=groups).astype(float)
    mean_GP = sum_groups(attr_eP) / np.maximum(count_G, 1)[:, None]
    squares_GP = sum_groups(np.square(attr_eP - mean_GP[group_e]))
    return OutsideEdges(
        count_G.reshape(shape), mean_GP.reshape(*shape, -1), squares_GP.reshape(*shape, -1)
    )


class NeighborMeans:
    """Features and log(1 + degree) of all rows of a graph, and their means over the neighbours 1 to
    `hops` - 1 steps away, the scores that trees give all rows, if there are trees, and the labels
    of rows and of their neighbours, if labels are read; from these follow the `OutsideNeighbors` of
    any part of the graph.

    Where rows change, what depends on them is computed again, as all of it would be. Not safe for
    several threads.
    """

    def __init__(self, rule: NeighborRule, features: int) -> None:
        self._rule, self._features = rule, features
        self._layers = np.zeros((rule.relations, rule.hops, 0, rule.width(features)))
        self._scores = np.zeros(0)  # of trees
        # Of each relation and row whether a label is known and fraud, and sums over neighbours.
        self._labels = np.zeros((rule.relations if rule.labels else 0, 0, 4))
        self._is_pending = np.zeros(0, bool)  # what depends on the row is yet to be computed

    @property
    def nbytes(self) -> int:
        return self._layers.nbytes + self._scores.nbytes + self._labels.nbytes

    def update(
        self,
        rows: np.ndarray,
        x: np.ndarray,
        neighbors: NeighborsFunc,
        count_edges: Callable[[np.ndarray], int] = len,
        max_edges: int | None = None,
        labels: np.ndarray | None = None,
    ) -> bool:
        """Take rows whose features, edges or labels changed, and compute what depends on these, and
        on those of earlier updates, unless that takes more than `max_edges` edges. Then the means
        of the rows themselves alone are computed.

        Args:
            rows: those that changed (n,).
            x: their features (n, F).
            count_edges: how many edges some rows have.
            labels: their labels (n,), if the graph has any.

        Returns:
            Whether everything is as if computed from nothing.
        """
        if not self._rule.hops:
            return True
        if len(rows):
            self._grow(int(rows.max()) + 1)
            self._is_pending[rows] = True
        if self._rule.labels and labels is not None:
            self._labels[:, rows, :2] = mark_known(labels)
        for relation, layers in enumerate(self._layers):
            indptr, _ = neighbors(rows, relation, self._rule.undirected)
            layers[0, rows, : self._features] = x
            layers[0, rows, self._features] = np.log1p(np.diff(indptr).astype(float))
            if self._rule.deviation_hops > 1:
                layers[0, rows, self._features + 1 :] = np.square(
                    layers[0, rows, : self._features + 1]
                )
        relations = range(self._rule.relations)
        limit = neighbors, count_edges, max_edges
        if (
            all(self._propagate(each, *limit) for each in relations)
            and self._count_labels(*limit)
            and self._score_touched(*limit)
        ):
            self._is_pending[:] = False
            return True
        for relation, layers in enumerate(self._layers):
            seen = neighbors(rows, relation, self._rule.undirected)
            for hop in range(1, self._rule.hops):
                kernels.average(rows, *seen, layers[hop - 1], layers[hop])
            if self._rule.labels:
                self._sum_labels(rows, relation, seen)
        self._score(rows, neighbors)
        return False

    def sum_outside(self, seen: list[Csr], is_inside: np.ndarray) -> OutsideNeighbors:
        """Sum over the neighbours of the nodes of a part of the graph that are not in it.

        Args:
            seen: of each relation the neighbours of the nodes of the part.
            is_inside: whether each row of the graph is in the part.
        """
        relations, hops, _, width = self._layers.shape
        nodes = relations, len(seen[0][0]) - 1
        count, squares = np.zeros(nodes), np.zeros((*nodes, self._features + 1))
        sums = np.zeros((*nodes, hops, width))
        for each, layers in enumerate(self._layers):
            kernels.add_outside(
                *seen[each], is_inside, layers, count[each], sums[each], squares[each]
            )
        if self._rule.trees is None:
            return OutsideNeighbors(count, sums, squares)

        def add(values_rows: Sequence[np.ndarray]) -> np.ndarray:
            sums = np.zeros((*nodes, 1, values_rows[0].shape[1]))
            nothing = np.zeros((nodes[1], 0))
            for each, values in enumerate(values_rows):
                given = values[None], np.zeros(nodes[1]), sums[each], nothing
                kernels.add_outside(*seen[each], is_inside, *given)
            return sums[:, :, 0]

        scores = add([self._scores[:, None]] * relations)[..., 0]
        labels = add(list(self._labels)) if self._rule.labels else None
        return OutsideNeighbors(count, sums, squares, scores=scores, labels=labels)

    def _propagate(
        self,
        relation: int,
        neighbors: NeighborsFunc,
        count_edges: Callable[[np.ndarray], int],
        max_edges: int | None,
    ) -> bool:
        """Compute what depends on pending rows; False where that is too much."""
        layers, undirected = self._layers[relation], self._rule.undirected
        is_touched, touched = self._is_pending.copy(), np.flatnonzero(self._is_pending)
        if not len(touched) or self._rule.hops == 1:
            return True
        if max_edges is not None and count_edges(touched) > max_edges:
            return False
        seen = neighbors(touched, relation, undirected)
        for hop in range(1, self._rule.hops):
            if not is_touched.all():
                near = seen if undirected else neighbors(touched, relation, True)
                is_touched[near[1]] = True
                more = np.flatnonzero(is_touched)
                if len(more) > len(touched):
                    touched = more
                    if max_edges is not None and count_edges(touched) > max_edges:
                        return False
                    seen = neighbors(touched, relation, undirected)
            kernels.average(touched, *seen, layers[hop - 1], layers[hop])
        return True

    def _count_labels(
        self,
        neighbors: NeighborsFunc,
        count_edges: Callable[[np.ndarray], int],
        max_edges: int | None,
    ) -> bool:
        """Sum the labels of the neighbours of pending rows, and of their neighbours; False where
        that is too much."""
        pending = np.flatnonzero(self._is_pending)
        for relation in range(len(self._labels) if len(pending) else 0):
            is_touched = self._is_pending.copy()
            is_touched[neighbors(pending, relation, True)[1]] = True
            touched = np.flatnonzero(is_touched)
            if max_edges is not None and count_edges(touched) > max_edges:
                return False
            self._sum_labels(touched, relation, neighbors(touched, relation, True))
        return True

    def _sum_labels(self, rows: np.ndarray, relation: int, seen: Csr) -> None:
        """Sum the labels of the neighbours of some rows, which are `seen`."""
        labels, (indptr, indices) = self._labels[relation], seen
        shape = len(rows), len(labels)
        near = csr_matrix((np.ones(len(indices)), indices, indptr), shape)
        labels[rows, 2:] = near @ labels[:, :2]

    def _score_touched(
        self,
        neighbors: NeighborsFunc,
        count_edges: Callable[[np.ndarray], int],
        max_edges: int | None,
    ) -> bool:
        """Compute scores of all rows whose columns depend on pending ones; False where that is too
        much."""
        touched = np.flatnonzero(self._is_pending)
        if self._rule.trees is None or not len(touched):
            return True
        is_touched = self._is_pending.copy()
        for _ in range(self._rule.hops):
            if is_touched.all():
                break
            for relation in range(self._rule.relations):
                is_touched[neighbors(touched, relation, True)[1]] = True
            touched = np.flatnonzero(is_touched)
            if max_edges is not None and count_edges(touched) > max_edges:
                return False
        self._score(touched, neighbors)
        return True

    def _score(self, rows: np.ndarray, neighbors: NeighborsFunc) -> None:
        """Compute the scores that trees give some rows, by the means that are known now."""
        trees = self._rule.trees
        for start in range(0, len(rows) if trees is not None else 0, _ROWS):
            assert trees is not None
            part = rows[start : start + _ROWS]
            x_nF = self._layers[0, 0, part, : self._features]
            columns = [self._describe(part, each, neighbors) for each in range(len(self._layers))]
            table_nC = assemble_columns(torch.from_numpy(x_nF), columns)
            self._scores[part] = trees(table_nC).numpy()

    def _describe(
        self, rows: np.ndarray, relation: int, neighbors: NeighborsFunc
    ) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Return the means of some rows along a relation, and those of squares, as
        `assemble_columns` takes them."""
        layers, width = self._layers[relation], self._features + 1
        seen, place = neighbors(rows, relation, self._rule.undirected), np.arange(len(rows))
        last = np.empty((len(rows), layers.shape[2]))
        kernels.average(place, *seen, layers[-1], last)
        means = [*layers[:, rows], last]
        squares = [mean[:, width:] for mean in means[1:]][: self._rule.deviation_hops]
        if self._rule.deviation_hops == 1:  # they are not among the columns
            squares = [np.empty((len(rows), width))]
            kernels.average_squares(rows, *seen, layers[0], squares[0])
        return (
            [torch.from_numpy(np.ascontiguousarray(mean[:, :width])) for mean in means],
            [torch.from_numpy(np.ascontiguousarray(square)) for square in squares],
        )

    def _grow(self, rows: int) -> None:
        relations, hops, now, width = self._layers.shape
        if rows > now:
            spare = max(rows, now + now // 4) - now
            more = np.zeros((relations, hops, spare, width))
            self._layers = np.concatenate([self._layers, more], 2)
            self._is_pending = np.concatenate([self._is_pending, np.zeros(spare, bool)])
            self._scores = np.concatenate([self._scores, np.zeros(spare)])
            unlabelled = np.zeros((len(self._labels), spare, 4))
            self._labels = np.concatenate([self._labels, unlabelled], 1)
