"""Edges as numbers: one int64 at each end.

A half edge is the row of the other end, the relation, and whether the edge comes in:
`row << ROW_SHIFT | relation << RELATION_SHIFT | inward`. A loop has one half edge, which goes out.
Features of an edge (P of them, or none) lie at both ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import copy
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from models.inputs.graph import Graph, OutsideEdges
from models.inputs.neighbor_means import NeighborRule, sum_outside_edges
from models.kernels import node_features as kernels

ROW_SHIFT, RELATION_SHIFT, INWARD_BIT = 16, 1, 1
NO_HALF_EDGES = np.empty(0, np.int64)


class RowEdges(NamedTuple):
    """The half edges of a row (n,) and the features of their edges, float32 (n, P)."""

    half: np.ndarray
    attr: np.ndarray


def add_half_edges(
    halves: dict[int, dict[int, int]], source: int, target: int, relation: int, place: int = 0
) -> None:
    """Note at both ends of an edge its half edge, and `place`; a loop has one."""
    halves[source][target << ROW_SHIFT | relation << RELATION_SHIFT] = place
    if source != target:
        halves[target][source << ROW_SHIFT | relation << RELATION_SHIFT | INWARD_BIT] = place


class HalfEdges:
    """The half edges of each row: as the graph was built, and of rows that changed as they are."""

    def __init__(self, graph: Graph, order: np.ndarray) -> None:
        """`order` (N) is a number for each row, by which those of its neighbours are sorted."""
        self._start, self._halves, self._attr = _build_half_edges(graph, order)
        # The arrays in these are never written to. The second is empty if edges have no features.
        self._changed, self._changed_attr = dict[int, np.ndarray](), dict[int, np.ndarray]()
        self._changed_bytes = 0

    @property
    def num_outward(self) -> int:
        """Half edges that go out as the graph was built."""
        return count_outward(self._halves)

    @property
    def nbytes(self) -> int:
        built = self._start.nbytes + self._halves.nbytes + self._attr.nbytes
        return built + self._changed_bytes

    @property
    def has_attr(self) -> bool:
        return self._attr.shape[1] > 0

    def replace(self, rows: Mapping[int, RowEdges], order: np.ndarray) -> None:
        """Give rows other half edges, which are then sorted by `order` of the other end."""
        for row, (half, attr) in rows.items():
            # Few were added to many in order, which this kind of sort is fast at.
            by_order = np.argsort(order[half >> ROW_SHIFT], kind="stable")
            self._set(self._changed, row, half[by_order])
            if self.has_attr:
                self._set(self._changed_attr, row, attr[by_order])

    def _set(self, changed: dict[int, np.ndarray], row: int, part: np.ndarray) -> None:
        before = changed.get(row)
        self._changed_bytes += part.nbytes + (112 if before is None else -before.nbytes)
        changed[row] = part

    def copy(self) -> HalfEdges:
        """Return what they are now, whatever becomes of these."""
        other = copy(self)
        other._changed, other._changed_attr = self._changed.copy(), self._changed_attr.copy()
        return other

    def at(self, row: int) -> np.ndarray:
        """Return those of a row."""
        return self._at(row, self._changed, self._halves)

    def attr_at(self, row: int) -> np.ndarray:
        """Return the features of those of a row (n, P)."""
        if not self.has_attr:
            return np.empty((len(self.at(row)), 0), np.float32)
        return self._at(row, self._changed_attr, self._attr)

    def _at(self, row: int, changed: dict[int, np.ndarray], built: np.ndarray) -> np.ndarray:
        if (part := changed.get(row)) is not None:
            return part
        if row >= len(self._start) - 1:
            return built[:0]
        return built[self._start[row] : self._start[row + 1]]

    def merge(
        self, row: int, dropped: Iterable[int], added: Mapping[int, int], attr: np.ndarray
    ) -> tuple[RowEdges, int] | None:
        """Return what a row has without the half edges `dropped` and with those `added`, and how
        many more of them go out; None if that changes nothing.

        Nothing here depends on the order in which edges are kept: what is written is what is read.

        Args:
            added: the place in `attr` of each. What is in both stays, with the features of `added`.
            attr: features of edges (E, P).
        """
        half, attr_of_half = self.at(row), self.attr_at(row)
        new = np.array(sorted(added), np.int64)
        new_attr = attr[[added[one] for one in new.tolist()]]
        is_again = is_among(half, new)
        leaves = is_among(half, np.array(sorted(dropped), np.int64)) & ~is_again
        arrives = ~np.isin(new, half[is_again])
        again_attr = new_attr[np.searchsorted(new, half[is_again])]
        if not (leaves.any() or arrives.any() or (attr_of_half[is_again] != again_attr).any()):
            return None
        attr_of_half = attr_of_half.copy()
        attr_of_half[is_again] = again_attr
        more = count_outward(new[arrives]) - count_outward(half[leaves])
        stays = ~leaves if leaves.any() else slice(None)
        merged = RowEdges(
            np.concatenate([half[stays], new[arrives]]),
            np.concatenate([attr_of_half[stays], new_attr[arrives]]),
        )
        return merged, more

    def count(self, rows: np.ndarray) -> int:
        """Return how many half edges some rows have."""
        _, size, _, _ = self._locate(rows)
        return int(size.sum())

    def gather(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return those of `rows` as CSR. As they are sorted, sums over them are the same, bit for
        bit, whatever rows the nodes have."""
        first, size, changed, parts = self._locate(rows)
        indptr = np.r_[0, np.cumsum(size)]
        halves = np.empty(indptr[-1], np.int64)
        kernels.copy_rows(first, indptr, self._halves, halves)
        for at, part in zip(changed, parts, strict=True):
            halves[indptr[at] : indptr[at + 1]] = part
        return indptr, halves

    def gather_attr(self, rows: np.ndarray) -> np.ndarray | None:
        """Return the features (n, P) of those of `rows`, one row after the other; None if edges
        have none."""
        if not self.has_attr:
            return None
        return np.concatenate([self._attr[:0], *map(self.attr_at, rows.tolist())])

    def _locate(
        self, rows: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, list[int], list[np.ndarray]]:
        """Return of each of `rows` the place of its first half edge, -1 if the row changed, and how
        many it has; the places in `rows` of those that changed, and their half edges."""
        last = len(self._start) - 1
        first = self._start[np.minimum(rows, last)]
        size = self._start[np.minimum(rows + 1, last)] - first
        changed = [at for at, row in enumerate(rows.tolist()) if row in self._changed]
        parts = [self._changed[row] for row in rows[changed].tolist()]
        first[changed] = -1
        size[changed] = [len(part) for part in parts]
        return first, size, changed, parts


