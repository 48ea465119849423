"""Batches of graphs for networks that read single nodes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import final

import numpy as np
import torch
from torch import Tensor

from models.inputs.graph import Graph, OutsideEdges, OutsideNeighbors
from models.layouts import EdgeList

NOT_GIVEN = -2
"""The label of a node of a graph without labels, in a batch with others that have some."""


@final
class EdgeInstances:
    """Which edges, as they were given, the entries of an adjacency are made of.

    Attributes:
        edge_I: (I,) place among the edges given.
        entry_I: (I,) place among the entries of the `EdgeList`.
        is_backward_I: (I,) whether the edge is seen from its source; else from its target.
    """

    def __init__(self, edge_I: Tensor, entry_I: Tensor, is_backward_I: Tensor) -> None:
        self.edge_I, self.entry_I, self.is_backward_I = edge_I, entry_I, is_backward_I

    @classmethod
    def from_edges(
        cls, edge_index_2e: np.ndarray, edge_e: np.ndarray, layout: EdgeList, *, undirected: bool
    ) -> EdgeInstances:
        """Find the entries of edges (2, e), source above receiver, whose places among all edges are
        `edge_e`; those that have none, as a loop may not, are left out."""
        source, target = np.asarray(edge_index_2e, np.int64)
        parts = [(target, source, False)]
        if undirected:
            parts.append((source, target, True))
        places = [_find_entries(layout, receiver, seen) for receiver, seen, _ in parts]
        return cls(
            torch.from_numpy(np.concatenate([edge_e[is_entry] for _, is_entry in places])),
            torch.from_numpy(np.concatenate([entry for entry, _ in places])),
            torch.from_numpy(
                np.concatenate(
                    [
                        np.full(len(entry), is_backward)
                        for (entry, _), (*_, is_backward) in zip(places, parts, strict=True)
                    ]
                )
            ),
        )

    @cached_property
    def _order(self) -> tuple[Tensor, Tensor]:
        """Instances by their entries, and these."""
        order_I = self.entry_I.argsort(stable=True)
        return order_I, self.entry_I[order_I]

    def select(self, entries: Tensor) -> EdgeInstances:
        """Return the instances of some entries (n,), which become those numbered from 0; -1 has
        none."""
        order_I, ordered_I = self._order
        first = torch.searchsorted(ordered_I, entries)
        count = torch.searchsorted(ordered_I, entries, right=True) - first
        place_i = torch.repeat_interleave(torch.arange(len(entries)), count)
        within_i = torch.arange(len(place_i)) - (count.cumsum(0) - count)[place_i]
        chosen_i = order_I[first[place_i] + within_i]
        return EdgeInstances(self.edge_I[chosen_i], place_i, self.is_backward_I[chosen_i])

    def to(self, device: torch.device | str) -> EdgeInstances:
        return EdgeInstances(
            self.edge_I.to(device), self.entry_I.to(device), self.is_backward_I.to(device)
        )


@final
class GraphBatch:
    """Graphs packed as one disjoint union: node features, one edge list per relation, and what
    neighbours outside of the graphs add, if some are parts of larger ones.

    Where labels are given, `labels_N` are those of the nodes, int8, and `NOT_GIVEN` in graphs
    without any.

    Where edges have features, `edge_attr_eP` are those of all edges given, float64, and `instances`
    say of each relation which entry is made of which.

    Not a dataclass: Lightning's mixed precision would copy one, with its edges, at every step.
    """

    def __init__(
        self,
        x_NF: Tensor,
        relations: tuple[EdgeList, ...],
        outside: OutsideNeighbors | None = None,
        edge_attr_eP: Tensor | None = None,
        instances: tuple[EdgeInstances, ...] = (),
        labels_N: Tensor | None = None,
    ) -> None:
        self.x_NF, self.relations, self.outside = x_NF, relations, outside
        self.edge_attr_eP, self.instances = edge_attr_eP, instances
        self.labels_N = labels_N

    def with_relations(self, relations: tuple[EdgeList, ...]) -> GraphBatch:
        """Return the same with other layouts of the same entries."""
        edges = self.edge_attr_eP, self.instances
        return GraphBatch(self.x_NF, relations, self.outside, *edges, self.labels_N)

    @property
    def rows(self) -> int:
        return self.relations[0].rows

    @property
    def row_of_N(self) -> Tensor:
        return self.relations[0].row_of_N

    @property
    def row_of_outputs(self) -> Tensor:
        """Row of each logit; every node has one."""
        return self.row_of_N

    @property
    def log_degree_R(self) -> list[float]:
        """Mean of log(1 + degree) over the nodes of each graph, summed over the relations."""
        row_of_N = self.row_of_N.cpu().numpy()
        logs_N = sum(np.log1p(relation.degree_N.cpu().numpy()) for relation in self.relations)
        nodes_R = np.bincount(row_of_N, minlength=self.rows)
        return (np.bincount(row_of_N, logs_N, self.rows) / np.maximum(nodes_R, 1)).tolist()

    def to(self, device: torch.device | str) -> GraphBatch:
        return GraphBatch(
            self.x_NF.to(device),
            tuple(relation.to(device) for relation in self.relations),
            self.outside,
            None if self.edge_attr_eP is None else self.edge_attr_eP.to(device),
            tuple(instances.to(device) for instances in self.instances),
            None if self.labels_N is None else self.labels_N.to(device),
        )


def pack_graphs(
    graphs: Sequence[Graph],
    *,
    num_relations: int = 1,
    undirected: bool = True,
    self_loops: bool = False,
    edge_features: int = 0,
) -> GraphBatch:
    """Pack graphs into one batch; nodes keep their order, graph after graph.

    Args:
        edge_features: P, how many features edges have; those of a graph are left out where 0.

    Raises:
        ValueError: there are several relations, and a graph has no `edge_type`; or edges have other
            features.
    """
    sizes = [graph.num_nodes for graph in graphs]
    offsets = np.cumsum([0, *sizes]).tolist()
    row_of_N = torch.from_numpy(np.repeat(np.arange(len(graphs)), sizes))

    def join_edges(relation: int) -> np.ndarray:
        parts = []
        for graph, offset in zip(graphs, offsets, strict=False):
            edges = np.asarray(graph.edge_index, dtype=np.int64)
            if num_relations > 1:
                if graph.edge_type is None:
                    raise ValueError(
                        f"edge_type is missing. The model has {num_relations} relations: give the "
                        "relation of each edge."
                    )
                edges = edges[:, graph.edge_type == relation]
            parts.append(edges + offset if offset else edges)
        return parts[0] if len(parts) == 1 else np.concatenate(parts, 1)

    joined = [join_edges(relation) for relation in range(num_relations)]
    layouts = tuple(
        EdgeList.from_edges(
            edges,
            offsets[-1],
            row_of_N=row_of_N,
            rows=len(graphs),
            undirected=undirected,
            self_loops=self_loops,
        )
        for edges in joined
    )
    x = np.concatenate([np.asarray(graph.x, dtype=np.float32) for graph in graphs])
    outside = _join_outside(graphs, num_relations, edge_features)
    labels_N = _join_labels(graphs)
    if not edge_features:
        return GraphBatch(torch.from_numpy(x), layouts, outside, labels_N=labels_N)
    types = [
        np.zeros(np.shape(graph.edge_index)[1], np.int64)
        if num_relations == 1 or graph.edge_type is None
        else graph.edge_type
        for graph in graphs
    ]
    edge_type = np.concatenate(types)
    instances = tuple(
        EdgeInstances.from_edges(
            edges, np.flatnonzero(edge_type == relation), layout, undirected=undirected
        )
        for relation, (edges, layout) in enumerate(zip(joined, layouts, strict=True))
    )
    attr = _join_edge_attr(graphs, edge_features)
    edge_attr_eP = torch.from_numpy(attr)
    return GraphBatch(torch.from_numpy(x), layouts, outside, edge_attr_eP, instances, labels_N)


def _join_labels(graphs: Sequence[Graph]) -> Tensor | None:
    if all(graph.labels is None for graph in graphs):
        return None
    parts = [
        np.full(graph.num_nodes, NOT_GIVEN) if graph.labels is None else graph.labels
        for graph in graphs
    ]
    return torch.from_numpy(np.concatenate(parts).astype(np.int8))


def _join_edge_attr(graphs: Sequence[Graph], edge_features: int) -> np.ndarray:
    parts = []
    for graph in graphs:
        shape = np.shape(graph.edge_index)[1], edge_features
        if graph.edge_attr is None or np.shape(graph.edge_attr) != shape:
            has = "none" if graph.edge_attr is None else f"shape {np.shape(graph.edge_attr)}"
            raise ValueError(
                f"edge_attr must have shape {shape}, a row for each edge and a column for each "
                f"feature that the model reads; it has {has}."
            )
        parts.append(np.asarray(graph.edge_attr, np.float64))
    return np.concatenate(parts)


def _find_entries(
    layout: EdgeList, receiver: np.ndarray, seen: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the places of entries, and which of those asked for (n,) there are."""
    nodes = len(layout.row_of_N)
    # In order: `from_edges` sorts the entries of each receiver.
    keys_E = layout.receivers_E.numpy() * nodes + layout.indices_E.numpy()
    wanted = receiver * nodes + seen
    place = np.searchsorted(keys_E, wanted)
    is_entry = np.zeros(len(wanted), bool)
    inside = place < len(keys_E)
    is_entry[inside] = keys_E[place[inside]] == wanted[inside]
    return place[is_entry], is_entry


