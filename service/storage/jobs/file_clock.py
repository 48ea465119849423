"""The clock by which the jobs of a SQLite file age."""

from __future__ import annotations

import sqlite3
import time
from typing import final

import structlog

from service.storage.jobs.seal import find_damage, make_seal

_STORED_S = 60.0  # a write each minute; of a killed process at most that much is not counted
_MAX_S = 1e15  # no end of a job is later; SQLite sorts text and blobs above all numbers


@final
class FileClock:
    """Seconds for which processes have had the file open, from the time when that was first.

    So no job is lost, and none stays for good, where the clock of the machine is set. The time is
    stored with its seal, for it decides what is deleted.
    """

    def __init__(self) -> None:
        self._offset_s = self._stored_s = 0.0  # the first is to the monotonic clock

    def start(self, db: sqlite3.Connection) -> None:
        """Go on from where the last process left it; where that is damaged or of an older version,
        from the latest end of a job. The wall clock counts in a file without either."""
        db.execute("CREATE TABLE IF NOT EXISTS clock (now BLOB NOT NULL)")
        rows = db.execute("SELECT now FROM clock").fetchall()
        stored = _unseal(rows[0][0]) if rows else None
        if stored is None:
            (ended,) = db.execute(
                "SELECT MAX(ended) FROM jobs WHERE ended < ?", [_MAX_S]
            ).fetchone()
            stored = ended or time.time()
            if rows:
                structlog.get_logger().error("damaged clock of jobs", goes_on_from=stored)
        self._offset_s = stored - time.monotonic()
        db.execute("DELETE FROM clock")
        db.execute("INSERT INTO clock VALUES (?)", [_seal(stored)])
        # Such an end is damaged: the job would never expire.
        db.execute("UPDATE jobs SET ended = ? WHERE ended > ?", [stored, stored])

    def now(self) -> float:
        return self._offset_s + time.monotonic()

    def store(self, db: sqlite3.Connection) -> float:
        """Store the time and return it."""
        self._stored_s = self.now()
        db.execute("UPDATE clock SET now = ?", [_seal(self._stored_s)])
        return self._stored_s

    def store_each_minute(self, db: sqlite3.Connection) -> float:
        """Store the time if it was last stored a minute ago, and return it."""
        return self.store(db) if self.now() - self._stored_s > _STORED_S else self.now()


def _seal(now: float) -> bytes:
    text = repr(now).encode()
    return b"%b %b" % (text, make_seal(text))


def _unseal(value: object) -> float | None:
    """Return the time of what `_seal` returned, or None of anything else."""
    text, _, seal = value.partition(b" ") if isinstance(value, bytes) else (b"", b"", b"")
    return None if find_damage(seal, text) else float(text)
