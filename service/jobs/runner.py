"""Runs the jobs of a store until each has exactly one response."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any, final

import structlog
from starlette.responses import Response

from service.errors import Problem
from service.jobs.dead import DeadJobs
from service.jobs.problems import job_crashed, unknown_job
from service.jobs.refusals import JobRefusals
from service.jobs.store_calls import StoreCalls
from service.observability.request_state import RequestState
from service.observability.stopwatch import StageTimer
from service.storage.jobs.base import JobStore
from service.storage.jobs.job import POISON_THRESHOLD, Job, Status
from service.storage.jobs.request import StoredRequest
from service.supervisor import Supervisor

Replay = Callable[
    [StoredRequest, Callable[[], Awaitable[bytes]], RequestState], Awaitable[Response]
]
"""Runs a stored request through the application, see `service.http.replay`."""
# Problems that are no answer: wait and try again.
_UNAVAILABLE = frozenset(("memories-unavailable", "graphs-unavailable"))
_NOT_YET = _UNAVAILABLE | {"queue-full", "not-ready"}
_AGAIN_S, _POLL_S, _TEND_S = 0.2, 0.25, 1.0
_PATIENCE_S, _REST_S = 5.0, 1.0  # for a place here, and then for somebody else to take it
_MOST_STARTS = 3
_MAX_POSTPONED = 600  # of 6 s at least, so an hour
# Problems that are faults of the servers, besides those of a status of 500.
_DAMAGED = frozenset(("memory-damaged", "graph-damaged"))


@final
class JobRunner:
    """Runs jobs of one store, at most `max_running` at a time; the rest wait in it.

    A job is a stored request that is sent through the application again; it makes no difference
    whether this process accepted it, an earlier one left it or another one stored it. A job that
    was running each time a process crashed is suspected of having crashed it: it runs alone, and
    fails after `_MOST_STARTS` starts. It is dead then, as is a job whose response is 500, that
    needs a damaged memory or graph, or one that is unavailable `_MAX_POSTPONED` times. The store
    has its request, and the operator may requeue it.

    Args:
        max_running: 0 leaves all jobs to other processes.
        trace: called with the timer and the log fields of each job that this process has run.
    """

    def __init__(
        self,
        store: JobStore,
        max_running: int,
        max_jobs: int,
        on_end: Callable[[Status], object],
        trace: Callable[[StageTimer, dict[str, Any]], str] | None = None,
    ) -> None:
        self._store, self._max_jobs, self._on_end = store, max_jobs, on_end
        self._calls = calls = StoreCalls(store)
        self._ask, self._retry_store, self._call = calls.ask, calls.retry, calls.call
        self.dead = DeadJobs(calls, self._count_changed)
        self._max_running, self._trace = max_running, trace
        self._live: dict[str, tuple[Job, asyncio.Task[None]]] = {}  # those that this process has
        self._begun: set[str] = set()
        self._unfinished, self._dead = 0, 0  # in the store, when it was last asked
        self._changed = asyncio.Event()  # there may be a job to run, or a place for one
        self._background: list[asyncio.Task[None]] = []
        self._refusals = JobRefusals()
        self._rest_until = 0.0
        self._left: list[tuple[str, bool]] = []  # stopped, and whether they were begun
        self._drained: float | None = None
        self._replay: Replay | None = None
        self._loading: asyncio.Task[Any] | None = None
        self._supervisor = Supervisor()

    @property
    def unfinished_count(self) -> int:
        """Jobs that wait or run, those of other processes too."""
        return self._unfinished

    @property
    def dead_count(self) -> int:
        """Jobs that failed by a fault of the servers, those of other processes too."""
        return self._dead

    async def start(
        self, replay: Replay, loading: asyncio.Task[Any], supervisor: Supervisor | None = None
    ) -> None:
        """Open the store; run its jobs once `loading` is done.

        A store that cannot be opened is logged and tried again periodically: another process may
        still have it open.
        """
        self._replay, self._loading = replay, loading
        self._supervisor = supervisor or self._supervisor
        await self._open()
        self._background.append(self._supervisor.start("job store", self._heartbeat_loop))

    def require_capacity(self, owner: str = "", size: int = 0) -> None:
        """
        Args:
            size: bytes of the request's body, as far as they are known before it is read.

        Raises:
            Problem: no store, as many jobs as there may be, or `owner` has just been refused a job
                that was no larger, and told to wait.
        """
        self._calls.require_open()
        self._refusals.require_none(owner, size)
        if self._unfinished >= self._max_jobs:
            detail = (
                f"{self._unfinished} of {self._max_jobs} jobs (BASIN_MAX_JOBS) run or wait. "
                "Retry after 1 s."
            )
            raise Problem("queue-full", detail, headers={"retry-after": "1"})

    async def accept(
        self,
        request_id: str,
        sent: StoredRequest,
        body: bytes,
        key: str | None,
        fingerprint: bytes,
        owner: str = "",
    ) -> Job:
        """Store a request; return its job, or the earlier job with the same Idempotency-Key `key`.

        Raises:
            Problem: no room, no store, or the key belongs to another request.
        """
        job = Job(sent.path, request_id, owner=owner)
        try:
            stored = await self._ask(self._store.add, job, sent, body, key, fingerprint)
        except Problem as problem:
            self._refusals.note(owner, len(body), problem)
            raise
        if stored is job:
            self._unfinished += 1
            self._changed.set()
        return self._live[stored.id][0] if stored.id in self._live else stored

    async def get(self, id: str, owner: str = "") -> Job:
        """
        Raises:
            Problem: there is no such job of this owner, or no longer, or no store.
        """
        live = self._live[id][0] if id in self._live else None
        running = live is not None and live.status is Status.RUNNING
        job = live if running else await self._ask(self._store.get, id)
        if job is None or job.owner != owner:
            raise unknown_job()
        return job

    async def get_response(self, id: str, owner: str = "") -> Response:
        """
        Raises:
            Problem: there is no such job of this owner, or it has no answer yet, or no store.
        """
        await self.get(id, owner)
        if answer := await self._ask(self._store.get_response, id):
            return answer
        raise Problem(
            "job-unfinished",
            "The job is waiting or running. Retry after 1 s.",
            headers={"retry-after": "1"},
        )

    async def delete(self, id: str, owner: str = "") -> None:
        """Stop a job if it runs, and drop its answer if it has one.

        Raises:
            Problem: there is no such job of this owner, or no store.
        """
        job = await self.get(id, owner)
        # False if another call has just deleted it, or this one whose first reply was lost.
        is_first = await self._ask(self._store.delete, id)
        if is_first and job.status is Status.RUNNING:
            self._unfinished -= 1
            self._on_end(Status.CANCELLED)
        self._stop(id, Status.CANCELLED)

    async def wait_until_done(self, job: Job, seconds: float) -> bool:
        """Wait for at most `seconds`, and update `job`.

        Returns:
            Whether the job has ended, or was left to a process that cannot be asked from here.
        """
        end = time.monotonic() + seconds
        while job.status is Status.RUNNING:
            left = end - time.monotonic()
            if live := self._live.get(job.id):
                await asyncio.wait({live[1]}, timeout=max(left, 0.0))
                job.status, job.progress = live[0].status, live[0].progress
                if job.id in self._live:
                    return False
                continue
            if self._drained is not None:
                return True
            try:
                stored = await self._ask(self._store.get, job.id)
            except Problem:
                return True
            if stored is None:  # only its owner can delete a job that has not ended
                job.status = Status.CANCELLED
                return True
            job.status, job.progress = stored.status, stored.progress
            if job.status is Status.RUNNING and left <= 0:
                return False
            await asyncio.sleep(min(max(left, 0.0), _POLL_S))
        return True

    def drain(self) -> None:
        """Begin no more jobs: those that wait are left in the store."""
        if self._drained is None:
            self._drained = time.monotonic()
            self._changed.set()
            for id, (_, task) in self._live.items():
                if id not in self._begun:
                    task.cancel()

    async def close(self, seconds: float) -> None:
        """Leave what is not over to the next process, `seconds` after `drain` at the latest."""
        self.drain()
        assert self._drained is not None
        left = max(self._drained + seconds - time.monotonic(), 0.0)
        if running := {task for _, task in self._live.values()}:
            await asyncio.wait(running, timeout=left)
        for task in (*running, *self._background):
            task.cancel()
        await asyncio.gather(*running, *self._background, return_exceptions=True)
        for id, begun in self._left:
            await self._retry_store(self._store.release, id, begun, tries=1)
        await self._calls.close()

    async def _open(self) -> None:
        if not await self._calls.open():
            return
        await self._count()
        if self._unfinished:
            structlog.get_logger().info("jobs found", count=self._unfinished)
        if self._max_running:
            claiming = self._supervisor.start(
                "jobs", self._claim, lambda: self._drained is not None
            )
            self._background.append(claiming)

    async def _heartbeat_loop(self) -> None:
        while True:
            await asyncio.sleep(_TEND_S)
            try:
                await (self._open() if self._calls.refused else self._heartbeat())
            except Exception:  # the jobs that run need the next heartbeat
                structlog.get_logger().exception("no heartbeat of jobs")

    async def _heartbeat(self) -> None:
        await self._retry_store(self._store.expire, tries=1)
        running = [job for job, _ in self._live.values()]
        for id in await self._retry_store(self._store.heartbeat, running, tries=1) or ():
            job = await self._call(self._store.get, id)  # deleted, or ended by another process
            self._stop(id, Status.CANCELLED if job is None else job.status)
        await self._count()

    async def _count(self) -> None:
        counts = await self._retry_store(self._store.count, tries=1)
        self._unfinished, self._dead = counts or (self._unfinished, self._dead)

    async def _count_changed(self) -> None:
        await self._count()
        self._changed.set()

    async def _claim(self) -> None:
        """Take jobs one after the other, while there are places."""
        assert self._loading is not None
        await asyncio.wait({self._loading})
        while self._drained is None:
            self._changed.clear()
            if len(self._live) >= self._max_running:
                await self._changed.wait()
                continue
            if (rest_s := self._rest_until - time.monotonic()) > 0:
                await asyncio.sleep(rest_s)
            try:
                job = await self._retry_store(self._store.claim)
            except Exception:  # of one job; the next call may return another one
                structlog.get_logger().exception("no job claimed")
                await asyncio.sleep(_TEND_S)
                continue
            if job is None:
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._changed.wait(), _POLL_S)
                continue
            if self._drained is not None:
                self._left.append((job.id, False))
                return
            if job.id in self._live:  # it was taken for another's while nothing was heard of us
                continue
            alone = job.starts >= POISON_THRESHOLD
            task = self._launch(job, {task for _, task in self._live.values()} if alone else set())
            if alone:
                await asyncio.wait({task})

    def _launch(self, job: Job, others: set[asyncio.Task[None]]) -> asyncio.Task[None]:
        """Run a job, after `others`."""

        async def run() -> None:
            try:
                if others:
                    await asyncio.wait(others)
                await self._execute(job)
            except asyncio.CancelledError:
                if job.status is Status.RUNNING:
                    self._left.append((job.id, job.id in self._begun))
                raise
            except Exception:  # its start counts, so that it ends after some
                structlog.get_logger().exception("a job failed", request_id=job.request_id)
                await self._retry_store(self._store.release, job.id, False, tries=1)
            finally:
                self._begun.discard(job.id)
                del self._live[job.id]
                self._changed.set()

        task = asyncio.create_task(run())
        self._live[job.id] = job, task
        return task

    def _stop(self, id: str, status: Status) -> None:
        """Stop a job that has `status` in the store, or is deleted."""
        if id in self._live:
            job, task = self._live[id]
            job.status = status
            task.cancel()

    async def _execute(self, job: Job) -> None:
        """Give the job its answer."""
        self._begun.add(job.id)
        starts = await self._retry_store(self._store.mark_started, job.id)
        if not starts:
            return  # it is deleted, damaged or another's
        job.starts = starts
        about: dict[str, Any] = {"key": job.owner or None, "route": "unmatched"}
        watch, fault = StageTimer(), ""
        try:
            answer, fault = await self._answer(job, about, watch)
            if answer is None:
                self._rest_until = time.monotonic() + _REST_S
                await self._retry_store(self._store.release, job.id, True, True)
                return
        except Problem as problem:  # its stored request is damaged
            answer = problem.response(job.request_id)
        except Exception:  # of ours; whatever it is, the job ends
            structlog.get_logger().exception("a job failed", request_id=job.request_id)
            problem = Problem(
                "internal-error",
                "An unexpected error occurred; the server log has it under this request_id.",
            )
            answer, fault = problem.response(job.request_id), problem.kind
        status = Status.DONE if answer.status_code < 400 else Status.FAILED
        if await self._retry_store(self._store.complete, job, status, answer, fault):
            job.status = status
            self._unfinished -= 1
            self._on_end(status)
            about |= {"request_id": job.request_id, "starts": job.starts}
            about["status"] = answer.status_code
            if self._trace is not None:
                about["trace_id"] = self._trace(watch, about)
            structlog.get_logger().info("job", **about)

    async def _answer(
        self, job: Job, about: dict[str, Any], timer: StageTimer
    ) -> tuple[Response | None, str]:
        """Return the response of a job, or None if it is to be postponed, and the fault of the
        servers that it reports, if any; fill `about`."""
        if job.starts > _MOST_STARTS:
            problem = job_crashed(_MOST_STARTS)
            return problem.response(job.request_id), problem.kind
        assert self._replay is not None
        sent = await self._retry_store(self._store.get_request, job.id)
        body = partial(self._retry_store, self._store.get_body, job.id)
        end = time.monotonic() + _PATIENCE_S
        while True:
            state = RequestState(job.request_id, timer, job.progress, job_owner=job.owner)
            answer = await self._replay(sent, body, state)
            about |= {"model": state.model, "cost": state.cost, "route": state.route}
            if state.problem not in _NOT_YET:
                is_fault = answer.status_code == 500 or state.problem in _DAMAGED
                return answer, (state.problem or "internal-error") if is_fault else ""
            if time.monotonic() > end:
                is_last = job.postponed >= _MAX_POSTPONED and state.problem in _UNAVAILABLE
                return (answer, state.problem) if is_last else (None, "")
            await asyncio.sleep(_AGAIN_S)
