"""One graph as arrays, and the meaning of its columns; needs NumPy alone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

UNTYPED = ("edge",)
"""The relations of a model that was trained on edges without types."""
UNKNOWN = -1
"""The label of a node whose label is not known."""


@dataclass(frozen=True)
class Column:
    """A feature of nodes or edges: a number, or a category, stored as its index in `values`."""

    name: str
    values: tuple[str, ...] | None = None


@dataclass(frozen=True)
class OutsideEdges:
    """The features of the edges to nodes that a graph leaves out, as part of a larger one.

    Of each relation and node those into it, then those out of it.

    Attributes:
        count: how many edges there are, float64 (R, N, 2).
        mean: of their features (R, N, 2, P).
        squares: sums of the squared deviations from the mean (R, N, 2, P).
    """

    count: np.ndarray
    mean: np.ndarray
    squares: np.ndarray


@dataclass(frozen=True)
class OutsideNeighbors:
    """What the neighbours that a graph leaves out, as part of a larger one, add to its nodes.

    With it `NodeFeatures` describes a node as in the larger graph.

    Attributes:
        count: of each relation and node how many there are, float64 (R, N).
        sums: what they add to the sums over neighbours at each hop (R, N, hops, W); W is of
            `models.inputs.neighbor_means.NeighborRule`.
        squares: the sums of their squares at the first hop (R, N, F + 1).
        edges: features of the edges to them, where edges have any.
        scores: sums of their scores by trees (R, N), where a network has trees.
        labels: sums (R, N, 4) over them of whether a label is known and whether it is fraud, and
            of how many of their own neighbours' are; where a network reads labels.
    """

    count: np.ndarray
    sums: np.ndarray
    squares: np.ndarray
    edges: OutsideEdges | None = None
    scores: np.ndarray | None = None
    labels: np.ndarray | None = None


@dataclass(frozen=True)
class Graph:
    """One graph.

    Attributes:
        x: node features, float32 (N, F). A categorical column holds whole numbers.
        edge_index: integers (2, E) below N, sources above receivers.
        edge_type: index of the relation of each edge (E,), if there are several.
        edge_attr: edge features (E, P).
        outside: neighbours that are not in it, if it is a part of a larger graph.
        labels: 1 fraud, 0 none, `UNKNOWN`: int8 (N,); None where no labels are given.
    """

    x: np.ndarray
    edge_index: np.ndarray
    edge_type: np.ndarray | None = None
    edge_attr: np.ndarray | None = None
    outside: OutsideNeighbors | None = None
    labels: np.ndarray | None = None

    @property
    def num_nodes(self) -> int:
        return len(self.x)
