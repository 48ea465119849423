"""A job, with its status and progress."""

from __future__ import annotations

import secrets
import time
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from service.observability.progress import Progress

POISON_THRESHOLD = 2
"""Number of starts from which a job is suspected of crashing the process."""
LOST = "lost"
"""Fault of a job that Redis acknowledged and then lost."""


class Status(StrEnum):
    """Status of a job; `failed` means that its response is a problem document."""

    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


@dataclass
class Job:
    """An accepted request; `starts` counts how often it was started, `owner` is the name of the
    API key that it was sent with, `postponed` counts how often a process put it back unanswered."""

    route: str
    request_id: str
    id: str = field(default_factory=lambda: secrets.token_urlsafe(16))
    created: float = field(default_factory=time.time)
    starts: int = 0
    status: Status = Status.RUNNING
    progress: Progress = field(default_factory=Progress)
    owner: str = ""
    postponed: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Return the document that a client sees."""
        answered = self.status in (Status.DONE, Status.FAILED)
        return {
            "id": self.id,
            "route": self.route,
            "status": self.status,
            "created": self.created,
            "progress": asdict(self.progress),
            "result": f"/jobs/{self.id}/result" if answered else None,
            "request_id": self.request_id,
        }


@dataclass(frozen=True)
class DeadJob:
    """A job that failed by a fault of the servers or of their store, for the operator.

    Attributes:
        reason: the kind of its problem, or what of its entry is damaged.
        failed: seconds since 1970.
        has_request: whether its request is stored, so that it can be run again.
    """

    id: str
    owner: str
    route: str
    request_id: str
    created: float
    reason: str
    failed: float
    starts: int
    has_request: bool
