"""Stored graphs: kept in memory to be scored, and as a base and its changes to last.

`live` holds one and takes neighbourhoods from it; `journal` is where they last, in SQLite here and
in Redis in `service.redis.graphs`; `keeper` is the one thread that writes, `store` all of them.
"""

from service.graphs.journal import Head, Journal, Room
from service.graphs.live import LiveGraph, Neighborhood, Schema, Whole
from service.graphs.sqlite import SqliteJournal
from service.graphs.store import GraphStore
from service.graphs.update import Edge, Update

__all__ = [
    "Edge",
    "GraphStore",
    "Head",
    "Journal",
    "LiveGraph",
    "Neighborhood",
    "Room",
    "Schema",
    "SqliteJournal",
    "Update",
    "Whole",
]
