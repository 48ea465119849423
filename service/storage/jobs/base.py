"""Where jobs are kept: requests until they are answered, then the answers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from starlette.responses import Response

from service.errors import Problem
from service.storage.jobs.job import Job, Status
from service.storage.jobs.request import StoredRequest

OVERHEAD = 4096  # bytes of a job beside its body or answer


@dataclass(frozen=True)
class JobLimits:
    """What may be kept: jobs that are not over, bytes of requests and answers, and seconds for
    which a job that is over stays. A key may begin no more once it has half of the jobs or of the
    bytes. Where bytes run out its own oldest answers go first, then others'."""

    max_jobs: int
    max_bytes: int
    keep_s: float


def queue_full_error(count: int, half: bool = False) -> Problem:
    """Return the error for `count` unfinished jobs; `half`: of one API key, which may have half."""
    limits = "BASIN_MAX_JOBS or BASIN_MAX_JOB_BYTES"
    detail = f"The job queue is full: {count} jobs run or wait ({limits}). Retry after 1 s."
    if half:
        detail = f"{count} jobs of this API key run or wait, half of {limits}. Retry after 1 s."
    return Problem("queue-full", detail, headers={"retry-after": "1"})


class JobStore(ABC):
    """Jobs that outlive the process. Every change is one transaction, and lasts once it returns.

    Called from one thread, which may block. All methods raise `StoreError`.
    """

    @abstractmethod
    def open(self) -> None:
        """Make it ready, for this process alone where several cannot have it."""

    @abstractmethod
    def close(self) -> None:
        """Leave the store. May be called on a store that is not open."""

    @abstractmethod
    def add(
        self, job: Job, sent: StoredRequest, body: bytes, key: str | None, fingerprint: bytes
    ) -> Job:
        """Keep a request; `job`, or the job that had this `key` before.

        Raises:
            Problem: no room, or the key belongs to a request of another `fingerprint`.
        """

    @abstractmethod
    def claim(self) -> Job | None:
        """A job that nobody runs, for this process: suspects, which were running whenever a process
        ended, and then in the order they came. None where there is none."""

    @abstractmethod
    def mark_started(self, id: str) -> int | None:
        """Count that a job that was claimed is begun; how often it has been, or None where it has
        been forgotten or is another's by now."""

    @abstractmethod
    def release(self, id: str, begun: bool) -> None:
        """Take `claim` back, and `begin`: the job was stopped, and it was not its fault."""

    @abstractmethod
    def heartbeat(self, jobs: Sequence[Job]) -> list[str]:
        """Tell that these run, and how far they have come; ids of those forgotten meanwhile."""

    @abstractmethod
    def count_unfinished(self) -> int:
        """How many jobs wait or run, of all processes."""

    @abstractmethod
    def get_request(self, id: str) -> StoredRequest:
        """The request of a job that is not over."""

    @abstractmethod
    def get_body(self, id: str) -> bytes:
        """The body of that request."""

    @abstractmethod
    def complete(self, job: Job, status: Status, answer: Response) -> bool:
        """Keep the answer in place of the request, and how far `job` came; it is over.

        Nothing changes where the job is over already or forgotten; False, unless it was this
        answer of this process that was kept before.
        """

    @abstractmethod
    def get(self, id: str) -> Job | None:
        """A job, while it is kept."""

    @abstractmethod
    def get_response(self, id: str) -> Response | None:
        """Its answer, once there is one."""

    @abstractmethod
    def delete(self, id: str) -> bool:
        """Forget a job; was there one?"""

    @abstractmethod
    def expire(self) -> None:
        """Forget what has been kept for long enough."""
