"""Edges as numbers: one int64 at each end.

A half edge is the row of the other end, the relation, and whether the edge comes in:
`row << ROW_SHIFT | relation << RELATION_SHIFT | inward`. A loop has one half edge, which goes out.
"""

from __future__ import annotations

import numpy as np

from models.inputs.graph import Graph

ROW_SHIFT, RELATION_SHIFT, INWARD_BIT = 16, 1, 1
NO_HALF_EDGES = np.empty(0, np.int64)


def add_half_edges(halves: dict[int, list[int]], source: int, target: int, relation: int) -> None:
    """Append both half edges of an edge to the lists of its ends; a loop has one."""
    halves[source].append(target << ROW_SHIFT | relation << RELATION_SHIFT)
    if source != target:
        halves[target].append(source << ROW_SHIFT | relation << RELATION_SHIFT | INWARD_BIT)


def build_half_edges(graph: Graph) -> tuple[np.ndarray, np.ndarray]:
    """Return the offset of each row (N + 1) and the half edges of all rows, sorted by row.

    An edge that the graph has twice is kept once.
    """
    source, target = np.asarray(graph.edge_index, np.int64)
    relation = (
        0 if graph.edge_type is None else np.asarray(graph.edge_type, np.int64) << RELATION_SHIFT
    )
    inwards = source != target
    outward = target << ROW_SHIFT | relation
    inward = (source << ROW_SHIFT | relation | INWARD_BIT)[inwards]
    owner, half = np.r_[source, target[inwards]], np.r_[outward, inward]
    by_owner = np.lexsort((half, owner))
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
