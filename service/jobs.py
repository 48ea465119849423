"""Answers that are fetched later: what `Prefer: respond-async` asks for.

Jobs live in this process and end with it. Whoever knows the id of a job may read and delete it; ids
cannot be guessed.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Coroutine
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

import structlog
from starlette.responses import Response

from service.errors import Problem

_OVERHEAD = 4096  # bytes of a finished job beside its answer


@dataclass
class Progress:
    """How far work has come: written by the compute thread, read by whoever watches."""

    step: int = 0
    steps: int | None = None
    energy: float | None = None


class Status(StrEnum):
    """Where a job stands: it waits or runs, or it is over. A problem is an answer too."""

    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


@dataclass(frozen=True)
class Job:
    """Work and, some day, its answer."""

    route: str
    request_id: str
    progress: Progress
    task: asyncio.Task[Response]
    id: str = field(default_factory=lambda: secrets.token_urlsafe(16))
    created: float = field(default_factory=time.time)

    @property
    def status(self) -> Status:
        if not self.task.done():
            return Status.RUNNING
        if self.task.cancelled():
            return Status.CANCELLED
        return Status.DONE if self.task.result().status_code < 400 else Status.FAILED

    @property
    def answer(self) -> Response | None:
        """None until there is one."""
        over = self.task.done() and not self.task.cancelled()
        return self.task.result() if over else None

    def told(self) -> dict[str, Any]:
        """What a client is told of it."""
        return {
            "id": self.id,
            "route": self.route,
            "status": self.status,
            "created": self.created,
            "progress": asdict(self.progress),
            "result": None if self.answer is None else f"/jobs/{self.id}/result",
            "request_id": self.request_id,
        }


class Jobs:
    """Jobs by id. Those that are over stay for `keep_s` seconds, all together in `max_bytes`.

    Each holds a place in the engine's queue until it ends; `max_running` leaves some to others.
    """

    def __init__(
        self,
        max_running: int,
        max_bytes: int,
        keep_s: float,
        on_end: Callable[[Status], object],
    ) -> None:
        self._max_running, self._max_bytes = max_running, max_bytes
        self._keep_s, self._on_end = keep_s, on_end
        self._jobs: dict[str, Job] = {}
        self._over: dict[str, tuple[float, int]] = {}  # when they ended, in that order, and bytes
        self._bytes = 0

    def require_room(self) -> None:
        """Refuse with 429 while as many jobs run or wait as may."""
        if len(self._jobs) - len(self._over) >= self._max_running:
            detail = f"{self._max_running} jobs run or wait already"
            raise Problem("queue-full", detail, headers={"retry-after": "1"})

    def start(
        self, work: Coroutine[Any, Any, Response], route: str, request_id: str, progress: Progress
    ) -> Job:
        """Begin `work`, which is not cancelled by anyone but `forget` and `close`."""
        task = asyncio.ensure_future(answered(work, request_id))
        job = Job(route, request_id, progress, task)
        self._jobs[job.id] = job
        task.add_done_callback(lambda _: self._ended(job))
        return job

    def get(self, name: str) -> Job:
        """
        Raises:
            Problem: there is no such job, or no longer.
        """
        self._drop_old()
        if name not in self._jobs:
            raise Problem("unknown-job", f"jobs are forgotten {self._keep_s:g} s after they end")
        return self._jobs[name]

    def forget(self, name: str) -> None:
        """Stop a job if it runs, and drop its answer if it has one."""
        self.get(name).task.cancel()
        self._drop(name)

    async def close(self) -> None:
        """Stop them all."""
        tasks = [job.task for job in self._jobs.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _ended(self, job: Job) -> None:
        self._on_end(job.status)
        if job.id in self._jobs:
            size = _size(job)
            self._over[job.id] = time.monotonic(), size
            self._bytes += size
            self._drop_old()
            asyncio.get_running_loop().call_later(self._keep_s + 1, self._drop_old)

    def _drop_old(self) -> None:
        oldest = time.monotonic() - self._keep_s
        while self._over:
            name, (ended, _) = next(iter(self._over.items()))
            if ended >= oldest and self._bytes <= self._max_bytes:
                break
            self._drop(name)

    def _drop(self, name: str) -> None:
        del self._jobs[name]
        _, size = self._over.pop(name, (0.0, 0))
        self._bytes -= size


def _size(job: Job) -> int:
    return _OVERHEAD + (0 if job.answer is None else len(job.answer.body))


async def answered(work: Coroutine[Any, Any, Response], request_id: str) -> Response:
    """What `work` answers; where it raises, the problem that says so."""
    try:
        return await work
    except Problem as problem:
        return problem.response(request_id)
    except Exception:
        structlog.get_logger().exception("job failed", request_id=request_id)
        problem = Problem("internal-error", "the log has the reason under this request_id")
        return problem.response(request_id)
