"""How much of a stored graph a score has to read: chosen by what the whole graph answers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import NamedTuple, final

import numpy as np
import torch
from torch import Tensor

from models.base import DynamicsParams, Output
from models.inputs.graph import Graph, OutsideEdges
from models.inputs.graph_batch import GraphBatch
from models.inputs.neighbor_means import NeighborMeans, sum_outside_edges
from models.layouts import EdgeList
from models.manifest import Calibration, DegreeReference, EnergyReference, NeighborhoodDefaults
from models.tasks.node_scorer import NodeScorer
from training.datasets.nodes import draw_sample
from training.export import energy_quantiles
from training.tasks.anomaly.neighbor_sampler import NeighborSampler

REACHES = ((1, 32), (2, 16), (2, 32), (2, 64), (2, 128), (2, 512), (3, 128), (3, 512))
"""`hops` and `max_neighbors` that are tried, what reads less first."""
REQUEST_FANOUTS, LARGE_FANOUTS = (16, 8), (64, 32)
"""Neighbours of a node, and of each of those, in what is taken for a client's request."""
_EQUAL = 0.996  # so that 99.5 % of other nodes are
_TRIED, _REFERENCES = 1000, 2000  # nodes whose labels are compared, and with energies
_DEGREES, _NEAREST = 17, 250  # degrees with quantiles of their own, and graphs for each


def choose_neighborhood(
    network: NodeScorer,
    graph: Graph,
    nodes: np.ndarray,
    threshold: float,
    calibration: Calibration,
    reaches: Sequence[tuple[int, int]] = REACHES,
) -> NeighborhoodDefaults:
    """The first of `reaches` by which 99.6 % of nodes get the label that the whole graph gives
    them, or else the last, and the energies of the neighbourhoods of `nodes`.

    Up to a thousand nodes are tried, whatever part of the data they are: no label of it is read.
    """
    batch = network.pack([graph])
    table_NC = network.features.compute_table(batch)
    whole_N = calibration(_infer(network, batch, table_NC).logits.cpu().numpy())
    tried = draw_sample(np.arange(graph.num_nodes), _TRIED)
    sampler = InducedSampler(network, graph, batch)
    allowed = int(len(tried) * (1 - _EQUAL))

    def take(node: int, reach: tuple[int, int]) -> tuple[GraphBatch, Tensor]:
        # The nodes of a part are described as in the whole graph.
        part, rows = sampler.sample(np.array([node]), *reach)
        return network.pack([part]), table_NC[torch.from_numpy(rows)]

    def count_different(reach: tuple[int, int], stop_after: int) -> int:
        different = 0
        for node in tried:
            part, part_NC = take(node, reach)
            logits_N = _infer(network, part, part_NC).logits.cpu().numpy()
            probability = calibration(logits_N[:1])[0]
            different += (probability >= threshold) != (whole_N[node] >= threshold)
            if different > stop_after:
                break
        return different

    reach, different = reaches[0], len(tried)
    for reach in reaches:
        stop_after = allowed if reach != reaches[-1] else len(tried)
        different = count_different(reach, stop_after)
        if different <= stop_after:
            break
    parts = (take(node, reach) for node in draw_sample(nodes, _REFERENCES))
    return NeighborhoodDefaults(
        hops=reach[0],
        max_neighbors=reach[1],
        labels_equal=1 - different / len(tried),
        nodes=len(tried),
        energy=compute_quantiles_by_degree(network, parts),
    )


