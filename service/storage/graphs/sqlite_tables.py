"""Tables of stored graphs in a SQLite file."""

from __future__ import annotations

from service.storage.sqlite import SchemaVersion

# What is long stands apart: SQLite writes a row as a whole.
_TABLES = (
    "CREATE TABLE heads (owner TEXT, id TEXT, head BLOB NOT NULL, PRIMARY KEY (owner, id))",
    "CREATE TABLE bases (owner TEXT, id TEXT, base BLOB NOT NULL, PRIMARY KEY (owner, id))",
    "CREATE TABLE updates (owner TEXT, id TEXT, revision INTEGER, made BLOB NOT NULL,"
    " PRIMARY KEY (owner, id, revision)) WITHOUT ROWID",
)
# Of version 2; a file of version 1 gets them when it is opened.
_ALERT_TABLES = (
    "CREATE TABLE pending (owner TEXT, id TEXT, tag TEXT, revision INTEGER, node_ids BLOB NOT NULL,"
    " at REAL NOT NULL, PRIMARY KEY (owner, id, tag, revision)) WITHOUT ROWID",
    "CREATE TABLE webhooks (owner TEXT, id TEXT, tag TEXT NOT NULL, url TEXT NOT NULL,"
    " delivered INTEGER NOT NULL,"
    " PRIMARY KEY (owner, id)) WITHOUT ROWID",
    "CREATE TABLE alerts (owner TEXT, id TEXT, tag TEXT, number INTEGER, alert BLOB NOT NULL,"
    " PRIMARY KEY (owner, id, tag, number)) WITHOUT ROWID",
)
# Of version 3.
_WATCH_TABLES = (
    "CREATE TABLE changed (owner TEXT, id TEXT, tag TEXT, revision INTEGER, node_ids BLOB NOT NULL,"
    " PRIMARY KEY (owner, id, tag, revision)) WITHOUT ROWID",
    "CREATE TABLE above (owner TEXT, id TEXT, tag TEXT, node_id BLOB,"
    " PRIMARY KEY (owner, id, tag, node_id)) WITHOUT ROWID",
)
# Of version 4: scores of accounts that wait for those of earlier transactions.
_SCORED_TABLE = (
    "CREATE TABLE scored (owner TEXT, id TEXT, tag TEXT, revision INTEGER, scores BLOB NOT NULL,"
    " PRIMARY KEY (owner, id, tag, revision)) WITHOUT ROWID",
)
OF_GRAPH = ("updates", "bases", "pending", "scored", "alerts", "webhooks", "changed", "above")
"""Tables of what is stored of a graph beside its metadata."""
_VERSION = 5  # metadata has a check since 5: earlier versions of the server could not read it
GRAPHS = SchemaVersion(
    0x42617367,  # "Basg"
    _VERSION,
    "graphs",
    (*_TABLES, *_ALERT_TABLES, *_WATCH_TABLES, *_SCORED_TABLE),
    {
        1: (*_ALERT_TABLES, *_WATCH_TABLES, *_SCORED_TABLE),
        2: (*_WATCH_TABLES, *_SCORED_TABLE),
        3: _SCORED_TABLE,
        4: (f"PRAGMA user_version = {_VERSION}",),
    },
)
