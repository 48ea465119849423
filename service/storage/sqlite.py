"""A file of SQLite that one process has to itself."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import final

_WAL_BYTES = 16 << 20  # that the log keeps once it is written back


class StoreError(Exception):
    """The store cannot be read or written, now; nothing has changed in it."""


@dataclass(frozen=True)
class SchemaVersion:
    """What tells the files of one store from others: `application` and `version` of its tables,
    and what it holds, in words."""

    application: int
    version: int
    holds: str
    tables: Sequence[str]


@final
class Database:
    """One file, which one process has to itself while it is open; used from one thread at a time.

    The lock is SQLite's own and goes with the process, however that ends. A commit is on the disk
    before it returns (WAL, synchronous=FULL): a promise to a client must survive a power cut.
    """

    def __init__(self, path: Path, kind: SchemaVersion) -> None:
        self._path, self._kind = path, kind
        self._db: sqlite3.Connection | None = None

    def open(self) -> None:
        """
        Raises:
            StoreError: another process has it, it is something else, or it is damaged.
        """
        self.close()  # whoever opens it again would else find it taken
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with suppress(FileExistsError):  # it holds what clients sent, so it is for us alone
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
        """All of it or nothing.

        Raises:
            StoreError: it cannot be read or written, or is not open.
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
    """Take the file and see that it is one of ours, whole; a new one is made so."""
    db.execute("PRAGMA locking_mode = EXCLUSIVE")
    db.execute("BEGIN EXCLUSIVE")
    db.execute("COMMIT")
    (tables,) = db.execute("SELECT COUNT(*) FROM sqlite_schema").fetchone()
    (application,) = db.execute("PRAGMA application_id").fetchone()
    (version,) = db.execute("PRAGMA user_version").fetchone()
    if tables and (application, version) != (kind.application, kind.version):
        raise StoreError(f"the file holds something else, or {kind.holds} of another version")
    # After the lock: a log that only one process uses needs no shared memory beside it.
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = FULL")
    db.execute(f"PRAGMA journal_size_limit = {_WAL_BYTES}")
    if not tables:
        db.execute("BEGIN")
        db.execute(f"PRAGMA application_id = {kind.application}")
        db.execute(f"PRAGMA user_version = {kind.version}")
        for table in kind.tables:
            db.execute(table)
        db.execute("COMMIT")
    (state,) = db.execute("PRAGMA quick_check(1)").fetchone()
    if state != "ok":
        raise StoreError(f"the file is damaged: {state}")
