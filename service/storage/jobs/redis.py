"""Job store in Redis: any server accepts jobs, any server or worker runs them.

See `redis_common` for how they are stored, and `seal` for how what is read is checked.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from itertools import islice
from typing import Any, final

import orjson
import structlog
from starlette.responses import Response

from service.errors import Problem
from service.storage.jobs.base import OVERHEAD, JobLimits, JobStore, queue_full_error
from service.storage.jobs.job import LOST, DeadJob, Job, Status
from service.storage.jobs.redis_common import JOB, KEY, SETS
from service.storage.jobs.redis_scripts import make_scripts
from service.storage.jobs.remembered import RememberedJobs, State
from service.storage.jobs.request import StoredRequest
from service.storage.jobs.seal import find_damage
from service.storage.jobs.stored_job import (
    ANSWER_FIELDS,
    JOB_FIELDS,
    Fields,
    damaged_job,
    decode_answer,
    decode_number,
    decode_request,
    decode_text,
    find_answer_fault,
    find_fault,
    make_job,
    seal_answer,
    seal_request,
)
from service.storage.redis_client import PREFIX, RedisClient, RedisUnavailableError
from service.storage.sqlite import StoreError

_DEAD = ("owner", "route", "request_id", "fault", "created", "starts")
_AT_A_TIME = 500  # ids in one call of a script


@final
class RedisJobStore(JobStore):
    """Jobs of all servers, which share the limits.

    A job belongs to the process that claimed it while that sends heartbeats; afterwards it can be
    claimed again, which counts as another start. The first response is stored; any process would
    compute the same one.

    Args:
        lease_s: seconds without a heartbeat after which a job can be claimed again.
    """

    def __init__(self, link: RedisClient, limits: JobLimits, lease_s: float = 15.0) -> None:
        self._link, self._limits = link, limits
        self._holder = secrets.token_hex(8)
        self._remembered = RememberedJobs(limits.keep_s)
        self._scripts = {
            name: link.blocking_client.register_script(script)
            for name, script in make_scripts(lease_s).items()
        }
        link.add_restore(self._restore)

    def open(self) -> None:
        self._run("count")

    def close(self) -> None:
        pass

    def add(
        self, job: Job, sent: StoredRequest, body: bytes, key: str | None, fingerprint: bytes
    ) -> Job:
        size = OVERHEAD + len(body)
        if size > self._limits.max_bytes:
            detail = (
                f"A job may have at most {max(self._limits.max_bytes - OVERHEAD, 0)} bytes of "
                "body (BASIN_MAX_JOB_BYTES). Send less in one request."
            )
            raise Problem("body-too-large", detail)
        fields = {
            **seal_request(job, sent, body, fingerprint),
            "status": job.status.encode(),
            "body": body,
        }
        limits = (self._limits.max_jobs, self._limits.max_bytes, self._limits.keep_s)
        head = (job.id, size, key or "", fingerprint, *limits, job.owner)
        pairs = [part for pair in fields.items() for part in pair]
        what, answer = self._run("add", *head, *pairs)
        if what == b"reused" and self.get(decode_text(answer)) is not None:
            # Reading it has freed the key of a job whose fingerprint is damaged.
            what, answer = self._run("add", *head, *pairs)
        if what in (b"full", b"half"):
            raise queue_full_error(answer, half=what == b"half")
        if what == b"reused":
            raise Problem(
                "key-reused",
                "This Idempotency-Key was sent with another request. Use a new key for each "
                "request.",
            )
        stored = job if what == b"added" else self.get(decode_text(answer))
        if stored is None:
            raise StoreError("the job of this key has just expired")
        self._remembered.add(stored)
        return stored

    def claim(self) -> Job | None:
        while (row := self._run("claim", self._holder, *JOB_FIELDS)) is not None:
            id, values = row
            fields: Fields = dict(zip(JOB_FIELDS, values, strict=True))
            if self._check(id, find_fault(id, fields)):
                job = make_job(decode_text(id), fields)
                self._remembered.add(job)
                return job
        return None

    def mark_started(self, id: str) -> int | None:
        return self._run("mark started", id, self._holder)

    def release(self, id: str, begun: bool, postpone: bool = False) -> None:
        self._run("release", id, self._holder, int(begun), int(postpone))

    def heartbeat(self, jobs: Sequence[Job]) -> list[str]:
        encoded = [part for job in jobs for part in (job.id, orjson.dumps(asdict(job.progress)))]
        if not encoded or not (gone := self._run("heartbeat", self._holder, *encoded)):
            return []
        self._require_history()
        return [decode_text(id) for id in gone]

    def count(self) -> tuple[int, int]:
        unfinished, dead = self._run("count")
        return unfinished, dead

    def get_request(self, id: str) -> StoredRequest:
        fields = self._require(id, *JOB_FIELDS)
        if not self._check(id, find_fault(id.encode(), fields)):
            raise damaged_job()
        return decode_request(fields["sent"])

    def get_body(self, id: str) -> bytes:
        fields = self._require(id, "body", "body_seal")
        body = fields["body"]
        if not self._check(id, find_damage(fields["body_seal"], body)) or body is None:
            raise damaged_job()
        return body

    def complete(self, job: Job, status: Status, answer: Response, fault: str = "") -> bool:
        fields = {
            **seal_answer(job.id, status, answer),
            "progress": orjson.dumps(asdict(job.progress)),
        }
        limits = (self._limits.keep_s, self._limits.max_bytes)
        pairs = [part for pair in fields.items() for part in pair]
        is_stored = self._run("complete", job.id, *limits, self._holder, fault, *pairs) == 1
        self._remembered.set_state(job.id, State.FINISHED)
        return is_stored

    def get(self, id: str) -> Job | None:
        fields = self._read(id, *JOB_FIELDS)
        if fields is None:
            return None
        if not fields["fault"] and not self._check(id, find_fault(id.encode(), fields)):
            fields = {**fields, "status": Status.FAILED.encode()}
        return make_job(id, fields)

    def get_response(self, id: str) -> Response | None:
        fields = self._read(id, "fault", "request_id", *ANSWER_FIELDS, "answer_seal")
        if fields is None or fields["ended"] is None:
            return None
        request_id = decode_text(fields["request_id"])
        if fields["fault"] and fields["code"] is None:
            problem = _lost_job() if fields["fault"] == LOST.encode() else damaged_job()
            return problem.response(request_id)
        if not self._check(id, find_answer_fault(id, fields)):
            return damaged_job().response(request_id)
        return decode_answer(fields)

    def list_dead(self) -> list[DeadJob]:
        return [job for _, job in self._list_dead()]

    def requeue(self, id: str) -> bool:
        raw = self._find_dead(id)
        return raw is not None and self._run("requeue", raw, Status.RUNNING) == 1

    def delete(self, id: str) -> bool:
        raw = self._find_dead(id) if "\\" in id else id
        is_deleted = self._run("delete", raw or id, self._limits.keep_s) == 1
        self._remembered.add(Job("", "", id), State.DELETED)
        return is_deleted

    def expire(self) -> None:
        self._run("expire", self._limits.keep_s)
        if not (ids := self._remembered.next_jobs()):
            return
        states = dict(zip(ids, self._run("read states", *ids), strict=True))
        self._require_history()  # else what is absent is lost, and not deleted elsewhere
        self._remembered.forget(id for id, state in states.items() if state == 0)
        for id, state in states.items():
            if state:
                self._remembered.set_state(id, State(state))

    def _restore(self) -> None:
        """Mend what is damaged, fail the jobs that Redis has lost, and delete again those that it
        had deleted. Jobs that are unfinished again are run again, with the same response."""
        self._mend()
        lost, again = 0, 0
        for jobs in _split(self._remembered.list_jobs()):
            known = [job for job, state in jobs if state is not State.DELETED]
            for job, state in jobs:
                if state is State.DELETED:
                    self._call("delete", job.id, self._limits.keep_s)
            about = [
                part
                for job in known
                for part in (job.id, job.route, job.request_id, repr(job.created), job.owner)
            ]
            lost += self._call("mark lost", *about)
            finished = [job.id for job, state in jobs if state is State.FINISHED]
            again += self._call("read states", *finished).count(State.UNFINISHED.value)
        if lost:
            self._link.count("lost", "jobs", lost)
            structlog.get_logger().error("redis lost jobs", count=lost)
        if again:
            structlog.get_logger().warning("redis lost responses; jobs run again", count=again)

    def _mend(self) -> None:
        """Put each job into the set where it belongs, and count again."""
        scan = self._link.blocking_client.scan_iter
        with self._link.guard("jobs"):
            for keys in _split(scan(f"{PREFIX}job*", count=1000)):
                for script, prefix in (("place", JOB.encode()), ("free keys", KEY.encode())):
                    ids = [key.removeprefix(prefix) for key in keys if key.startswith(prefix)]
                    self._call(script, *ids)
            self._call("mend")

    def _check(self, id: str | bytes, damage: str | None) -> bool:
        """Fail a job if it is damaged; return whether it is not."""
        if damage is not None:
            self._run("fail damaged", id, damage)
        return damage is None

    def _list_dead(self) -> Iterator[tuple[bytes, DeadJob]]:
        for id, failed, has_request, values in self._run("list dead", *_DEAD):
            *texts, created, starts = values
            owner, route, request_id, fault = map(decode_text, texts)
            job = DeadJob(
                *(decode_text(id), owner, route, request_id, decode_number(created), fault),
                *(float(failed), int(decode_number(starts)), bool(has_request)),
            )
            yield id, job

    def _find_dead(self, id: str) -> bytes | None:
        """The id in Redis of a dead job; what is no UTF-8 there is escaped in `DeadJob.id`."""
        return next((raw for raw, job in self._list_dead() if job.id == id), None)

    def _require(self, id: str, *names: str) -> Fields:
        """Read fields of an unfinished job."""
        fields = self._read(id, *names)
        if fields is None:
            raise StoreError("no such job")
        if fields["ended"] is not None:
            raise damaged_job()  # reading it has shown it
        return fields

    def _read(self, id: str, *names: str) -> Fields | None:
        values = self._run("read", id, self._limits.keep_s, *names)
        if values is None:
            self._require_history()
            return None
        return dict(zip(("ended", *names), values, strict=True))

    def _require_history(self) -> None:
        """Check that what is absent is not lost."""
        try:
            with self._link.guard("jobs"):
                self._link.require_history()
        except RedisUnavailableError as error:
            raise StoreError(str(error)) from error

    def _run(self, name: str, *args: Any) -> Any:
        try:
            return self._call(name, *args)
        except RedisUnavailableError as error:
            raise StoreError(str(error)) from error

    def _call(self, name: str, *args: Any) -> Any:
        with self._link.guard("jobs"):
            result, damaged = self._scripts[name](args=args)
        keys = [decode_text(key) for key in damaged[::2]]
        for key, reason in zip(keys, damaged[1::2], strict=True):
            self._link.report_damaged("jobs", key, decode_text(reason))
        if not set(keys).isdisjoint(SETS):
            self._mend()  # finds the jobs that were in this set
        return result


def _lost_job() -> Problem:
    return Problem(
        "job-lost", "Redis lost this job after it had been accepted. Send the request again."
    )


def _split(items: Iterable[Any]) -> Iterator[list[Any]]:
    rest = iter(items)
    return iter(lambda: list(islice(rest, _AT_A_TIME)), [])
