"""What is taken from a graph: all of it, or what stands around some nodes."""

from __future__ import annotations

from dataclasses import dataclass

from models.inputs.graph import Graph
from service.validation.ids import NodeId


@dataclass(frozen=True)
class GraphSnapshot:
    """All of a graph: `node_ids` of the rows of x, and the number of the last change in it."""

    graph: Graph
    node_ids: list[NodeId]
    revision: int


@dataclass(frozen=True)
class Neighborhood:
    """What stands around some nodes, they first, as it was at a revision.

    Means over neighbours outside of it may be older: they include all changes up to
    `means_revision`, and later ones only for the nodes that they change.
    """

    graph: Graph
    node_ids: list[NodeId]
    revision: int
    digest: str
    means_revision: int