def _build_half_edges(graph: Graph, order: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the offset of each row (N + 1), and the half edges of all rows with the features of
    their edges, sorted by row, then by `order` of the other end. Of an edge that the graph has
    twice the last is kept."""
    source, target = np.asarray(graph.edge_index, np.int64)
    relation = (
        0 if graph.edge_type is None else np.asarray(graph.edge_type, np.int64) << RELATION_SHIFT
    )
    inwards = source != target
    outward = target << ROW_SHIFT | relation
    inward = (source << ROW_SHIFT | relation | INWARD_BIT)[inwards]
    owner, half = np.r_[source, target[inwards]], np.r_[outward, inward]
    by_owner = np.lexsort((half, order[half >> ROW_SHIFT], owner))
    owner, half = owner[by_owner], half[by_owner]
    once = np.ones(len(owner), bool)
    once[:-1] = (owner[1:] != owner[:-1]) | (half[1:] != half[:-1])
    owner, half = owner[once], half[once]
    attr = np.empty((len(half), 0), np.float32)
    if graph.edge_attr is not None:
        edge = np.r_[np.arange(len(source)), np.flatnonzero(inwards)]
        attr = np.asarray(graph.edge_attr, np.float32)[edge[by_owner[once]]]
    return np.searchsorted(owner, np.arange(graph.num_nodes + 1)), half, attr


@dataclass(frozen=True)
class NodeEdges:
    """The half edges of the nodes of a part of a graph.

    Attributes:
        node: which node each is of (n,).
        half: the half edges (n,).
        other: index of the node that each leads to (n,); -1 if it is not among the nodes.
        attr: features of their edges (n, P); None if edges have none.
    """

    node: np.ndarray
    half: np.ndarray
    other: np.ndarray
    attr: np.ndarray | None

    @classmethod
    def from_rows(
        cls, edges: HalfEdges, rows: np.ndarray, parts: list[np.ndarray], place: np.ndarray
    ) -> NodeEdges:
        """Join `parts`, which are the half edges of `rows`; `place` is the index of each row of the
        whole graph among these, or -1."""
        half = np.concatenate([NO_HALF_EDGES, *parts])
        node = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
        return cls(node, half, place[half >> ROW_SHIFT], edges.gather_attr(rows))

    @property
    def _relation(self) -> np.ndarray:
        return (self.half & ((1 << ROW_SHIFT) - 1)) >> RELATION_SHIFT

    @property
    def _is_outward(self) -> np.ndarray:
        return self.half & INWARD_BIT == 0

    def select(self, mask: np.ndarray) -> NodeEdges:
        attr = None if self.attr is None else self.attr[mask]
        return NodeEdges(self.node[mask], self.half[mask], self.other[mask], attr)

    def build_graph(self, x: np.ndarray, relations: int) -> Graph:
        """Build the graph of the nodes, which have features `x` (N, F), and the edges between them,
        sorted by source and target. `relations` is how many the whole graph has."""
        within = self.select(self._is_outward & (self.other >= 0))
        target, relation = within.other.astype(np.int64), within._relation
        order = np.lexsort((relation, target, within.node))
        return Graph(
            x,
            np.stack([within.node, target])[:, order],
            relation[order] if relations > 1 else None,
            None if within.attr is None else within.attr[order],
        )

    def sum_attr(self, rule: NeighborRule, num_nodes: int) -> OutsideEdges:
        """Sum up the features of these edges, which have some, to nodes outside of the part."""
        assert self.attr is not None
        return sum_outside_edges(
            rule, num_nodes, self.node, self._relation, self._is_outward, self.attr
        )


def count_outward(halves: np.ndarray) -> int:
    """Count the half edges that go out: one for each edge."""
    return int(np.count_nonzero(halves & INWARD_BIT == 0))


def is_among(values: np.ndarray, few: np.ndarray) -> np.ndarray:
    """Mark the `values` that are among `few`, which are sorted.

    Not `np.isin`: it would sort `values`, which may be all edges of a hub.
    """
    if not len(few):
        return np.zeros(len(values), bool)
    return few[np.minimum(np.searchsorted(few, values), len(few) - 1)] == values
