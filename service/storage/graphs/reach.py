"""Which neighbours are followed from a node, and whose scores depend on one that changes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from models.inputs.neighbor_means import NeighborRule
from service.errors import Problem
from service.storage.graphs.half_edges import (
    INWARD_BIT,
    NO_HALF_EDGES,
    RELATION_SHIFT,
    ROW_SHIFT,
    HalfEdges,
)
from service.storage.graphs.node_hash import mix
from service.validation.arrays import make_graph_problem_at


@dataclass(frozen=True)
class Links:
    """Edges of the rows of a graph, which rows are deleted, and a number by chance of each row."""

    edges: HalfEdges
    is_deleted: np.ndarray
    order: np.ndarray

    def follow(
        self, rows: np.ndarray, parts: list[np.ndarray], max_neighbors: int, seed: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return pairs of places in `rows`, whose half edges are `parts`, and of rows of neighbours
        that are followed from there. Of one with more than `max_neighbors` that many are, which
        `seed` chooses."""
        sizes = np.array([len(part) for part in parts])
        is_crowded = sizes > max_neighbors
        few = [part for part, crowded in zip(parts, is_crowded, strict=True) if not crowded]
        owner = np.repeat(np.flatnonzero(~is_crowded), sizes[~is_crowded])
        near = np.concatenate([NO_HALF_EDGES, *few]) >> ROW_SHIFT
        live = ~self.is_deleted[near]
        owner, near = owner[live], near[live]
        if not is_crowded.any():
            return owner, near
        crowded = np.flatnonzero(is_crowded)
        many = np.repeat(crowded, sizes[crowded])
        pairs = many << 32 | np.concatenate([parts[i] for i in crowded.tolist()]) >> ROW_SHIFT
        pairs = np.unique(pairs)  # two nodes may have several edges
        many, others = pairs >> 32, pairs & 0xFFFFFFFF
        valid = (rows[many] != others) & ~self.is_deleted[others]
        many, others = many[valid], others[valid]
        chance = mix(self.order[rows[many]] + np.uint64(seed))
        chance = mix(self.order[others] ^ chance)
        by_chance = np.lexsort((chance, many))
        many, others = many[by_chance], others[by_chance]
        first = np.arange(len(many)) - np.searchsorted(many, many) < max_neighbors
        return np.r_[owner, many[first]], np.r_[near, others[first]]

    def find_dependents(
        self,
        changed: np.ndarray,
        rule: NeighborRule,
        hops: int,
        max_neighbors: int,
        seed: int = 0,
    ) -> np.ndarray:
        """Return the rows whose scores may be others after features or edges of `changed` rows did.

        A score depends on the nodes of its neighbourhood (`hops`, `max_neighbors`, `seed`), and
        these are described by what is up to `rule.hops` steps away, with trees by one step more,
        along whichever relations. Edges that are no more need not
        be looked at: of a path along one, the part up to it is there, and leads to a changed row.
        """
        is_reached = np.zeros(len(self.is_deleted), bool)
        for relation in range(rule.relations):
            is_reached |= self._find_described(changed, rule, relation)
        if rule.trees is not None:
            _, halves = self.edges.gather(np.flatnonzero(is_reached))
            near = np.unique(halves >> ROW_SHIFT)
            is_reached[near[~self.is_deleted[near]]] = True
        frontier = np.flatnonzero(is_reached)
        for _ in range(hops):
            _, halves = self.edges.gather(frontier)
            near = np.unique(halves >> ROW_SHIFT)
            near = near[~is_reached[near] & ~self.is_deleted[near]]
            if not len(near):
                break
            is_frontier = np.zeros(len(is_reached), bool)
            is_frontier[frontier] = True
            parts = [self.edges.at(row) for row in near.tolist()]
            owner, followed = self.follow(near, parts, max_neighbors, seed)
            frontier = near[np.unique(owner[is_frontier[followed]])]
            is_reached[frontier] = True
        return np.flatnonzero(is_reached & ~self.is_deleted)

    def _find_described(self, changed: np.ndarray, rule: NeighborRule, relation: int) -> np.ndarray:
        """Mark the rows that are described by `changed` ones along a relation, and these."""
        is_reached = np.zeros(len(self.is_deleted), bool)
        is_reached[changed] = True
        frontier = changed
        for _ in range(rule.hops):
            _, halves = self.edges.gather(frontier)
            is_seen = (halves & ((1 << ROW_SHIFT) - 1)) >> RELATION_SHIFT == relation
            if not rule.undirected:  # a node sees those from which an edge comes in
                is_seen &= halves & INWARD_BIT == 0
            near = np.unique(halves[is_seen] >> ROW_SHIFT)
            frontier = near[~is_reached[near] & ~self.is_deleted[near]]
            if not len(frontier):
                break
            is_reached[frontier] = True
        return is_reached


def make_size_problem(max_entries: int, of: str) -> Problem:
    """Return the error for a neighbourhood that is too large; `of` is `nodes` or `edges`."""
    rule = (
        f"The neighborhood has more than {max_entries} {of} (BASIN_MAX_NEIGHBORHOOD_{of.upper()}). "
        "Send a `neighborhood` with lower `hops` or `max_neighbors`."
    )
    return make_graph_problem_at("/neighborhood", f"too_many_{of}", rule)
