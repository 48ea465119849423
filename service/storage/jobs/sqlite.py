"""Job store in a SQLite file."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, final

import orjson
import structlog
from starlette.responses import Response

from service.errors import Problem
from service.storage.jobs.base import MAX_DEAD, OVERHEAD, JobLimits, JobStore, queue_full_error
from service.storage.jobs.file_clock import FileClock
from service.storage.jobs.job import POISON_THRESHOLD, DeadJob, Job, Status
from service.storage.jobs.request import StoredRequest
from service.storage.jobs.seal import find_damage, make_seal
from service.storage.jobs.stored_job import (
    DAMAGED,
    SEALED,
    Fields,
    damaged_job,
    decode_answer,
    decode_number,
    decode_request,
    decode_text,
    encode_request,
    find_answer_fault,
    find_fault,
    make_job,
    seal_answer,
    seal_request,
)
from service.storage.sqlite import Database, SchemaVersion, StoreError

# Large columns come last, and the columns that are summed are indexed, so that SQLite need not read
# through bodies and responses.
_TABLE = """
CREATE TABLE jobs (
    id TEXT PRIMARY KEY, created REAL NOT NULL, request_id TEXT NOT NULL, owner TEXT NOT NULL,
    key TEXT UNIQUE, fingerprint BLOB NOT NULL,
    method TEXT NOT NULL, route TEXT NOT NULL, query BLOB NOT NULL, headers TEXT NOT NULL,
    starts INTEGER NOT NULL DEFAULT 0, postponed INTEGER NOT NULL DEFAULT 0,
    running INTEGER NOT NULL DEFAULT FALSE, status TEXT NOT NULL, progress TEXT,
    ended REAL, size INTEGER NOT NULL,
    fault TEXT, seal BLOB, body_seal BLOB, answer_seal BLOB,
    code INTEGER, answer_headers TEXT, body BLOB, answer BLOB
)"""
_INDEX = "CREATE INDEX jobs_by_end ON jobs (ended, size)"
_FAULT_INDEX = "CREATE INDEX dead_jobs ON jobs (ended, fault, id) WHERE fault IS NOT NULL"
_UNSEALED = "X'30'"  # the seal of a job of an older version of the file
_ADDED = (
    *("fault TEXT", f"seal BLOB DEFAULT {_UNSEALED}", "body_seal BLOB", "answer_seal BLOB"),
    "postponed INTEGER NOT NULL DEFAULT 0",
)
_OLDER = {3: (*(f"ALTER TABLE jobs ADD COLUMN {column}" for column in _ADDED), _FAULT_INDEX)}
_KIND = SchemaVersion(0x4261736A, 4, "jobs", (_TABLE, _INDEX, _FAULT_INDEX), _OLDER)  # "Basj"
_REQUEST = "method, route, query, headers"
_JOB = (
    "id, route, request_id, created, owner, fingerprint, body_seal, seal, fault, starts, status,"
    f" progress, postponed, {_REQUEST}"
)


@final
class SqliteJobStore(JobStore):
    """SQLite file of one server."""

    def __init__(self, path: Path, limits: JobLimits) -> None:
        self._limits, self._database = limits, Database(path, _KIND)
        self._transaction = self._database.transaction
        self._clock = FileClock()

    def open(self) -> None:
        self._database.open()
        with self._transaction() as db:
            # A damaged text is for the digest of its row to show, not an error of each query.
            db.text_factory = decode_text
            db.execute("UPDATE jobs SET running = FALSE WHERE running")  # by one that has ended
            length = f"{OVERHEAD} + IFNULL(LENGTH(body), 0) + IFNULL(LENGTH(answer), 0)"
            db.execute(f"UPDATE jobs SET size = {length} WHERE size IS NOT {length}")
            _seal_older(db)
            self._clock.start(db)

    def close(self) -> None:
        with suppress(StoreError), self._transaction() as db:
            self._clock.store(db)
        self._database.close()

    def add(
        self, job: Job, sent: StoredRequest, body: bytes, key: str | None, fingerprint: bytes
    ) -> Job:
        with self._transaction() as db:
            self._expire(db)
            known = db.execute(f"SELECT fingerprint, {_JOB} FROM jobs WHERE key = ?", [key])
            if row := known.fetchone():
                first = self._job(db, row[1:])
                if db.execute("SELECT 1 FROM jobs WHERE key = ?", [key]).fetchone():
                    if row[0] == fingerprint:
                        return first
                    raise Problem(
                        "key-reused",
                        "This Idempotency-Key was sent with another request. Use a new key for "
                        "each request.",
                    )
            self._require_room(db, OVERHEAD + len(body), job.owner)
            sealed = seal_request(job, sent, body, fingerprint)
            db.execute(
                "INSERT INTO jobs (id, created, request_id, owner, key, fingerprint, method,"
                " route, query, headers, status, size, body, seal, body_seal)"
                " VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)",
                [
                    *(job.id, job.created, job.request_id, job.owner, key, fingerprint),
                    *(sent.method, sent.path, sent.query, orjson.dumps(sent.headers).decode()),
                    *(job.status, OVERHEAD + len(body), body, sealed["seal"], sealed["body_seal"]),
                ],
            )
            self._make_room(db, job)
        return job

    def claim(self) -> Job | None:
        while True:
            with self._transaction() as db:
                row = db.execute(
                    "UPDATE jobs SET running = TRUE WHERE id = (SELECT id FROM jobs LEFT JOIN"
                    " (SELECT owner AS key_name, COUNT(*) AS num_running FROM jobs"
                    "  WHERE running AND ended IS NULL GROUP BY owner) ON key_name = owner"
                    " WHERE ended IS NULL AND NOT running"
                    " ORDER BY starts >= ? AND NOT postponed DESC, COALESCE(num_running, 0),"
                    " jobs.rowid LIMIT 1)"
                    f" RETURNING {_JOB}",
                    [POISON_THRESHOLD],
                ).fetchone()
                job = row and self._job(db, row)
            if job is None or job.status is Status.RUNNING:
                return job

    def mark_started(self, id: str) -> int | None:
        with self._transaction() as db:
            count = "UPDATE jobs SET starts = starts + 1 WHERE id = ? AND running AND ended IS NULL"
            row = db.execute(f"{count} RETURNING starts", [id]).fetchone()
        return row and row[0]

    def release(self, id: str, begun: bool, postpone: bool = False) -> None:
        with self._transaction() as db:
            last = ", postponed = postponed + 1, rowid = (SELECT MAX(rowid) + 1 FROM jobs)"
            less = "UPDATE jobs SET running = FALSE, starts = MAX(starts - ?, 0)"
            db.execute(
                f"{less}{last if postpone else ''} WHERE id = ? AND ended IS NULL", [begun, id]
            )

    def heartbeat(self, jobs: Sequence[Job]) -> list[str]:
        return []  # this process alone forgets, and knows what it did

    def count(self) -> tuple[int, int]:
        with self._transaction() as db:
            (unfinished,) = db.execute("SELECT COUNT(*) FROM jobs WHERE ended IS NULL").fetchone()
            (dead,) = db.execute("SELECT COUNT(*) FROM jobs WHERE fault IS NOT NULL").fetchone()
        return unfinished, dead

    def get_request(self, id: str) -> StoredRequest:
        with self._transaction() as db:
            row = _require(db.execute(f"SELECT {_JOB} FROM jobs WHERE id = ?", [id]).fetchone())
            job = self._job(db, row)
        if job.status is not Status.RUNNING:
            raise damaged_job()
        return decode_request(_fields(row)["sent"])

    def get_body(self, id: str) -> bytes:
        with self._transaction() as db:
            read = db.execute("SELECT body, body_seal FROM jobs WHERE id = ?", [id])
            body, seal = _require(read.fetchone())
            damage = find_damage(seal, body)
            if damage is not None:
                self._fail_damaged(db, id, damage)
        if damage is not None:
            raise damaged_job()
        return body

    def complete(self, job: Job, status: Status, answer: Response, fault: str = "") -> bool:
        sealed = seal_answer(job.id, status, answer)
        body = sealed["answer"]
        with self._transaction() as db:
            update = db.execute(
                "UPDATE jobs SET status = ?, progress = ?, ended = ?, code = ?,"
                " answer_headers = ?, answer = ?, answer_seal = ?, fault = ?,"
                " body = IIF(?, body, NULL),"
                " size = ? + IIF(?, IFNULL(LENGTH(body), 0), 0) WHERE id = ? AND ended IS NULL",
                [
                    *(status, orjson.dumps(asdict(job.progress)).decode(), self._clock.store(db)),
                    *(answer.status_code, sealed["headers"].decode(), body),
                    *(sealed["answer_seal"], fault or None, bool(fault), OVERHEAD + len(body)),
                    *(bool(fault), job.id),
                ],
            )
            if update.rowcount:
                db.execute(
                    "UPDATE jobs SET fault = NULL WHERE id IN (SELECT id FROM jobs WHERE fault IS"
                    " NOT NULL ORDER BY ended DESC LIMIT -1 OFFSET ?)",
                    [MAX_DEAD],
                )
                self._expire(db)
                self._make_room(db, job)
        return update.rowcount == 1

    def get(self, id: str) -> Job | None:
        with self._transaction() as db:
            row = self._read(db, _JOB, id)
            return None if row is None else self._job(db, row)

    def get_response(self, id: str) -> Response | None:
        with self._transaction() as db:
            row = self._read(
                db,
                "ended, fault, request_id, status, code, answer_headers, answer, answer_seal",
                id,
            )
            if row is None or row[0] is None:
                return None
            names = ("fault", "request_id", "status", "code", "headers", "answer", "answer_seal")
            fields: Fields = dict(zip(names, map(_encode, row[1:]), strict=True))
            damage = find_answer_fault(id, fields)
            has_failed = fields["fault"] is not None and fields["code"] is None
            if damage is not None and not has_failed:
                self._fail_damaged(db, id, damage)
        if damage is not None:
            return damaged_job().response(decode_text(fields["request_id"]))
        return decode_answer(fields)

    def list_dead(self) -> list[DeadJob]:
        with self._transaction() as db:
            rows = db.execute(
                "SELECT id, owner, route, request_id, created, fault, ended, starts, body IS NOT"
                " NULL FROM jobs WHERE fault IS NOT NULL ORDER BY ended DESC"
            ).fetchall()
        return [
            DeadJob(
                *(str(id), str(owner), str(route), str(request_id)),
                *(decode_number(_encode(created)), str(fault), decode_number(_encode(ended))),
                *(int(decode_number(_encode(starts))), bool(has_request)),
            )
            for id, owner, route, request_id, created, fault, ended, starts, has_request in rows
        ]

    def requeue(self, id: str) -> bool:
        with self._transaction() as db:
            again = db.execute(
                "UPDATE jobs SET status = ?, progress = NULL, ended = NULL, code = NULL,"
                " answer_headers = NULL, answer = NULL, fault = NULL, starts = 0, postponed = 0,"
                " running = FALSE, size = ? + LENGTH(body)"
                " WHERE id = ? AND fault IS NOT NULL AND body IS NOT NULL",
                [Status.RUNNING, OVERHEAD, id],
            )
        return again.rowcount == 1

    def delete(self, id: str) -> bool:
        with self._transaction() as db:
            self._expire(db)
            return db.execute("DELETE FROM jobs WHERE id = ?", [id]).rowcount == 1

    def expire(self) -> None:
        with self._transaction() as db:
            self._expire(db)

    def _expire(self, db: sqlite3.Connection) -> None:
        now = self._clock.store_each_minute(db)
        end = [now - self._limits.keep_s]
        db.execute("DELETE FROM jobs WHERE ended < ? AND fault IS NULL", end)
        db.execute("UPDATE jobs SET key = NULL WHERE fault IS NOT NULL AND ended < ?", end)

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
            max_own_bytes = max(self._limits.max_bytes / 2, size)  # one job may always wait
            if count >= max_own or used_bytes + size > max_own_bytes:
                raise queue_full_error(count, half=True)

    def _make_room(self, db: sqlite3.Connection, new: Job) -> None:
        """Drop responses, but not that of `new`, until all jobs fit: each time the oldest of the
        owner that has most bytes, so that no owner loses responses because another has many."""
        (used_bytes,) = db.execute("SELECT TOTAL(size) FROM jobs").fetchone()
        if used_bytes <= self._limits.max_bytes:
            return
        owned = dict(db.execute("SELECT owner, TOTAL(size) FROM jobs GROUP BY owner").fetchall())
        finished = "SELECT id, size FROM jobs WHERE ended IS NOT NULL AND id != ? AND owner = ?"
        oldest = {
            owner: db.execute(f"{finished} ORDER BY ended", [new.id, owner]) for owner in owned
        }
        dropped = []
        while used_bytes > self._limits.max_bytes and owned:
            largest = max(owned, key=owned.__getitem__)
            if (row := oldest[largest].fetchone()) is None:
                del owned[largest]
                continue
            dropped.append(row[:1])
            owned[largest] -= row[1]
            used_bytes -= row[1]
        db.executemany("DELETE FROM jobs WHERE id = ?", dropped)

    def _read(self, db: sqlite3.Connection, columns: str, id: str) -> tuple[Any, ...] | None:
        return db.execute(
            f"SELECT {columns} FROM jobs WHERE id = ? AND (ended IS NULL OR ended >= ?)",
            [id, self._clock.now() - self._limits.keep_s],
        ).fetchone()

    def _job(self, db: sqlite3.Connection, row: tuple[Any, ...]) -> Job:
        """Return the job of a row of `_JOB`, failed if it is damaged."""
        fields, id = _fields(row), str(row[0])
        if fields["fault"] is None and (damage := find_fault(id.encode(), fields)):
            self._fail_damaged(db, id, damage)
            fields = {**fields, "fault": damage.encode()}
        return make_job(id, fields)

    def _fail_damaged(self, db: sqlite3.Connection, id: str, damage: str) -> None:
        """Fail a damaged job. Its key is free, so that its owner can send it again."""
        structlog.get_logger().error("damaged job", id=id, reason=damage)
        db.execute(
            "UPDATE jobs SET status = ?, fault = ?, ended = ?, running = FALSE, key = NULL,"
            " code = NULL, answer_headers = NULL, answer = NULL WHERE id = ?",
            [Status.FAILED, DAMAGED + damage, self._clock.store(db), id],
        )


def _require(row: tuple[Any, ...] | None) -> tuple[Any, ...]:
    if row is None:
        raise StoreError("no such job")
    return row


def _encode(value: Any) -> bytes | None:
    """Encode the value of a column, which has another type if it is damaged."""
    if value is None or isinstance(value, bytes):
        return value
    return (value if isinstance(value, str) else repr(value)).encode()


def _fields(row: tuple[Any, ...]) -> Fields:
    """Return the fields of a row of `_JOB`."""
    *values, method, route, query, headers = row
    names = _JOB.removesuffix(f", {_REQUEST}").split(", ")
    fields = dict(zip(names, map(_encode, values), strict=True))
    try:
        pairs = tuple((name, value) for name, value in orjson.loads(headers))
        sent = encode_request(StoredRequest(method, route, query, pairs))
    except (ValueError, TypeError, AttributeError):
        sent = b""
    return {**fields, "sent": sent}


def _seal_older(db: sqlite3.Connection) -> None:
    """Seal jobs of an older version of the file, which are taken for undamaged."""
    rows = db.execute(f"SELECT {_JOB} FROM jobs WHERE seal = {_UNSEALED}").fetchall()
    for row in rows:
        fields = _fields(row)
        (body,) = db.execute("SELECT body FROM jobs WHERE id = ?", row[:1]).fetchone()
        answer = "SELECT status, code, answer_headers, answer FROM jobs WHERE id = ?"
        parts = [_encode(value) or b"" for value in db.execute(answer, row[:1]).fetchone()]
        seal = {**fields, "body_seal": make_seal(body or b"")}
        db.execute(
            "UPDATE jobs SET seal = ?, body_seal = ?, answer_seal = ? WHERE id = ?",
            [
                make_seal(row[0].encode(), *(seal[name] or b"" for name in SEALED)),
                *(seal["body_seal"], make_seal(row[0].encode(), *parts), row[0]),
            ],
        )
