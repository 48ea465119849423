"""Log of stored graphs in a SQLite file."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, final

import orjson
import structlog

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
from service.storage.sqlite import (
    DamagedError,
    Database,
    SchemaVersion,
    StoreError,
    digest_row,
)
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
_COLUMNS = {
    "heads": "owner, id, head",
    "bases": "owner, id, base",
    "updates": "owner, id, revision, made",
    "pending": "owner, id, tag, revision, node_ids, at",
    "webhooks": "owner, id, tag, url, delivered",
    "alerts": "owner, id, tag, number, alert",
    "changed": "owner, id, tag, revision, node_ids",
    "above": "owner, id, tag, node_id",
    "scored": "owner, id, tag, revision, scores",
}
# Of version 5: the digest of all other values of a row.
_DIGESTS = tuple(
    statement
    for table, columns in _COLUMNS.items()
    for statement in (
        f"ALTER TABLE {table} ADD COLUMN digest BLOB",
        f"UPDATE {table} SET digest = digest_row({columns})",
    )
)
_MAX_BASE = 900_000_000  # bytes; SQLite has room for 1e9 in a row
_KIND = SchemaVersion(
    0x42617367,  # "Basg"
    5,
    "graphs",
    (*_TABLES, *_ALERT_TABLES, *_WATCH_TABLES, *_SCORED_TABLE, *_DIGESTS),
    {
        1: (*_ALERT_TABLES, *_WATCH_TABLES, *_SCORED_TABLE, *_DIGESTS),
        2: (*_WATCH_TABLES, *_SCORED_TABLE, *_DIGESTS),
        3: (*_SCORED_TABLE, *_DIGESTS),
        4: _DIGESTS,
    },
)
_MAX_REVISION = 2**63 - 1  # what SQLite has as an integer
_OF_GRAPH = tuple(table for table in _COLUMNS if table != "heads")
_PLACE = "WHERE owner = ? AND id = ?"
_HERE = f"{_PLACE} AND tag = ?"


@final
class SqliteGraphLog(GraphLog):
    """SQLite file of one server. A batch is one transaction, so its number of updates hardly
    changes how long the commit takes."""

    is_shared = False

    def __init__(self, path: Path) -> None:
        self._path, self._database = path, Database(path, _KIND)
        self._db: sqlite3.Connection | None = None  # within a batch
        self._reported = set[tuple[str, object]]()  # damaged rows that the log of events has

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
        rows = self._select_intact("heads", "WHERE owner = ? ORDER BY id", [owner])
        return {id: GraphMetadata.from_json(head) for _, id, head in rows}

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
            self._insert("bases", [*place, base])
            if webhook is not None:
                self._insert("webhooks", [*place, head.tag, webhook, 0])
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
            self._insert("updates", [*place, after.revision, update])
            self._set(place, after)
            if pending:
                row = [*place, after.tag, after.revision, orjson.dumps(pending), time.time()]
                self._insert("pending", row)
            if touched is not None:
                graph, node_ids = WatchedGraph(place, after.tag), touched.node_ids + touched.deleted
                self._add_changed(graph, ChangedNodes(after.revision, node_ids))
                self._forget(graph, touched.deleted)
        return found

    def replace_snapshot(self, place: GraphKey, head: GraphMetadata, base: bytes) -> bool:
        if len(base) > _MAX_BASE:
            return False
        self._insert("bases", [*place, base])
        self._ask(f"DELETE FROM updates {_PLACE} AND revision <= ?", [*place, head.revision])
        self._set(place, replace(head, since=head.revision))
        return True

    def read(self, place: GraphKey, known: GraphMetadata | None) -> LogContents | None:
        heads = self._select("heads", _PLACE, [*place])
        if not heads:
            return None
        head = GraphMetadata.from_json(heads[0][-1])
        bases = self._select("bases", _PLACE, [*place])
        updates = self._select("updates", f"{_PLACE} ORDER BY revision", [*place])
        revisions = [revision for _, _, revision, _ in updates]
        if len(bases) != 1 or revisions != list(range(head.since + 1, head.revision + 1)):
            raise self._damaged("updates", place)
        return LogContents(head, bases[0][-1], [made for *_, made in updates])

    def delete(self, place: GraphKey) -> bool:
        for table in _OF_GRAPH:
            self._ask(f"DELETE FROM {table} {_PLACE}", [*place])
        return bool(self._ask(f"DELETE FROM heads {_PLACE} RETURNING id", [*place]))

    def list_all_pending(self) -> list[PendingScore]:
        return [
            PendingScore(GraphKey(owner, id), tag, revision, orjson.loads(node_ids), at)
            for owner, id, tag, revision, node_ids, at in self._select_intact(
                "pending", "ORDER BY at", []
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
            self._insert("scored", row)
        ((first,),) = self._ask(f"SELECT MIN(revision) FROM pending {_HERE}", of_graph)
        before = f"{_HERE} AND revision < ?"
        bounds = [*of_graph, _MAX_REVISION if first is None else first]
        rows = self._select_intact("scored", f"{before} ORDER BY revision", bounds)
        self._ask(f"DELETE FROM scored {before}", bounds)
        alerts = list[bytes]()
        for *_, text in rows:
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
        rows = self._select(
            "alerts", f"{_HERE} AND number > ? ORDER BY number LIMIT ?", [*place, tag, after, limit]
        )
        return [(number, alert) for *_, number, alert in rows]

    def list_all_webhooks(self) -> list[Webhook]:
        rows = self._select_intact(
            "webhooks",
            "AS w WHERE EXISTS (SELECT 1 FROM alerts AS a WHERE a.owner = w.owner AND a.id = w.id "
            "AND a.tag = w.tag AND a.number > w.delivered)",
            [],
        )
        return [Webhook(GraphKey(owner, id), *rest) for owner, id, *rest in rows]

    def claim(self, place: GraphKey, work: SharedWork, seconds: float) -> bool:
        return True  # there is no other server

    def mark_delivered(self, webhook: Webhook, number: int) -> None:
        of_graph = [*webhook.place, webhook.tag]
        for *row, _ in self._select("webhooks", _HERE, of_graph):
            self._insert("webhooks", [*row, number])

    def list_changed_graphs(self) -> list[WatchedGraph]:
        rows = self._select_intact("changed", "", [])
        graphs = dict.fromkeys((owner, id, tag) for owner, id, tag, *_ in rows)
        return [WatchedGraph(GraphKey(owner, id), tag) for owner, id, tag in graphs]

    def read_changed(self, graph: WatchedGraph, after: int) -> list[ChangedNodes]:
        rows = self._select_intact(
            "changed",
            f"{_HERE} AND revision > ? ORDER BY revision",
            [*graph.place, graph.tag, after],
        )
        return [ChangedNodes(revision, orjson.loads(ids)) for *_, revision, ids in rows]

    def record_scores(self, scored: ScoredNodes) -> int | None:
        graph = scored.graph
        heads = self._select("heads", _PLACE, [*graph.place])
        if not heads or GraphMetadata.from_json(heads[0][-1]).tag != graph.tag:
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
        self._insert("changed", row)

    def _note_above(self, graph: WatchedGraph, node_id: NodeId) -> bool:
        """Note that a node is above the threshold; return whether it was not before."""
        row = [*graph.place, graph.tag, orjson.dumps(node_id)]
        if self._ask(f"SELECT 1 FROM above {_HERE} AND node_id = ?", row):
            return False
        self._insert("above", row)
        return True

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
            self._insert("alerts", [*of_graph, number, alert])
        oldest = (last or 0) + len(alerts) - KEPT_ALERTS
        self._ask(f"DELETE FROM alerts {_HERE} AND number <= ?", [*of_graph, oldest])

    def _set(self, place: GraphKey, head: GraphMetadata) -> None:
        self._insert("heads", [*place, head.to_json()])

    def _insert(self, table: str, row: Sequence[object]) -> None:
        """Insert a row, or replace the one of its key."""
        marks = ", ".join("?" * (len(row) + 1))
        self._ask(f"INSERT OR REPLACE INTO {table} VALUES ({marks})", [*row, digest_row(row)])

    def _select(self, table: str, where: str, values: Sequence[object]) -> list[list[Any]]:
        """Return rows of a table without their digests.

        Raises:
            DamagedError: a row is not what was written.
        """
        rows, damaged = self._read_rows(table, where, values)
        if damaged:
            raise self._damaged(table, GraphKey(*damaged[0][:2]))
        return rows

    def _select_intact(self, table: str, where: str, values: Sequence[object]) -> list[list[Any]]:
        """As `_select`, of several graphs: without the rows that are damaged, which are logged."""
        rows, damaged = self._read_rows(table, where, values)
        for row in damaged:
            if (table, row[1]) not in self._reported:
                self._reported.add((table, row[1]))
                reason = str(self._damaged(table, GraphKey(*row[:2])))
                structlog.get_logger().error("stored graph damaged", reason=reason)
        return rows

    def _read_rows(
        self, table: str, where: str, values: Sequence[object]
    ) -> tuple[list[list[Any]], list[list[Any]]]:
        """Return the rows that are what was written, and those that are not."""
        rows, damaged = list[list[Any]](), list[list[Any]]()
        for *row, digest in self._ask(f"SELECT * FROM {table} {where}", values):
            (rows if digest_row(row) == digest else damaged).append(row)
        return rows, damaged

    def _damaged(self, table: str, place: GraphKey) -> DamagedError:
        return DamagedError(
            f"{self._path}: table {table}: what is stored of the graph {place.id!r} is damaged. "
            "Restore the file from a backup, or delete the graph and store it anew."
        )

    def _ask(self, statement: str, values: Sequence[object]) -> list[tuple]:
        if self._db is None:
            raise StoreError("call this within `batch()`")
        return self._db.execute(statement, values).fetchall()
