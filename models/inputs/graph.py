"""One graph as arrays, and what its columns mean; needs NumPy alone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Column:
    """A feature of nodes or edges: a number, or with `values` an index into them."""

    name: str
    values: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Graph:
    """One graph: x (N, F) float32, edge_index (2, E) integers below N, source above receiver.

    `edge_type` (E,) names the relation of each edge where there are several; `edge_attr` (E, P)
    holds features of the edges. A categorical column holds whole numbers.
    """

    x: np.ndarray
    edge_index: np.ndarray
    edge_type: np.ndarray | None = None
    edge_attr: np.ndarray | None = None

    @property
    def num_nodes(self) -> int:
        return len(self.x)
