"""Stored graphs: held in memory for scoring, and written as snapshots and logs of changes.

`dynamic_graph` holds a graph of nodes and edges, `transaction_graph` one of transactions; both are
a `stored_graph`. `base` is the interface of the log that makes them last, in SQLite (`sqlite`) or
Redis (`redis`); `digests` and `past` tell one history of a graph from another; `writer` is the one
thread that writes, `graph_cache` what it has in memory, and `restore` what it does where Redis has
lost that; `store` has all graphs, `alerts` what they raised.
"""

from service.storage.graphs.alert_numbers import count_missed
from service.storage.graphs.alerts import AddedTransactions
from service.storage.graphs.base import (
    AccountScore,
    ChangedNodes,
    ChangeKey,
    GraphList,
    GraphLog,
    PendingScore,
    ScoredNodes,
    WatchedGraph,
    Webhook,
)
from service.storage.graphs.digests import shorten_digest
from service.storage.graphs.dynamic_graph import DynamicGraph, GraphSnapshot, Neighborhood
from service.storage.graphs.metadata import GraphKey, GraphLimits, GraphMetadata, WatchSettings
from service.storage.graphs.new_transactions import (
    NewLabels,
    NewTransactions,
    StreamSettings,
    Targets,
)
from service.storage.graphs.past import GraphPast, PastChange
from service.storage.graphs.sqlite import SqliteGraphLog
from service.storage.graphs.store import GraphStore
from service.storage.graphs.stored_graph import Schema, StoredGraph, ToScore
from service.storage.graphs.transaction_graph import TransactionGraph
from service.storage.graphs.update import Edge, Update

__all__ = [
    "AccountScore",
    "AddedTransactions",
    "ChangeKey",
    "ChangedNodes",
    "DynamicGraph",
    "Edge",
    "GraphKey",
    "GraphLimits",
    "GraphList",
    "GraphLog",
    "GraphMetadata",
    "GraphPast",
    "GraphSnapshot",
    "GraphStore",
    "Neighborhood",
    "NewLabels",
    "NewTransactions",
    "PastChange",
    "PendingScore",
    "Schema",
    "ScoredNodes",
    "SqliteGraphLog",
    "StoredGraph",
    "StreamSettings",
    "Targets",
    "ToScore",
    "TransactionGraph",
    "Update",
    "WatchSettings",
    "WatchedGraph",
    "Webhook",
    "count_missed",
    "shorten_digest",
]
