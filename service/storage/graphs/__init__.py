"""Stored graphs: held in memory for scoring, and written as snapshots and logs of changes.

`dynamic_graph` holds one graph and takes subgraphs from it; `base` is the interface of the log that
makes it last, in SQLite (`sqlite`) or Redis (`redis`); `writer` is the one thread that writes;
`store` has all graphs.
"""

from service.storage.graphs.base import GraphLimits, GraphLog, GraphMetadata
from service.storage.graphs.dynamic_graph import DynamicGraph, GraphSnapshot, Neighborhood, Schema
from service.storage.graphs.sqlite import SqliteGraphLog
from service.storage.graphs.store import GraphStore
from service.storage.graphs.update import Edge, Update

__all__ = [
    "DynamicGraph",
    "Edge",
    "GraphLimits",
    "GraphLog",
    "GraphMetadata",
    "GraphSnapshot",
    "GraphStore",
    "Neighborhood",
    "Schema",
    "SqliteGraphLog",
    "Update",
]
