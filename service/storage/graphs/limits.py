"""The errors of storage limits."""

from __future__ import annotations

from service.errors import Problem
from service.storage.graphs.base import GraphLimits, WriteResult


def require_room(outcome: WriteResult, room: GraphLimits) -> None:
    """Check the outcome of a write.

    Raises:
        Problem: a limit is reached.
    """
    detail = {
        WriteResult.TOO_MANY_GRAPHS: (
            f"At most {room.max_graphs} graphs (BASIN_MAX_STORED_GRAPHS) may be stored. "
            "Delete one first."
        ),
        WriteResult.TOO_MANY_NODES: (
            f"Stored graphs may have at most {room.max_nodes} nodes together "
            "(BASIN_MAX_STORED_NODES). Delete a graph or some nodes first."
        ),
        WriteResult.TOO_MANY_EDGES: (
            f"Stored graphs may have at most {room.max_edges} edges together "
            "(BASIN_MAX_STORED_EDGES). Delete a graph or some edges first."
        ),
    }.get(outcome)
    if detail is not None:
        raise Problem("store-full", detail)
