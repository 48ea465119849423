"""Neighbourhoods of chosen nodes, for graphs that do not fit into one step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import numpy as np
import torch

from models.inputs.graph_batch import EdgeInstances, GraphBatch
from models.layouts import EdgeList


@final
class NeighborSampler:
    """Samples up to `fanouts[k]` neighbours of each node reached in hop k, without replacement.

    PyTorch Geometric's NeighborLoader does this with compiled extras that have no wheels for
    every torch; this needs NumPy alone.
    """

    def __init__(self, batch: GraphBatch, fanouts: Sequence[int]) -> None:
        self.batch, self.fanouts = batch, tuple(fanouts)
        self._csr = [
            (r.indptr_N1.cpu().numpy(), r.indices_E.cpu().numpy()) for r in batch.relations
        ]
        self._attr = None if batch.edge_attr_eP is None else batch.edge_attr_eP.cpu()
        self._instances = [instances.to("cpu") for instances in batch.instances]
        nodes = len(batch.x_NF)
        self._keys = [  # in order, of the entries
            np.repeat(np.arange(nodes), np.diff(indptr)) * nodes + indices
            for indptr, indices in (self._csr if self._instances else ())
        ]

    def sample(self, seeds: np.ndarray, seed: int) -> tuple[GraphBatch, np.ndarray]:
        """The sampled graph, and which node of the whole graph each of its nodes is.

        The seeds come first, in their order. The sampled edges are made undirected.
        """
        rng = np.random.default_rng(seed)
        place = np.full(len(self.batch.x_NF), -1, np.int64)
        place[seeds] = np.arange(len(seeds))
        kept, frontier = [np.asarray(seeds, np.int64)], np.asarray(seeds, np.int64)
        found: list[list[np.ndarray]] = [[] for _ in self._csr]
        total = len(seeds)
        for fanout in self.fanouts:
            reached = []
            for edges, (indptr, indices) in zip(found, self._csr, strict=True):
                receivers, sources = _draw(indptr, indices, frontier, fanout, rng)
                edges.append(np.stack([sources, receivers]))
                reached.append(sources)
            frontier = np.unique(np.concatenate(reached))
            frontier = frontier[place[frontier] < 0]
            place[frontier] = total + np.arange(len(frontier))
            total += len(frontier)
            kept.append(frontier)
        nodes = np.concatenate(kept)
        row_of_N = torch.zeros(total, dtype=torch.int64)
        relations = tuple(
            EdgeList.from_edges(place[np.concatenate(edges, 1)], total, row_of_N=row_of_N)
            for edges in found
        )
        x_NF = self.batch.x_NF.cpu()[nodes]
        if self._attr is None:
            return GraphBatch(x_NF, relations), nodes
        instances = tuple(
            of_whole.select(self._locate(relation, keys, nodes))
            for relation, keys, of_whole in zip(relations, self._keys, self._instances, strict=True)
        )
        # Of all edges those that are in the part.
        used, places = torch.cat([i.edge_I for i in instances]).unique(return_inverse=True)
        parts = places.split([len(i.edge_I) for i in instances])
        renumbered = tuple(
            EdgeInstances(place_I, i.entry_I, i.is_backward_I)
            for place_I, i in zip(parts, instances, strict=True)
        )
        return GraphBatch(x_NF, relations, None, self._attr[used], renumbered), nodes

    def _locate(self, part: EdgeList, keys: np.ndarray, nodes: np.ndarray) -> torch.Tensor:
        """Return the place (E,) of each entry of a sampled adjacency in the whole one; -1 of one
        that the whole does not have, where edges are seen from one end alone."""
        receivers, seen = nodes[part.receivers_E.numpy()], nodes[part.indices_E.numpy()]
        wanted = receivers * len(self.batch.x_NF) + seen
        place = np.minimum(np.searchsorted(keys, wanted), max(len(keys) - 1, 0))
        is_entry = keys[place] == wanted if len(keys) else np.zeros(len(wanted), bool)
        return torch.from_numpy(np.where(is_entry, place, -1))


def _draw(
    indptr: np.ndarray,
    indices: np.ndarray,
    frontier: np.ndarray,
    fanout: int,
    rng: np.random.Generator,
) -> tuple[np.ndarray, np.ndarray]:
    """(receivers, sources) of at most `fanout` edges into each node of `frontier`."""
    degree = indptr[frontier + 1] - indptr[frontier]
    owner = np.repeat(np.arange(len(frontier)), degree)
    first = np.cumsum(degree) - degree
    edge = np.arange(len(owner)) - first[owner] + indptr[frontier][owner]
    # A random order within each node; its first `fanout` edges are a sample without replacement.
    order = np.lexsort((rng.random(len(owner)), owner))
    chosen = order[np.arange(len(order)) - first[owner] < fanout]
    return frontier[owner[chosen]], indices[edge[chosen]].astype(np.int64)
