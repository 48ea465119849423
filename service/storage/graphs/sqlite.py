"""Log of stored graphs in a SQLite file."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Literal, final

import orjson

from service.storage.graphs.base import (
    ChangedNodes,
    GraphList,
    LogContents,
    RefusedError,
    RestoredGraph,
    WatchedGraph,
    WriteResult,
    check_limits,
)
from service.storage.graphs.metadata import (
    DamagedValueError,
    GraphKey,
    GraphLimits,
    GraphMetadata,
)
from service.storage.graphs.sqlite_alerts import SqliteAlertLog
from service.storage.graphs.sqlite_tables import OF_GRAPH
from service.storage.graphs.stored_graph import ToScore

_MAX_BASE = 900_000_000  # bytes; SQLite has room for 1e9 in a row
_OF_PLACE = "WHERE owner = ? AND id = ?"


@final
class SqliteGraphLog(SqliteAlertLog):
    """SQLite file of one server. A batch is one transaction, so its number of updates hardly
    changes how long the commit takes."""

    def add_restore(
        self,
        restore: Callable[[], object],
        restore_refused: Callable[[], object],
        list_again: Callable[[GraphKey], object],
    ) -> None: ...  # it loses nothing

    def count(self, event: Literal["failures", "restored", "lost"], number: int = 1) -> None: ...

    def find_ended(self, tags: Sequence[str]) -> set[str]:
        return set()

    def note_ended(self, tags: Sequence[str]) -> None: ...

    def list_metadata(self, owner: str) -> GraphList:
        heads, damaged = self._list_heads(owner)
        for id in damaged:
            self.report_damaged(f"{owner}/{id}", "metadata that no server wrote")
        return self.migrate_all(owner, GraphList(heads, damaged))

    def read_head(self, place: GraphKey) -> GraphMetadata | None:
        rows = self._ask(f"SELECT CAST(head AS BLOB) FROM heads {_OF_PLACE}", [*place])
        if not rows:
            return None
        try:
            head = GraphMetadata.from_bytes(rows[0][0])
        except DamagedValueError as error:
            raise self.make_damage(place, str(error)) from error
        if not head.digest:  # of an earlier version
            contents = self._read_contents(place, head).migrate()
            head = contents.metadata
            if damage := contents.find_damage(head.since, head.base_digest):
                raise self.make_damage(place, damage)
            self._set(place, head)
        return head

    def read(self, place: GraphKey, known: GraphMetadata | None) -> LogContents | None:
        if (head := self.read_head(place)) is None:
            return None
        contents = self._read_contents(place, head)
        if damage := contents.find_damage(head.since, head.base_digest):
            raise self.make_damage(place, damage)
        return contents

    def put(
        self,
        place: GraphKey,
        head: GraphMetadata,
        base: bytes,
        room: GraphLimits,
        webhook: str | None = None,
    ) -> tuple[WriteResult, GraphMetadata, GraphMetadata | None]:
        heads, _ = self._list_heads(place.owner)
        before = heads.get(place.id)
        stored = head.in_place_of(before)
        outcome = check_limits(heads, place, stored, room)
        if outcome is WriteResult.DONE:
            self.delete(place)
            self._set(place, stored)
            self._ask("INSERT INTO bases VALUES (?, ?, ?)", [*place, base])
            if webhook is not None:
                self._ask(
                    "INSERT INTO webhooks VALUES (?, ?, ?, ?, 0)", [*place, head.tag, webhook]
                )
            if head.watch is not None:
                self.score_all(place, stored)
        return outcome, stored, before

    def append(
        self,
        place: GraphKey,
        before: GraphMetadata,
        after: GraphMetadata,
        update: bytes,
        room: GraphLimits,
        to_score: ToScore,
    ) -> WriteResult:
        outcome = check_limits(self._list_heads(place.owner)[0], place, after, room)
        if outcome is WriteResult.DONE:
            self._ask("INSERT INTO updates VALUES (?, ?, ?, ?)", [*place, after.revision, update])
            self._set(place, after)
            if to_score.pending:
                ids = orjson.dumps(list(to_score.pending))
                row = [*place, after.tag, after.revision, ids, time.time()]
                self._ask("INSERT INTO pending VALUES (?, ?, ?, ?, ?, ?)", row)
            if (touched := to_score.touched) is not None:
                graph, node_ids = WatchedGraph(place, after.tag), touched.node_ids + touched.deleted
                self._add_changed(graph, ChangedNodes(after.revision, node_ids))
                self._forget(graph, touched.deleted)
        return outcome

    def replace_snapshot(self, place: GraphKey, head: GraphMetadata, base: bytes) -> bool:
        if len(base) > _MAX_BASE:
            return False
        self._ask(f"UPDATE bases SET base = ? {_OF_PLACE}", [base, *place])
        self._ask(f"DELETE FROM updates {_OF_PLACE} AND revision <= ?", [*place, head.revision])
        self._set(place, head)
        return True

    def restore(
        self, place: GraphKey, now: GraphMetadata | None, graph: RestoredGraph, is_damaged: bool
    ) -> bool:
        if graph.snapshot_file is None:
            return False
        if len(graph.snapshot_file) > _MAX_BASE:
            raise RefusedError(f"the snapshot has more than {_MAX_BASE} bytes")
        self._ask(f"DELETE FROM updates {_OF_PLACE}", [*place])
        self._ask("INSERT OR REPLACE INTO bases VALUES (?, ?, ?)", [*place, graph.snapshot_file])
        self._set(place, graph.head)
        return True

    def delete(self, place: GraphKey, tag: str | None = None) -> str | None:
        for table in OF_GRAPH:
            self._ask(f"DELETE FROM {table} {_OF_PLACE}", [*place])
        rows = self._ask(f"DELETE FROM heads {_OF_PLACE} RETURNING CAST(head AS BLOB)", [*place])
        try:
            return GraphMetadata.from_bytes(rows[0][0]).tag if rows else None
        except DamagedValueError:
            return ""

    def _read_contents(self, place: GraphKey, head: GraphMetadata) -> LogContents:
        bases = self._ask(f"SELECT CAST(base AS BLOB) FROM bases {_OF_PLACE}", [*place])
        updates = self._ask(
            f"SELECT CAST(made AS BLOB) FROM updates {_OF_PLACE} ORDER BY revision", [*place]
        )
        base = bases[0][0] if bases else b""
        return LogContents(head, base, [made for (made,) in updates])

    def _set(self, place: GraphKey, head: GraphMetadata) -> None:
        self._ask("INSERT OR REPLACE INTO heads VALUES (?, ?, ?)", [*place, head.to_bytes()])
