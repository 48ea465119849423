"""A SQLite file that one process locks while it is open.

SQLite notices damaged pages only where their structure is hurt. So the stores have digests in their
rows, and the write-ahead log is checked here before it is used: SQLite takes the first frame of a
log that does not fit for the end of it, and forgets the rest.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import final

from service.storage.wal_check import find_wal_damage

_WAL_BYTES = 16 << 20  # size to which the write-ahead log is truncated after a checkpoint


class StoreError(Exception):
    """The store cannot be read or written now; nothing in it has changed."""


_REMEDY = "Restore it from a backup, or move it and its -wal away to begin with an empty file"


class DamagedError(StoreError):
    """What is stored is not what was written."""


_ERRORS = (sqlite3.Error, UnicodeDecodeError)
"""What SQLite raises; the second where its message quotes names of a damaged file."""
_DAMAGE = (DamagedError, UnicodeDecodeError)


@dataclass(frozen=True)
class SchemaVersion:
    """Application id, version and tables by which a store recognizes its files; `holds` names the
    content in error messages, `added` the statements that bring an older version up to date."""

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
            _prepare(db, self._kind, Path(f"{self._path}-wal"))
        except (OSError, StoreError, *_ERRORS) as error:
            db.close()
            name = getattr(error, "sqlite_errorname", "")
            reason = "another process has it" if name == "SQLITE_BUSY" else str(error)
            if name in ("SQLITE_CORRUPT", "SQLITE_NOTADB") or isinstance(error, _DAMAGE):
                reason += f". {_REMEDY}."
            raise StoreError(f"{self._path}: {reason}") from error
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
            if isinstance(error, _ERRORS):
                raise StoreError(f"{self._path}: {error}") from error
            raise


def _lock(db: sqlite3.Connection, wal: Path) -> None:
    """Lock the file, unless its log is damaged: that stays as it is, to be looked into."""
    damage, copy = find_wal_damage(wal), wal.with_name(f"{wal.name}.copy")
    if damage is not None:
        shutil.copy(wal, copy)  # with its mode: others may not read it
    try:
        db.execute("PRAGMA locking_mode = EXCLUSIVE")
        db.execute("BEGIN EXCLUSIVE")
        db.execute("COMMIT")
        if damage is not None:  # and no other process was writing it just now
            db.close()  # which removes the log
            copy.replace(wal)
            raise DamagedError(f"the write-ahead log is damaged: {damage}")
    finally:
        copy.unlink(missing_ok=True)


def _prepare(db: sqlite3.Connection, kind: SchemaVersion, wal: Path) -> None:
    """Lock the file, check that it is intact and of this kind, and bring its tables up to date."""
    # Text that is no UTF-8 is found by the digest of its row; an error would hide all other rows.
    db.text_factory = lambda text: text.decode(errors="surrogateescape")
    _lock(db, wal)
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
    (state,) = db.execute("PRAGMA integrity_check(1)").fetchone()
    if state != "ok":
        raise DamagedError(f"the file is damaged: {state}")