def compute_request_energies(
    network: NodeScorer, graph: Graph, nodes: np.ndarray, reach: NeighborhoodDefaults
) -> EnergyReference:
    """Quantiles of the final energy per node, by degree, of what a client sends to ask about one of
    `nodes`: mostly small neighbourhoods, some larger ones, and some with all edges."""
    batch = network.pack([graph])
    sampler = InducedSampler(network, graph, batch)
    few, many = draw_sample(nodes, _REFERENCES), draw_sample(nodes, _REFERENCES // 4)
    whole = (sampler.sample(node[None], reach.hops, reach.max_neighbors).graph for node in many)
    sampled = (
        sample_neighborhoods(batch, few),
        sample_neighborhoods(batch, many, LARGE_FANOUTS),
        (network.pack([replace(part, outside=None)]) for part in whole),
    )
    return compute_quantiles_by_degree(network, ((part, None) for part in chain(*sampled)))


def compute_quantiles_by_degree(
    network: NodeScorer, graphs: Iterable[tuple[GraphBatch, Tensor | None]]
) -> EnergyReference:
    """Quantiles of the final energy per node of all `graphs`, and of those whose nodes have about
    as many neighbours, in up to eight groups: from one to the other the energy is a line.

    Args:
        graphs: each with the table of its features, where that is known.
    """
    degrees, energies = list[float](), list[float]()
    for graph, table_NC in graphs:
        output = _infer(network, graph, table_NC)
        total = sum(float(s.trace[-1].energy_R.sum()) for s in output.solutions)
        degrees += graph.log_degree_R
        energies.append(total / len(graph.x_NF))
    return fit_quantiles_by_degree(np.array(degrees), np.array(energies))


def fit_quantiles_by_degree(degree: np.ndarray, energy: np.ndarray) -> EnergyReference:
    """Quantiles of `energy`, and of what has about the same log `degree`.

    They are given at some degrees: with as many graphs between one and the next, and evenly spaced.
    At each the nearest graphs count, their energies moved along the line through them.
    """
    whole = energy_quantiles(energy)
    references = []
    evenly = np.linspace(degree.min(), degree.max(), _DEGREES // 2)
    for at in np.unique(np.r_[np.quantile(degree, np.linspace(0, 1, _DEGREES)), evenly]):
        near = np.argsort(np.abs(degree - at), kind="stable")[:_NEAREST]
        away = degree[near] - at
        centered = away - away.mean()
        size = centered @ centered
        slope = centered @ energy[near] / size if size > 1e-9 else 0.0
        values = energy_quantiles(energy[near] - slope * away).values
        references.append(DegreeReference(log_degree=float(at), values=values))
    by_degree = tuple(references) if len(references) > 1 else ()
    return whole.model_copy(update={"by_degree": by_degree})


def sample_neighborhoods(
    batch: GraphBatch, nodes: np.ndarray, fanouts: Sequence[int] = REQUEST_FANOUTS
) -> Iterator[GraphBatch]:
    """What a client posts to ask about one node, for each of `nodes`, which comes first: itself,
    its neighbours a hop away, and theirs, at most `fanouts` of each."""
    sampler = NeighborSampler(batch, fanouts)
    for node in nodes:
        yield sampler.sample(np.array([node]), seed=int(node))[0]


def _infer(network: NodeScorer, batch: GraphBatch, table_NC: Tensor | None) -> Output:
    return network.infer(batch, [DynamicsParams()], table_NC=table_NC)


class Part(NamedTuple):
    """A part of a graph, and the rows of its nodes in the whole."""

    graph: Graph
    rows: np.ndarray


@final
class InducedSampler:
    """What a server takes of a stored graph to score one node: those around it, all edges between
    them, and what the others add to their features."""

    def __init__(self, network: NodeScorer, graph: Graph, batch: GraphBatch) -> None:
        self._graph, self._rule = graph, network.neighbor_rule
        self._source, self._target = np.asarray(graph.edge_index, np.int64)
        self._outward = _group_edges(self._source, graph.num_nodes)
        self._inward = _group_edges(self._target, graph.num_nodes)
        around = EdgeList.from_edges(graph.edge_index, graph.num_nodes)
        self._around = _csr(around)
        self._seen = [_csr(relation) for relation in batch.relations]
        self._place = np.full(graph.num_nodes, -1, np.int32)
        self._means = NeighborMeans(self._rule, graph.x.shape[1])
        self._means.update(np.arange(graph.num_nodes), graph.x, self._neighbors)

    def sample(self, nodes: np.ndarray, hops: int, max_neighbors: int) -> Part:
        """The part around `nodes`, which come first; of more neighbours than `max_neighbors` that
        many are followed, by chance."""
        rng = np.random.default_rng(nodes)
        parts, count = [nodes], len(nodes)
        self._place[nodes] = np.arange(count)
        for _ in range(hops):
            near = np.unique(
                np.concatenate([self._followed(row, max_neighbors, rng) for row in parts[-1]])
            )
            new = near[self._place[near] < 0]
            if not len(new):
                break
            self._place[new] = np.arange(count, count + len(new))
            parts.append(new)
            count += len(new)
        rows = np.concatenate(parts)
        outward = _select_edges(self._outward, rows)
        edges = outward[self._place[self._target[outward]] >= 0]
        ends = self._place[self._source[edges]], self._place[self._target[edges]]
        kind, attr = self._graph.edge_type, self._graph.edge_attr
        outside = self._means.sum_outside(
            [self._neighbors(rows, relation, True) for relation in range(self._rule.relations)],
            self._place >= 0,
        )
        if attr is not None:
            outside = replace(outside, edges=self._sum_outside_edges(rows, outward, attr))
        part = Graph(
            self._graph.x[rows],
            np.stack(ends).astype(np.int64),
            None if kind is None else kind[edges],
            None if attr is None else attr[edges],
            outside=outside,
        )
        self._place[rows] = -1
        return Part(part, rows)

    def _sum_outside_edges(
        self, rows: np.ndarray, outward: np.ndarray, attr: np.ndarray
    ) -> OutsideEdges:
        inward = _select_edges(self._inward, rows)
        inward = inward[self._place[self._source[inward]] < 0]
        outward = outward[self._place[self._target[outward]] < 0]
        edges, kind = np.concatenate([inward, outward]), self._graph.edge_type
        return sum_outside_edges(
            self._rule,
            len(rows),
            self._place[np.concatenate([self._target[inward], self._source[outward]])],
            np.zeros(len(edges), np.int64) if kind is None else kind[edges],
            np.repeat([False, True], [len(inward), len(outward)]),
            attr[edges],
        )

    def _followed(self, row: int, max_neighbors: int, rng: np.random.Generator) -> np.ndarray:
        indptr, indices = self._around
        near = indices[indptr[row] : indptr[row + 1]]
        if len(near) <= max_neighbors:
            return near
        return rng.choice(near, max_neighbors, replace=False)

    def _neighbors(
        self, rows: np.ndarray, relation: int, either_way: bool
    ) -> tuple[np.ndarray, np.ndarray]:
        # `either_way` is asked for where some rows changed; here all are computed, once.
        indptr, indices = self._seen[relation]
        size = indptr[rows + 1] - indptr[rows]
        ends = np.r_[0, np.cumsum(size)]
        return ends, indices[np.repeat(indptr[rows] - ends[:-1], size) + np.arange(ends[-1])]


def _group_edges(ends: np.ndarray, nodes: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the offset of each node (N + 1) and the edges (E,) in order of `ends`."""
    order = np.argsort(ends, kind="stable")
    return np.searchsorted(ends[order], np.arange(nodes + 1)), order


def _select_edges(grouped: tuple[np.ndarray, np.ndarray], rows: np.ndarray) -> np.ndarray:
    first, order = grouped
    return np.concatenate([order[first[row] : first[row + 1]] for row in rows.tolist()])


def _csr(edges: EdgeList) -> tuple[np.ndarray, np.ndarray]:
    return edges.indptr_N1.numpy().astype(np.int64), edges.indices_E.numpy().astype(np.int64)
