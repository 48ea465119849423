"""Log of stored graphs in a SQLite file."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import final

import orjson

from service.storage.graphs.base import (
    KEPT_ALERTS,
    AccountScore,
    ChangedNodes,
    GraphKey,
    GraphLimits,
    GraphLog,
    GraphMetadata,
    LogContents,
    PendingScore,
    ScoredNodes,
    SharedWork,
    TouchedNodes,
    WatchedGraph,
    Webhook,
    WriteResult,
    check_limits,
)
from service.storage.sqlite import Database, SchemaVersion, StoreError
from service.validation.ids import NodeId

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
_MAX_BASE = 900_000_000  # bytes; SQLite has room for 1e9 in a row
_KIND = SchemaVersion(
    0x42617367,  # "Basg"
    4,
    "graphs",
    (*_TABLES, *_ALERT_TABLES, *_WATCH_TABLES, *_SCORED_TABLE),
    {
        1: (*_ALERT_TABLES, *_WATCH_TABLES, *_SCORED_TABLE),
        2: (*_WATCH_TABLES, *_SCORED_TABLE),
        3: _SCORED_TABLE,
    },
)
_MAX_REVISION = 2**63 - 1  # what SQLite has as an integer
_OF_GRAPH = ("updates", "bases", "pending", "scored", "alerts", "webhooks", "changed", "above")
_HERE = "WHERE owner = ? AND id = ? AND tag = ?"


@final
class SqliteGraphLog(GraphLog):
    """SQLite file of one server. A batch is one transaction, so its number of updates hardly
    changes how long the commit takes."""

    is_shared = False

    def __init__(self, path: Path) -> None:
        self._database = Database(path, _KIND)
        self._db: sqlite3.Connection | None = None  # within a batch

    def open(self) -> None:
        self._database.open()

    def close(self) -> None:
        self._database.close()

    @contextmanager
    def batch(self) -> Iterator[None]:
        with self._database.transaction() as self._db:
            try:
                yield
            finally:
                self._db = None

    def list_metadata(self, owner: str) -> dict[str, GraphMetadata]:
        rows = self._ask("SELECT id, head FROM heads WHERE owner = ? ORDER BY id", [owner])
        return {id: GraphMetadata.from_json(head) for id, head in rows}

    def put(
        self,
        place: GraphKey,
        head: GraphMetadata,
        base: bytes,
        room: GraphLimits,
        webhook: str | None = None,
    ) -> tuple[WriteResult, int]:
        heads = self.list_metadata(place.owner)
        before = heads.get(place.id)
        revision = 1 if before is None else before.revision + 1
        found = check_limits(heads, place, head, room)
        if found is WriteResult.DONE:
            self.delete(place)
            self._set(place, replace(head, revision=revision, since=revision))
            self._ask("INSERT INTO bases VALUES (?, ?, ?)", [*place, base])
            if webhook is not None:
                self._ask(
                    "INSERT INTO webhooks VALUES (?, ?, ?, ?, 0)", [*place, head.tag, webhook]
                )
            if head.watch is not None:
                self._add_changed(WatchedGraph(place, head.tag), ChangedNodes(revision, None))
        return found, revision

    def append(
        self,
        place: GraphKey,
        before: GraphMetadata,
        after: GraphMetadata,
        update: bytes,
        room: GraphLimits,
        pending: list[NodeId] | None = None,
        touched: TouchedNodes | None = None,
    ) -> WriteResult:
        found = check_limits(self.list_metadata(place.owner), place, after, room)
        if found is WriteResult.DONE:
            self._ask("INSERT INTO updates VALUES (?, ?, ?, ?)", [*place, after.revision, update])
            self._set(place, after)
            if pending:
                row = [*place, after.tag, after.revision, orjson.dumps(pending), time.time()]
                self._ask("INSERT INTO pending VALUES (?, ?, ?, ?, ?, ?)", row)
            if touched is not None:
                graph, node_ids = WatchedGraph(place, after.tag), touched.node_ids + touched.deleted
                self._add_changed(graph, ChangedNodes(after.revision, node_ids))
                self._forget(graph, touched.deleted)
        return found

    def replace_snapshot(self, place: GraphKey, head: GraphMetadata, base: bytes) -> bool:
        if len(base) > _MAX_BASE:
            return False
        self._ask("UPDATE bases SET base = ? WHERE owner = ? AND id = ?", [base, *place])
        old = "DELETE FROM updates WHERE owner = ? AND id = ? AND revision <= ?"
        self._ask(old, [*place, head.revision])
        self._set(place, replace(head, since=head.revision))
        return True

    def read(self, place: GraphKey, known: GraphMetadata | None) -> LogContents | None:
        here = "WHERE owner = ? AND id = ?"
        heads = self._ask(f"SELECT head FROM heads {here}", [*place])
        if not heads:
            return None
        ((base,),) = self._ask(f"SELECT base FROM bases {here}", [*place])
        updates = self._ask(f"SELECT made FROM updates {here} ORDER BY revision", [*place])
        return LogContents(
            GraphMetadata.from_json(heads[0][0]), base, [made for (made,) in updates]
        )

    def delete(self, place: GraphKey) -> bool:
        for table in _OF_GRAPH:
            self._ask(f"DELETE FROM {table} WHERE owner = ? AND id = ?", [*place])
        statement = "DELETE FROM heads WHERE owner = ? AND id = ? RETURNING id"
        return bool(self._ask(statement, [*place]))

    def list_all_pending(self) -> list[PendingScore]:
        names = "owner, id, tag, revision, node_ids, at"
        return [
            PendingScore(GraphKey(owner, id), tag, revision, orjson.loads(node_ids), at)
            for owner, id, tag, revision, node_ids, at in self._ask(
                f"SELECT {names} FROM pending ORDER BY at", []
            )
        ]

    def record_alerts(self, pending: PendingScore, alerts: list[bytes]) -> bool:
        if not self._end_pending(pending):
            return False
        self._add_alerts(WatchedGraph(pending.place, pending.tag), alerts)
        return True

    def record_accounts(self, pending: PendingScore, scores: Sequence[AccountScore]) -> int | None:
        if not self._end_pending(pending):
            return None
        graph = WatchedGraph(pending.place, pending.tag)
        of_graph = [*graph.place, graph.tag]
        if scores:
            text = orjson.dumps([(account, alert and alert.decode()) for account, alert in scores])
            row = [*of_graph, pending.revision, text]
            self._ask("INSERT INTO scored VALUES (?, ?, ?, ?, ?)", row)
        ((first,),) = self._ask(f"SELECT MIN(revision) FROM pending {_HERE}", of_graph)
        before = f"{_HERE} AND revision < ?"
        bounds = [*of_graph, _MAX_REVISION if first is None else first]
        rows = self._ask(f"SELECT scores FROM scored {before} ORDER BY revision", bounds)
        self._ask(f"DELETE FROM scored {before}", bounds)
        alerts = list[bytes]()
        for (text,) in rows:
            for account, alert in orjson.loads(text):
                if alert is None:
                    self._forget(graph, [account])
                elif self._note_above(graph, account):
                    alerts.append(alert.encode())
        self._add_alerts(graph, alerts)
        return len(alerts)

    def read_alerts(
        self, place: GraphKey, tag: str, after: int, limit: int
    ) -> list[tuple[int, bytes]]:
        return self._ask(
            f"SELECT number, alert FROM alerts {_HERE} AND number > ? ORDER BY number LIMIT ?",
            [*place, tag, after, limit],
        )

    def list_all_webhooks(self) -> list[Webhook]:
        rows = self._ask(
            "SELECT owner, id, tag, url, delivered FROM webhooks AS w WHERE EXISTS (SELECT 1 FROM "
            "alerts AS a WHERE a.owner = w.owner AND a.id = w.id AND a.tag = w.tag "
            "AND a.number > w.delivered)",
            [],
        )
        return [Webhook(GraphKey(owner, id), *rest) for owner, id, *rest in rows]

    def claim(self, place: GraphKey, work: SharedWork, seconds: float) -> bool:
        return True  # there is no other server

    def mark_delivered(self, webhook: Webhook, number: int) -> None:
        self._ask(
            f"UPDATE webhooks SET delivered = ? {_HERE}", [number, *webhook.place, webhook.tag]
        )

    def list_changed_graphs(self) -> list[WatchedGraph]:
        rows = self._ask("SELECT DISTINCT owner, id, tag FROM changed", [])
        return [WatchedGraph(GraphKey(owner, id), tag) for owner, id, tag in rows]

    def read_changed(self, graph: WatchedGraph, after: int) -> list[ChangedNodes]:
        rows = self._ask(
            f"SELECT revision, node_ids FROM changed {_HERE} AND revision > ? ORDER BY revision",
            [*graph.place, graph.tag, after],
        )
        return [ChangedNodes(revision, orjson.loads(node_ids)) for revision, node_ids in rows]

    def record_scores(self, scored: ScoredNodes) -> int | None:
        graph = scored.graph
        heads = self._ask("SELECT head FROM heads WHERE owner = ? AND id = ?", [*graph.place])
        if not heads or GraphMetadata.from_json(heads[0][0]).tag != graph.tag:
            return None
        scored = scored.without(self.read_changed(graph, scored.revision))
        above = scored.above.items()
        alerts = [alert for node_id, alert in above if self._note_above(graph, node_id)]
        self._forget(graph, scored.below)
        self._add_alerts(graph, alerts)
        for revision in scored.finished:
            row = [*graph.place, graph.tag, revision]
            self._ask(f"DELETE FROM changed {_HERE} AND revision = ?", row)
        return len(alerts)

    def _end_pending(self, pending: PendingScore) -> bool:
        # `put` and `delete` remove what is pending: the graph with this tag is there if that is.
        done = f"DELETE FROM pending {_HERE} AND revision = ? RETURNING revision"
        return bool(self._ask(done, [*pending.place, pending.tag, pending.revision]))

    def _add_changed(self, graph: WatchedGraph, changed: ChangedNodes) -> None:
        row = [*graph.place, graph.tag, changed.revision, orjson.dumps(changed.node_ids)]
        self._ask("INSERT INTO changed VALUES (?, ?, ?, ?, ?)", row)

    def _note_above(self, graph: WatchedGraph, node_id: NodeId) -> bool:
        """Note that a node is above the threshold; return whether it was not before."""
        insert = "INSERT INTO above VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING RETURNING node_id"
        return bool(self._ask(insert, [*graph.place, graph.tag, orjson.dumps(node_id)]))

    def _forget(self, graph: WatchedGraph, node_ids: Sequence[NodeId]) -> None:
        """Forget that nodes were above the threshold."""
        for node_id in node_ids:
            row = [*graph.place, graph.tag, orjson.dumps(node_id)]
            self._ask(f"DELETE FROM above {_HERE} AND node_id = ?", row)

    def _add_alerts(self, graph: WatchedGraph, alerts: list[bytes]) -> None:
        if not alerts:
            return
        of_graph = [*graph.place, graph.tag]
        ((last,),) = self._ask(f"SELECT MAX(number) FROM alerts {_HERE}", of_graph)
        for number, alert in enumerate(alerts, (last or 0) + 1):
            self._ask("INSERT INTO alerts VALUES (?, ?, ?, ?, ?)", [*of_graph, number, alert])
        oldest = (last or 0) + len(alerts) - KEPT_ALERTS
        self._ask(f"DELETE FROM alerts {_HERE} AND number <= ?", [*of_graph, oldest])

    def _set(self, place: GraphKey, head: GraphMetadata) -> None:
        self._ask("INSERT OR REPLACE INTO heads VALUES (?, ?, ?)", [*place, head.to_json()])

    def _ask(self, statement: str, values: Sequence[object]) -> list[tuple]:
        if self._db is None:
            raise StoreError("call this within `batch()`")
        return self._db.execute(statement, values).fetchall()
