"""Batches of graphs for networks that read single nodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import numpy as np
import torch
from torch import Tensor

from models.inputs.graph import Graph, OutsideNeighbors
from models.layouts import EdgeList


@final
class GraphBatch:
    """Graphs packed as one disjoint union: node features, one edge list per relation, and what
    neighbours outside of the graphs add, if some are parts of larger ones.

    Not a dataclass: Lightning's mixed precision would copy one, with its edges, at every step.
    """

    def __init__(
        self,
        x_NF: Tensor,
        relations: tuple[EdgeList, ...],
        outside: OutsideNeighbors | None = None,
    ) -> None:
        self.x_NF, self.relations, self.outside = x_NF, relations, outside

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
        )


def pack_graphs(
    graphs: Sequence[Graph],
    *,
    num_relations: int = 1,
    undirected: bool = True,
    self_loops: bool = False,
) -> GraphBatch:
    """Pack graphs into one batch; nodes keep their order, graph after graph.

    Raises:
        ValueError: there are several relations, and a graph has no `edge_type`.
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

    layouts = tuple(
        EdgeList.from_edges(
            join_edges(relation),
            offsets[-1],
            row_of_N=row_of_N,
            rows=len(graphs),
            undirected=undirected,
            self_loops=self_loops,
        )
        for relation in range(num_relations)
    )
    x = np.concatenate([np.asarray(graph.x, dtype=np.float32) for graph in graphs])
    return GraphBatch(torch.from_numpy(x), layouts, _join_outside(graphs, num_relations))


def _join_outside(graphs: Sequence[Graph], num_relations: int) -> OutsideNeighbors | None:
    """What is outside of all graphs, nothing for those that are whole."""
    shape = next((graph.outside.sums.shape[2:] for graph in graphs if graph.outside), None)
    if shape is None:
        return None

    def outside_of(graph: Graph) -> OutsideNeighbors:
        nodes = num_relations, graph.num_nodes
        return graph.outside or OutsideNeighbors(
            np.zeros(nodes), np.zeros((*nodes, *shape)), np.zeros((*nodes, shape[1]))
        )

    parts = [outside_of(graph) for graph in graphs]
    return OutsideNeighbors(
        np.concatenate([part.count for part in parts], 1),
        np.concatenate([part.sums for part in parts], 1),
        np.concatenate([part.squares for part in parts], 1),
    )
