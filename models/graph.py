"""A graph as it arrives; apart from its packing, so that a parser need not load torch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Graph:
    """One graph: x (N, F) float32, edge_index (2, E) integers below N, edge_type (E,) or None."""

    x: np.ndarray
    edge_index: np.ndarray
    edge_type: np.ndarray | None = None

    @property
    def num_nodes(self) -> int:
        return len(self.x)