def _join_outside(
    graphs: Sequence[Graph], num_relations: int, edge_features: int
) -> OutsideNeighbors | None:
    """What is outside of all graphs, nothing for those that are whole."""
    whole = next((graph.outside for graph in graphs if graph.outside), None)
    if whole is None:
        return None
    sums, squares = whole.sums.shape[2:], whole.squares.shape[2:]
    parts, edges = list[OutsideNeighbors](), list[OutsideEdges]()
    scores, labels = list[np.ndarray](), list[np.ndarray]()
    for graph in graphs:
        nodes = num_relations, graph.num_nodes
        part = graph.outside or OutsideNeighbors(
            np.zeros(nodes), np.zeros((*nodes, *sums)), np.zeros((*nodes, *squares))
        )
        parts.append(part)
        none = np.zeros((*nodes, 2, edge_features))
        scores.append(np.zeros(nodes) if part.scores is None else part.scores)
        labels.append(np.zeros((*nodes, 4)) if part.labels is None else part.labels)
        edges.append(part.edges or OutsideEdges(np.zeros((*nodes, 2)), none, none))
    return OutsideNeighbors(
        np.concatenate([part.count for part in parts], 1),
        np.concatenate([part.sums for part in parts], 1),
        np.concatenate([part.squares for part in parts], 1),
        OutsideEdges(
            np.concatenate([part.count for part in edges], 1),
            np.concatenate([part.mean for part in edges], 1),
            np.concatenate([part.squares for part in edges], 1),
        )
        if edge_features
        else None,
        None if whole.scores is None else np.concatenate(scores, 1),
        None if whole.labels is None else np.concatenate(labels, 1),
    )
