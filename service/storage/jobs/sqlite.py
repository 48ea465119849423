"""Job store in a SQLite file."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, final

import orjson
import structlog
from starlette.responses import Response

from service.errors import Problem
from service.observability.progress import Progress
from service.storage.jobs.base import OVERHEAD, JobLimits, JobStore, queue_full_error
from service.storage.jobs.job import POISON_THRESHOLD, Job, Status
from service.storage.jobs.request import StoredRequest
from service.storage.sqlite import (
    DamagedError,
    Database,
    SchemaVersion,
    StoreError,
    digest_row,
)

# Large columns come last, and the columns that are summed are indexed, so that SQLite need not read
# through bodies and responses. `content` is the digest of the body or the answer, and `digest` that
# of it and of all that is written once.
_TABLE = """
CREATE TABLE {name} (
    id TEXT PRIMARY KEY, created REAL NOT NULL, request_id TEXT NOT NULL, owner TEXT NOT NULL,
    key TEXT UNIQUE, fingerprint BLOB NOT NULL,
    method TEXT NOT NULL, route TEXT NOT NULL, query BLOB NOT NULL, headers TEXT NOT NULL,
    starts INTEGER NOT NULL DEFAULT 0,
    running INTEGER NOT NULL DEFAULT FALSE, status TEXT NOT NULL, progress TEXT,
    ended REAL, size INTEGER NOT NULL,
    code INTEGER, answer_headers TEXT, content BLOB, digest BLOB, body BLOB, answer BLOB
)"""
_INDEX = "CREATE INDEX jobs_by_end ON jobs (ended, size)"
_SENT = "id, created, request_id, owner, key, fingerprint, method, route, query, headers"
_WRITTEN = f"{_SENT}, status, progress, ended, size, code, answer_headers, content"
_OLD = f"{_SENT}, starts, running, status, progress, ended, size, code, answer_headers"
_KIND = SchemaVersion(
    0x4261736A,  # "Basj"
    4,
    "jobs",
    (_TABLE.format(name="jobs"), _INDEX),
    {
        3: (
            _TABLE.format(name="new_jobs"),
            f"INSERT INTO new_jobs ({_OLD}, content, body, answer) SELECT {_OLD},"
            " digest_row(body, answer), body, answer FROM jobs ORDER BY rowid",
            f"UPDATE new_jobs SET digest = digest_row({_WRITTEN})",
            "DROP TABLE jobs",
            "ALTER TABLE new_jobs RENAME TO jobs",
            _INDEX,
        )
    },
)
_CONTENT = "digest_row(body, answer) = content"
_INTACT = f"digest = digest_row({_WRITTEN})"
_JOB = "id, route, request_id, created, starts, status, progress, owner"


@final
class SqliteJobStore(JobStore):
    """SQLite file of one server."""

    def __init__(self, path: Path, limits: JobLimits) -> None:
        self._path, self._limits, self._database = path, limits, Database(path, _KIND)
        self._transaction = self._database.transaction

    def open(self) -> None:
        self._database.open()
        with self._transaction() as db:  # by a process that has ended
            db.execute("UPDATE jobs SET running = FALSE WHERE running")

    def close(self) -> None:
        self._database.close()

    def add(
        self, job: Job, sent: StoredRequest, body: bytes, key: str | None, fingerprint: bytes
    ) -> Job:
        with self._transaction() as db:
            self._expire(db)
            known = db.execute(f"SELECT fingerprint, {_JOB} FROM jobs WHERE key = ?", [key])
            if row := known.fetchone():
                if row[0] != fingerprint:
                    raise Problem(
                        "key-reused",
                        "This Idempotency-Key was sent with another request. Use a new key for "
                        "each request.",
                    )
                return _job(row[1:])
            self._require_room(db, OVERHEAD + len(body), job.owner)
            db.execute(
                "INSERT INTO jobs (id, created, request_id, owner, key, fingerprint, method,"
                " route, query, headers, status, size, content, body)"
                " VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?)",
                [
                    *(job.id, job.created, job.request_id, job.owner, key, fingerprint),
                    *(sent.method, sent.path, sent.query, orjson.dumps(sent.headers).decode()),
                    *(job.status, OVERHEAD + len(body), digest_row([body, None]), body),
                ],
            )
            self._seal(db, job.id)
            self._make_room(db, job)
        return job

    def claim(self) -> Job | None:
        while True:
            with self._transaction() as db:
                row = db.execute(
                    "UPDATE jobs SET running = TRUE WHERE id = (SELECT id FROM jobs WHERE ended IS"
                    " NULL AND NOT running ORDER BY starts >= ? DESC, rowid LIMIT 1)"
                    f" RETURNING {_INTACT} AND {_CONTENT}, {_JOB}",
                    [POISON_THRESHOLD],
                ).fetchone()
            if row is None or row[0]:
                return row and _job(row[1:])
            # It stays as if it ran, so that the next one is claimed.
            structlog.get_logger().error("job damaged", reason=str(self._damaged(row[1])))

    def mark_started(self, id: str) -> int | None:
        with self._transaction() as db:
            count = "UPDATE jobs SET starts = starts + 1 WHERE id = ? AND running AND ended IS NULL"
            row = db.execute(f"{count} RETURNING starts", [id]).fetchone()
        return row and row[0]

    def release(self, id: str, begun: bool) -> None:
        with self._transaction() as db:
            less = "UPDATE jobs SET running = FALSE, starts = MAX(starts - ?, 0)"
            db.execute(f"{less} WHERE id = ? AND ended IS NULL", [begun, id])

    def heartbeat(self, jobs: Sequence[Job]) -> list[str]:
        return []  # this process alone forgets, and knows what it did

    def count_unfinished(self) -> int:
        with self._transaction() as db:
            return db.execute("SELECT COUNT(*) FROM jobs WHERE ended IS NULL").fetchone()[0]

    def get_request(self, id: str) -> StoredRequest:
        method, route, query, headers = self._row("method, route, query, headers", id, _INTACT)
        pairs = tuple((name, value) for name, value in orjson.loads(headers))
        return StoredRequest(method, route, query, pairs)

    def get_body(self, id: str) -> bytes:
        return self._row("body", id, _CONTENT)[0]

    def complete(self, job: Job, status: Status, answer: Response) -> bool:
        headers = [(k.decode("latin-1"), v.decode("latin-1")) for k, v in answer.raw_headers]
        body = bytes(answer.body)
        with self._transaction() as db:
            over = db.execute(
                "UPDATE jobs SET status = ?, progress = ?, ended = ?, size = ?, code = ?,"
                " answer_headers = ?, content = ?, answer = ?, body = NULL"
                f" WHERE id = ? AND ended IS NULL AND {_INTACT}",
                [
                    *(status, orjson.dumps(asdict(job.progress)).decode(), time.time()),
                    *(OVERHEAD + len(body), answer.status_code, orjson.dumps(headers).decode()),
                    *(digest_row([None, body]), body, job.id),
                ],
            )
            if over.rowcount:
                self._seal(db, job.id)
                self._expire(db)
                self._make_room(db, job)
        return over.rowcount == 1

    def get(self, id: str) -> Job | None:
        row = self._kept(_JOB, id, _INTACT)
        return None if row is None else _job(row)

    def get_response(self, id: str) -> Response | None:
        row = self._kept("code, answer_headers, answer", id, f"{_INTACT} AND {_CONTENT}")
        if row is None or row[0] is None:
            return None
        code, headers, body = row
        answer = Response(body, code)
        answer.raw_headers = [
            (name.encode("latin-1"), value.encode("latin-1"))
            for name, value in orjson.loads(headers)
        ]
        return answer

    def delete(self, id: str) -> bool:
        with self._transaction() as db:
            self._expire(db)
            return db.execute("DELETE FROM jobs WHERE id = ?", [id]).rowcount == 1

    def expire(self) -> None:
        with self._transaction() as db:
            self._expire(db)

    def _expire(self, db: sqlite3.Connection) -> None:
        db.execute("DELETE FROM jobs WHERE ended < ?", [time.time() - self._limits.keep_s])

    def _require_room(self, db: sqlite3.Connection, size: int, owner: str) -> None:
        """Check the limits for one more request; responses are deleted to make room."""
        waiting = "SELECT COUNT(*), TOTAL(size) FROM jobs WHERE ended IS NULL"
        count, used_bytes = db.execute(waiting).fetchone()
        if size > self._limits.max_bytes:
            detail = (
                f"A job may have at most {max(self._limits.max_bytes - OVERHEAD, 0)} bytes of "
                "body (BASIN_MAX_JOB_BYTES). Send less in one request."
            )
            raise Problem("body-too-large", detail)
        if count >= self._limits.max_jobs or used_bytes + size > self._limits.max_bytes:
            raise queue_full_error(count)
        if owner:
            count, used_bytes = db.execute(f"{waiting} AND owner = ?", [owner]).fetchone()
            max_own = max(self._limits.max_jobs / 2, 1)
            if count >= max_own or used_bytes > self._limits.max_bytes / 2:
                raise queue_full_error(count, half=True)

    def _make_room(self, db: sqlite3.Connection, new: Job) -> None:
        """Drop the oldest answers until the rest fits, its owner's before others'; that of `new`
        stays."""
        (used_bytes,) = db.execute("SELECT TOTAL(size) FROM jobs").fetchone()
        over = "SELECT id, size FROM jobs WHERE ended IS NOT NULL AND id != ?"
        oldest = db.execute(f"{over} ORDER BY owner != ?, ended", [new.id, new.owner])
        dropped = []
        while used_bytes > self._limits.max_bytes and (row := oldest.fetchone()):
            dropped.append(row[:1])
            used_bytes -= row[1]
        db.executemany("DELETE FROM jobs WHERE id = ?", dropped)

    def _seal(self, db: sqlite3.Connection, id: str) -> None:
        """Set the digest of a job that was written now."""
        db.execute(f"UPDATE jobs SET digest = digest_row({_WRITTEN}) WHERE id = ?", [id])

    def _row(self, columns: str, id: str, intact: str) -> tuple[Any, ...]:
        with self._transaction() as db:
            select = f"SELECT {intact}, {columns} FROM jobs WHERE id = ?"
            row = db.execute(select, [id]).fetchone()
        if row is None:
            raise StoreError("no such job")
        return self._require_intact(id, row)

    def _kept(self, columns: str, id: str, intact: str) -> tuple[Any, ...] | None:
        with self._transaction() as db:
            found = db.execute(
                f"SELECT {intact}, {columns} FROM jobs WHERE id = ?"
                " AND (ended IS NULL OR ended >= ?)",
                [id, time.time() - self._limits.keep_s],
            )
            row = found.fetchone()
        return row and self._require_intact(id, row)

    def _require_intact(self, id: str, row: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the row without its first value, whether it is what was written."""
        if not row[0]:
            raise self._damaged(id)
        return row[1:]

    def _damaged(self, id: str) -> DamagedError:
        return DamagedError(
            f"{self._path}: what is stored of the job {id!r} is damaged. Restore the file from a "
            "backup, or delete the job and send its request again."
        )


def _job(row: tuple[Any, ...]) -> Job:
    id, route, request_id, created, starts, status, progress, owner = row
    reached = Progress(**orjson.loads(progress)) if progress else Progress()
    return Job(route, request_id, id, created, starts, Status(status), reached, owner)
