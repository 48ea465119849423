"""Interface of the job store: requests until they are finished, then their responses."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from starlette.responses import Response

from service.errors import Problem
from service.storage.jobs.job import DeadJob, Job, Status
from service.storage.jobs.request import StoredRequest

OVERHEAD = 4096  # bytes of a job besides its body or response
RETRY_S = 1  # after which a client that was refused a job may ask again
MAX_DEAD = 100  # dead jobs that are listed; older ones expire like others


@dataclass(frozen=True)
class JobLimits:
    """Maximum number of unfinished jobs, maximum bytes of requests and responses, and seconds for
    which a finished job is stored. One API key may have half of the jobs that wait or run, and half
    of the bytes for their requests. If bytes run out, responses are deleted, each time the oldest
    of the key that has most bytes."""

    max_jobs: int
    max_bytes: int
    keep_s: float


def queue_full_error(count: int, half: bool = False) -> Problem:
    """Return the error for `count` unfinished jobs; `half`: of one API key, which may have half."""
    limits = "BASIN_MAX_JOBS or BASIN_MAX_JOB_BYTES"
    reason = f"The job queue is full: {count} jobs run or wait ({limits})."
    if half:
        reason = f"{count} jobs of this API key run or wait, half of {limits}."
    detail = f"{reason} Retry after {RETRY_S} s."
    return Problem("queue-full", detail, headers={"retry-after": str(RETRY_S)})


class JobStore(ABC):
    """Durable jobs. Every change is one transaction, and is durable once the method returns.

    Called from one thread, which may block. All methods raise `StoreError`.
    """

    @abstractmethod
    def open(self) -> None:
        """Open the store, locked for this process if it cannot be shared."""

    @abstractmethod
    def close(self) -> None:
        """Close the store; does nothing if it is not open."""

    @abstractmethod
    def add(
        self, job: Job, sent: StoredRequest, body: bytes, key: str | None, fingerprint: bytes
    ) -> Job:
        """Store a request; return `job`, or the earlier job with the same Idempotency-Key `key`.

        Raises:
            Problem: a limit, or the key was sent with a request of another `fingerprint`.
        """

    @abstractmethod
    def claim(self) -> Job | None:
        """Assign a waiting job to this process, or return None. First come suspects, which were
        running each time a process ended, then the jobs of the API key of which fewest run, in
        order of arrival."""

    @abstractmethod
    def mark_started(self, id: str) -> int | None:
        """Count a start of a claimed job; return the number of starts, or None if the job was
        deleted or belongs to another process by now."""

    @abstractmethod
    def release(self, id: str, begun: bool, postpone: bool = False) -> None:
        """Undo `claim`, and `mark_started` if `begun`: the job was stopped for another reason.

        Where it is to `postpone`, the job waits after all others, also if it is a suspect."""

    @abstractmethod
    def heartbeat(self, jobs: Sequence[Job]) -> list[str]:
        """Record that these jobs run, and their progress; return the ids of deleted ones."""

    @abstractmethod
    def count(self) -> tuple[int, int]:
        """Return the numbers of jobs that wait or run, in all processes, and of dead ones."""

    @abstractmethod
    def get_request(self, id: str) -> StoredRequest:
        """Return the request of an unfinished job.

        Raises:
            Problem: it is damaged; the job is dead now.
        """

    @abstractmethod
    def get_body(self, id: str) -> bytes:
        """Return the body of that request.

        Raises:
            Problem: it is damaged; the job is dead now.
        """

    @abstractmethod
    def complete(self, job: Job, status: Status, answer: Response, fault: str = "") -> bool:
        """Replace the request by the response, and store the progress of `job`, which is finished.

        With a `fault` of the server the job is dead: its request is stored too, until it is
        requeued, dropped or displaced by `MAX_DEAD` later ones or for lack of room.

        Does nothing if the job is finished already or deleted; returns False then, unless this
        process stored this response before.
        """

    @abstractmethod
    def get(self, id: str) -> Job | None:
        """Return a job, until it expires."""

    @abstractmethod
    def get_response(self, id: str) -> Response | None:
        """Return the response of a job, once there is one."""

    @abstractmethod
    def list_dead(self) -> list[DeadJob]:
        """Return the dead jobs, the latest first."""

    @abstractmethod
    def requeue(self, id: str) -> bool:
        """Let a dead job wait again, as if it had never been started; return whether there is
        one with its request."""

    @abstractmethod
    def delete(self, id: str) -> bool:
        """Delete a job; return whether there was one."""

    @abstractmethod
    def expire(self) -> None:
        """Delete jobs that have expired."""
