"""Edges as numbers: one int64 at each end.

A half edge is the row of the other end, the relation, and whether the edge comes in:
`row << ROW_SHIFT | relation << RELATION_SHIFT | inward`. A loop has one half edge, which goes out.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy

import numpy as np

from models.inputs.graph import Graph
from models.kernels import node_features as kernels

ROW_SHIFT, RELATION_SHIFT, INWARD_BIT = 16, 1, 1
NO_HALF_EDGES = np.empty(0, np.int64)


def add_half_edges(halves: dict[int, list[int]], source: int, target: int, relation: int) -> None:
    """Append both half edges of an edge to the lists of its ends; a loop has one."""
    halves[source].append(target << ROW_SHIFT | relation << RELATION_SHIFT)
    if source != target:
        halves[target].append(source << ROW_SHIFT | relation << RELATION_SHIFT | INWARD_BIT)


class HalfEdges:
    """The half edges of each row: as the graph was built, and of rows that changed as they are."""

    def __init__(self, graph: Graph, order: np.ndarray) -> None:
        """`order` (N) is a number for each row, by which those of its neighbours are sorted."""
        self._start, self._halves = _build_half_edges(graph, order)
        self._changed = dict[int, np.ndarray]()  # the arrays in it are never written to
        self._changed_bytes = 0

    @property
    def num_outward(self) -> int:
        """Half edges that go out as the graph was built."""
        return count_outward(self._halves)

    @property
    def nbytes(self) -> int:
        return self._start.nbytes + self._halves.nbytes + self._changed_bytes

    def replace(self, halves: Mapping[int, np.ndarray], order: np.ndarray) -> None:
        """Give rows other half edges, which are then sorted by `order` of the other end."""
        for row, unsorted in halves.items():
            # Few were added to many in order, which this kind of sort is fast at.
            part = unsorted[np.argsort(order[unsorted >> ROW_SHIFT], kind="stable")]
            before = self._changed.get(row)
            self._changed_bytes += part.nbytes + (112 if before is None else -before.nbytes)
            self._changed[row] = part

    def copy(self) -> HalfEdges:
        """Return what they are now, whatever becomes of these."""
        other = copy(self)
        other._changed = self._changed.copy()
        return other

    def at(self, row: int) -> np.ndarray:
        """Return those of a row."""
        if (changed := self._changed.get(row)) is not None:
            return changed
        if row >= len(self._start) - 1:
            return NO_HALF_EDGES
        return self._halves[self._start[row] : self._start[row + 1]]

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


def _build_half_edges(graph: Graph, order: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the offset of each row (N + 1) and the half edges of all rows, sorted by row, then by
    `order` of the other end. An edge that the graph has twice is kept once."""
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
    once[1:] = (owner[1:] != owner[:-1]) | (half[1:] != half[:-1])
    owner, half = owner[once], half[once]
    return np.searchsorted(owner, np.arange(graph.num_nodes + 1)), half


def build_induced_graph(
    x: np.ndarray, parts: list[np.ndarray], half: np.ndarray, target: np.ndarray, relations: int
) -> Graph:
    """Build the graph of some nodes and the edges between them, sorted by source and target.

    Args:
        x: features of the nodes (N, F).
        parts: half edges of each node.
        half: all parts, concatenated.
        target: index of the node that each half edge leads to; -1 if it is not among the nodes.
        relations: number of relations of the whole graph.
    """
    source = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    taken = (half & INWARD_BIT == 0) & (target >= 0)
    source, target, half = source[taken], target[taken].astype(np.int64), half[taken]
    relation = (half & ((1 << ROW_SHIFT) - 1)) >> RELATION_SHIFT
    order = np.lexsort((relation, target, source))
    edge_index = np.stack([source, target])[:, order]
    return Graph(x, edge_index, relation[order] if relations > 1 else None)


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
