"""Graphs packed for a network that looks at their nodes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import final

import numpy as np
import torch
from torch import Tensor

from models.inputs.graph import Graph
from models.layouts import EdgeList


@final
class GraphBatch:
    """Graphs packed as one disjoint union: features, and one edge list per relation.

    No dataclass: Lightning's mixed precision would copy one, edges and all, at every step.
    """

    def __init__(self, x_NF: Tensor, relations: tuple[EdgeList, ...]) -> None:
        self.x_NF, self.relations = x_NF, relations

    @property
    def rows(self) -> int:
        return self.relations[0].rows

    @property
    def row_of_N(self) -> Tensor:
        return self.relations[0].row_of_N

    @property
    def row_of_outputs(self) -> Tensor:
        """Row of each logit: one for every node."""
        return self.row_of_N

    def to(self, device: torch.device | str) -> GraphBatch:
        return GraphBatch(
            self.x_NF.to(device), tuple(relation.to(device) for relation in self.relations)
        )


def pack(
    graphs: Sequence[Graph],
    *,
    relations: int = 1,
    undirected: bool = True,
    self_loops: bool = False,
) -> GraphBatch:
    """Pack graphs into one batch; nodes keep their order, graph after graph."""
    sizes = [graph.num_nodes for graph in graphs]
    offsets = list(accumulate(sizes, initial=0))
    row_of_N = torch.from_numpy(np.repeat(np.arange(len(graphs)), sizes))
    total = offsets[-1]

    def edges_of(relation: int) -> np.ndarray:
        parts = []
        for graph, offset in zip(graphs, offsets, strict=False):
            edges = np.asarray(graph.edge_index, dtype=np.int64)
            if relations > 1:
                if graph.edge_type is None:
                    raise ValueError("edge_type is needed: the model has several relations")
                edges = edges[:, graph.edge_type == relation]
            parts.append(edges + offset if offset else edges)
        return parts[0] if len(parts) == 1 else np.concatenate(parts, 1)

    layouts = tuple(
        EdgeList.from_edges(
            edges_of(relation),
            total,
            row_of_N=row_of_N,
            rows=len(graphs),
            undirected=undirected,
            self_loops=self_loops,
        )
        for relation in range(relations)
    )
    x = np.concatenate([np.asarray(graph.x, dtype=np.float32) for graph in graphs])
    return GraphBatch(torch.from_numpy(x), layouts)
