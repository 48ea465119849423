"""Alerts of stored graphs in a SQLite file, and what is to be scored for them."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import orjson
import structlog
from pydantic import TypeAdapter

from service.storage.graphs.base import (
    KEPT_ALERTS,
    AccountScore,
    ChangedNodes,
    ChangeKey,
    GraphLog,
    PendingScore,
    ScoredNodes,
    SharedWork,
    WatchedGraph,
    Webhook,
)
from service.storage.graphs.metadata import (
    DamagedValueError,
    GraphKey,
    GraphMetadata,
    is_graph_id,
)
from service.storage.graphs.sqlite_tables import GRAPHS
from service.storage.sqlite import Database, StoreError
from service.validation.ids import NodeId

_MAX_REVISION = 2**63 - 1  # what SQLite has as an integer
_HERE = "WHERE owner = ? AND id = ? AND tag = ?"
_MAX_REPORTED = 1024
_NODE_IDS = TypeAdapter(list[NodeId] | None)
_SCORES = TypeAdapter(list[tuple[str, str | None]])


class SqliteAlertLog(GraphLog):
    """The part of `SqliteGraphLog` about alerts and background work."""

    is_shared = False

    def __init__(self, path: Path) -> None:
        self._database = Database(path, GRAPHS)
        self._db: sqlite3.Connection | None = None  # within a batch
        self._reported = set[str]()

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

    def report_damaged(self, key: str, reason: str) -> None:
        if key not in self._reported and len(self._reported) < _MAX_REPORTED:
            self._reported.add(key)
            structlog.get_logger().error("damaged in the graph store", key=key, reason=reason)

    def list_again(
        self, place: GraphKey, head: GraphMetadata, webhook: str | None, has_lost_alerts: bool
    ) -> None: ...

    def score_all(self, place: GraphKey, head: GraphMetadata) -> None:
        self._add_changed(WatchedGraph(place, head.tag), ChangedNodes(head.revision, None))

    def list_all_pending(self) -> list[PendingScore]:
        names = "owner, id, tag, revision, node_ids, at"
        pending = list[PendingScore]()
        rows = self._ask_of_all(f"SELECT {names} FROM pending ORDER BY at")
        for owner, id, tag, revision, raw, at in rows:
            each = PendingScore(GraphKey(owner, id), tag, revision, [], at)
            try:
                node_ids = _NODE_IDS.validate_json(raw) or []
            except ValueError:
                self.report_damaged(f"{owner}/{id}", "ids of transactions that wait")
                self._end_pending(each)
            else:
                pending.append(replace(each, node_ids=node_ids))
        return pending

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
            for account, alert in self._read_scores(graph, text):
                if alert is None:
                    self._forget(graph, [account])
                elif self._note_above(graph, account):
                    alerts.append(alert.encode())
        self._add_alerts(graph, alerts)
        return len(alerts)

    def _read_scores(self, graph: WatchedGraph, raw: bytes) -> list[tuple[str, str | None]]:
        try:
            return _SCORES.validate_json(raw)
        except ValueError:
            self.report_damaged("/".join(graph.place), "scores of accounts")
            return []

    def read_alerts(
        self, place: GraphKey, tag: str, after: int, limit: int
    ) -> list[tuple[int, bytes]]:
        return self._ask(
            f"SELECT number, alert FROM alerts {_HERE} AND number > ? ORDER BY number LIMIT ?",
            [*place, tag, after, limit],
        )

    def list_all_webhooks(self) -> list[Webhook]:
        rows = self._ask_of_all(
            "SELECT owner, id, tag, url, delivered FROM webhooks AS w WHERE EXISTS (SELECT 1 FROM "
            "alerts AS a WHERE a.owner = w.owner AND a.id = w.id AND a.tag = w.tag "
            "AND a.number > w.delivered)"
        )
        return [Webhook(GraphKey(owner, id), *rest) for owner, id, *rest in rows]

    def claim(self, place: GraphKey, work: SharedWork, seconds: float) -> bool:
        return True  # there is no other server

    def mark_delivered(self, webhook: Webhook, number: int) -> None:
        self._ask(
            f"UPDATE webhooks SET delivered = ? {_HERE}", [number, *webhook.place, webhook.tag]
        )

    def list_changed_graphs(self) -> list[WatchedGraph]:
        rows = self._ask_of_all("SELECT DISTINCT owner, id, tag FROM changed")
        return [WatchedGraph(GraphKey(owner, id), tag) for owner, id, tag in rows]

    def read_changed(
        self, graph: WatchedGraph, after: int, known: Collection[ChangeKey] = ()
    ) -> list[ChangedNodes]:
        rows = self._ask(
            f"SELECT revision, node_ids FROM changed {_HERE} AND revision > ? ORDER BY revision",
            [*graph.place, graph.tag, after],
        )
        return [
            ChangedNodes(revision, self._read_ids(graph, raw))
            for revision, raw in rows
            if ChangeKey(revision, "") not in known
        ]

    def _read_ids(self, graph: WatchedGraph, raw: bytes) -> list[NodeId] | None:
        try:
            return _NODE_IDS.validate_json(raw)
        except ValueError:
            self.report_damaged("/".join(graph.place), "ids of changed nodes: all are scored")
            return None

    def record_scores(self, scored: ScoredNodes) -> int | None:
        graph = scored.graph
        head = self._list_heads(graph.place.owner)[0].get(graph.place.id)
        if head is None or head.tag != graph.tag:
            return None
        scored = scored.without(self.read_changed(graph, scored.revision))
        above = scored.above.items()
        alerts = [alert for node_id, alert in above if self._note_above(graph, node_id)]
        self._forget(graph, scored.below)
        self._add_alerts(graph, alerts)
        for key in scored.finished:
            row = [*graph.place, graph.tag, key.revision]
            self._ask(f"DELETE FROM changed {_HERE} AND revision = ?", row)
        return len(alerts)

    def _end_pending(self, pending: PendingScore) -> bool:
        # `put` and `delete` remove what is pending: the graph with this tag is there if that is.
        done = f"DELETE FROM pending {_HERE} AND revision = ? RETURNING revision"
        return bool(self._ask(done, [*pending.place, pending.tag, pending.revision]))

    def _add_changed(self, graph: WatchedGraph, changed: ChangedNodes) -> None:
        row = [*graph.place, graph.tag, changed.revision, orjson.dumps(changed.node_ids)]
        self._ask("INSERT OR REPLACE INTO changed VALUES (?, ?, ?, ?, ?)", row)

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

    # A damaged value may have another type: with CAST it is bytes that fail their check.
    def _list_heads(self, owner: str) -> tuple[dict[str, GraphMetadata], list[str]]:
        """Return the graphs of an owner by id, and the ids of those that are damaged."""
        heads, damaged = dict[str, GraphMetadata](), list[str]()
        rows = self._ask(
            "SELECT id, CAST(head AS BLOB) FROM heads WHERE owner = ? ORDER BY id", [owner]
        )
        for id, raw in rows:
            if not self._can_be_key(owner, id):
                continue
            try:
                heads[id] = GraphMetadata.from_bytes(raw)
            except DamagedValueError:
                damaged.append(id)
        return heads, damaged

    def _ask_of_all(self, statement: str) -> list[tuple]:
        """Return rows of all owners, which begin with an owner, the id of a graph and its tag."""
        return [row for row in self._ask(statement, []) if self._can_be_key(*row[:3])]

    def _can_be_key(self, owner: object, id: object, tag: object = "") -> bool:
        """Whether a row can be of a graph; report it if not. SQLite takes no text that is not
        UTF-8, so such a row is left as it is."""
        others = isinstance(owner, str) and isinstance(tag, str) and f"{owner}{tag}".isascii()
        if others and is_graph_id(id):
            return True
        self.report_damaged(repr((owner, id)), "a key that no server wrote")
        return False

    def _ask(self, statement: str, values: Sequence[object]) -> list[tuple]:
        if self._db is None:
            raise StoreError("call this within `batch()`")
        return self._db.execute(statement, values).fetchall()
