"""A job: where it stands and how far it has come."""

from __future__ import annotations

import secrets
import time
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from service.observability.progress import Progress

POISON_THRESHOLD = 2
"""Starts from which a job is suspected of ending the process."""


class Status(StrEnum):
    """Where a job stands: it waits or runs, or it is over. A problem is an answer too."""

    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


@dataclass
class Job:
    """A request whose answer is promised; `starts` counts how often it was begun, `owner` names
    the key that it came with."""

    route: str
    request_id: str
    id: str = field(default_factory=lambda: secrets.token_urlsafe(16))
    created: float = field(default_factory=time.time)
    starts: int = 0
    status: Status = Status.RUNNING
    progress: Progress = field(default_factory=Progress)
    owner: str = ""

    def to_dict(self) -> dict[str, Any]:
        """What a client is told of it."""
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
