"""A SQLite file that one process locks while it is open."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import final

_WAL_BYTES = 16 << 20  # size to which the write-ahead log is truncated after a checkpoint


class StoreError(Exception):
    """The store cannot be read or written now; nothing in it has changed."""


@dataclass(frozen=True)
class SchemaVersion:
    """Application id, version and tables by which a store recognizes its files; `holds` names the
    content in error messages, `added` the tables that an older version lacks."""

    application: int
    version: int
    holds: str
    tables: Sequence[str]
    added: Mapping[int, Sequence[str]] = field(default_factory=dict)


@final
class Database:
    """One SQLite file, locked by this process while it is open; used from one thread at a time.

    The lock belongs to SQLite and ends with the process, even if that is killed. A commit is on
    disk when it returns (WAL, synchronous=FULL): an accepted job must survive a power cut.
    """

    def __init__(self, path: Path, kind: SchemaVersion) -> None:
        self._path, self._kind = path, kind
        self._db: sqlite3.Connection | None = None

    def open(self) -> None:
        """Open and lock the file; create it if it does not exist.

        Raises:
            StoreError: another process has locked it, it holds other data, or it is damaged.
        """
        self.close()  # opening it twice would fail on the lock of this process
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with suppress(
                FileExistsError
            ):  # it holds requests of clients, so only this user may read it
                os.close(os.open(self._path, os.O_CREAT | os.O_EXCL, 0o600))
            db = sqlite3.connect(self._path, timeout=0, isolation_level=None)
        except (OSError, sqlite3.Error) as error:
            raise StoreError(f"{self._path}: {error}") from error
        try:
            _prepare(db, self._kind)
        except (sqlite3.Error, StoreError) as error:
            db.close()
            busy = getattr(error, "sqlite_errorname", "") == "SQLITE_BUSY"
            raise StoreError(
                f"{self._path}: {'another process has it' if busy else error}"
            ) from error
        self._db = db

    def close(self) -> None:
        if self._db is not None:
            self._db.close()
            self._db = None

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Run a transaction, which is rolled back if the context raises.

        Raises:
            StoreError: the file cannot be read or written, or is not open.
        """
        if (db := self._db) is None:
            raise StoreError(f"{self._path}: the file is not open")
        try:
            db.execute("BEGIN IMMEDIATE")
            yield db
            db.execute("COMMIT")
        except BaseException as error:
            with suppress(sqlite3.Error):
                if db.in_transaction:
                    db.execute("ROLLBACK")
            if isinstance(error, sqlite3.Error):
                raise StoreError(f"{self._path}: {error}") from error
            raise


def _prepare(db: sqlite3.Connection, kind: SchemaVersion) -> None:
    """Lock the file, check that it is intact and of this kind, and create missing tables."""
    db.execute("PRAGMA locking_mode = EXCLUSIVE")
    db.execute("BEGIN EXCLUSIVE")
    db.execute("COMMIT")
    (tables,) = db.execute("SELECT COUNT(*) FROM sqlite_schema").fetchone()
    (application,) = db.execute("PRAGMA application_id").fetchone()
    (version,) = db.execute("PRAGMA user_version").fetchone()
    known = {*kind.added, kind.version}
    if tables and (application != kind.application or version not in known):
        raise StoreError(f"the file holds something else, or {kind.holds} of another version")
    # After the lock: a log that only one process uses needs no shared memory beside it.
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = FULL")
    db.execute(f"PRAGMA journal_size_limit = {_WAL_BYTES}")
    missing = kind.added.get(version, ()) if tables else kind.tables
    if missing:
        db.execute("BEGIN")
        db.execute(f"PRAGMA application_id = {kind.application}")
        db.execute(f"PRAGMA user_version = {kind.version}")
        for table in missing:
            db.execute(table)
        db.execute("COMMIT")
    (state,) = db.execute("PRAGMA quick_check(1)").fetchone()
    if state != "ok":
        raise StoreError(f"the file is damaged: {state}")
