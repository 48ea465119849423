"""The clock by which the jobs of a SQLite file age."""

from __future__ import annotations

import sqlite3
import time
from typing import final

_STORED_S = 60.0  # a write each minute; of a killed process at most that much is not counted


@final
class FileClock:
    """Seconds for which processes have had the file open, from the time when that was first.

    So no job is lost, and none stays for good, where the clock of the machine is set.
    """

    def __init__(self) -> None:
        self._offset_s = self._stored_s = 0.0  # the first is to the monotonic clock

    def start(self, db: sqlite3.Connection) -> None:
        """Go on from where the last process left it; the wall clock counts in a new file alone."""
        db.execute("CREATE TABLE IF NOT EXISTS clock (now REAL NOT NULL)")
        row = db.execute("SELECT now FROM clock").fetchone()
        if row is None:
            db.execute("INSERT INTO clock VALUES (0)")
            row = (time.time(),)
        # Jobs of an older version ended by the wall clock, which may have been ahead.
        (ended,) = db.execute("SELECT MAX(ended) FROM jobs").fetchone()
        self._offset_s = max(row[0], ended or 0.0) - time.monotonic()
        self.store(db)

    def now(self) -> float:
        return self._offset_s + time.monotonic()

    def store(self, db: sqlite3.Connection) -> float:
        """Store the time and return it."""
        self._stored_s = self.now()
        db.execute("UPDATE clock SET now = ?", [self._stored_s])
        return self._stored_s

    def store_each_minute(self, db: sqlite3.Connection) -> float:
        """Store the time if it was last stored a minute ago, and return it."""
        return self.store(db) if self.now() - self._stored_s > _STORED_S else self.now()
