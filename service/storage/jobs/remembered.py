"""Which jobs a server knows of, so that it notices if Redis has lost them."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from threading import Lock
from typing import final

from service.storage.jobs.job import Job

_MAX_JOBS = 10_000
_MAX_CHECKED = 1000  # at a time


class State(Enum):
    """What a server knows of a job."""

    UNFINISHED = 1
    FINISHED = 2
    DELETED = 3


@dataclass
class _Entry:
    job: Job
    state: State
    since: float  # of the state, by the monotonic clock


@final
class RememberedJobs:
    """Jobs that this server accepted, ran or deleted: at most 10,000, and those that are finished
    or deleted for `keep_s`, as long as their responses are stored. Safe for several threads."""

    def __init__(self, keep_s: float) -> None:
        self._keep_s = keep_s
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        self._lock = Lock()

    def add(self, job: Job, state: State = State.UNFINISHED) -> None:
        """Remember a job that this server accepted, ran or deleted."""
        with self._lock:
            self._entries[job.id] = _Entry(job, state, time.monotonic())
            if len(self._entries) > _MAX_JOBS:
                self._entries.popitem(last=False)

    def set_state(self, id: str, state: State) -> None:
        """Change the state of a job, if it is remembered."""
        with self._lock:
            entry = self._entries.get(id)
            if entry is not None and entry.state is not state:
                entry.state, entry.since = state, time.monotonic()

    def forget(self, ids: Iterable[str]) -> None:
        with self._lock:
            for id in ids:
                self._entries.pop(id, None)

    def list_jobs(self) -> list[tuple[Job, State]]:
        """Return all jobs that are remembered, without those whose time is over."""
        with self._lock:
            self._expire()
            return [(entry.job, entry.state) for entry in self._entries.values()]

    def next_jobs(self) -> list[str]:
        """Return the ids of jobs that are not deleted, others with each call where they are more
        than 1,000."""
        with self._lock:
            self._expire()
            ids = list(self._entries)[:_MAX_CHECKED]
            for id in ids:
                self._entries.move_to_end(id)
            return [id for id in ids if self._entries[id].state is not State.DELETED]

    def _expire(self) -> None:
        end = time.monotonic() - self._keep_s
        for id in [
            id
            for id, entry in self._entries.items()
            if entry.state is not State.UNFINISHED and entry.since < end
        ]:
            del self._entries[id]
