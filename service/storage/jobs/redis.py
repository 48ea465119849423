"""Job store in Redis: any server accepts jobs, any server or worker runs them.

See `redis_common` for how they are stored, and `seal` for how what is read is checked.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import islice
from typing import Any, final

import orjson
import structlog
from pydantic import TypeAdapter
from starlette.responses import Response

from service.errors import Problem
from service.observability.progress import Progress
from service.storage.jobs.base import OVERHEAD, JobLimits, JobStore, queue_full_error
from service.storage.jobs.job import LOST, DeadJob, Job, Status
from service.storage.jobs.redis_common import JOB, SETS
from service.storage.jobs.redis_scripts import make_scripts
from service.storage.jobs.remembered import RememberedJobs, State
from service.storage.jobs.request import StoredRequest
from service.storage.jobs.seal import find_damage, make_seal
from service.storage.redis_client import RedisClient, RedisUnavailableError
from service.storage.sqlite import StoreError

_SEALED = ("route", "request_id", "created", "owner", "fingerprint", "sent", "body_seal")
_JOB = (*_SEALED, "seal", "fault", "starts", "status", "progress")
_ANSWER = ("status", "code", "headers", "answer")
_DEAD = ("owner", "route", "request_id", "created", "fault", "starts")
_AT_A_TIME = 500  # ids in one call of a script
_LOST = "Redis lost this job after it had been accepted. Send the request again."
_DAMAGED = (
    "What the job store holds of this job is damaged, so it has no response. Send the request "
    "again."
)
_PROGRESS = TypeAdapter(Progress)
Fields = Mapping[str, bytes | None]


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
        headers = [sent.method, sent.path, sent.query.decode("latin-1"), sent.headers]
        sealed = {
            "route": job.route.encode(),
            "request_id": job.request_id.encode(),
            "created": repr(job.created).encode(),
            "owner": job.owner.encode(),
            "fingerprint": fingerprint,
            "sent": orjson.dumps(headers),
            "body_seal": make_seal(body),
        }
        fields = {
            **sealed,
            "seal": make_seal(job.id.encode(), *sealed.values()),
            "status": job.status.encode(),
            "body": body,
        }
        limits = (self._limits.max_jobs, self._limits.max_bytes, self._limits.keep_s)
        head = (job.id, size, key or "", fingerprint, *limits, job.owner)
        pairs = [part for pair in fields.items() for part in pair]
        what, answer = self._run("add", *head, *pairs)
        if what == b"reused" and self.get(_text(answer)) is not None:
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
        stored = job if what == b"added" else self.get(_text(answer))
        if stored is None:
            raise StoreError("the job of this key has just expired")
        self._remembered.add(stored)
        return stored

    def claim(self) -> Job | None:
        while (row := self._run("claim", self._holder, *_JOB)) is not None:
            id, values = row
            fields = dict(zip(_JOB, values, strict=True))
            if self._check(id, _find_fault(id, fields)):
                job = _make_job(_text(id), fields)
                self._remembered.add(job)
                return job
        return None

    def mark_started(self, id: str) -> int | None:
        return self._run("begin", id, self._holder)

    def release(self, id: str, begun: bool) -> None:
        self._run("release", id, self._holder, int(begun))

    def heartbeat(self, jobs: Sequence[Job]) -> list[str]:
        encoded = [part for job in jobs for part in (job.id, orjson.dumps(asdict(job.progress)))]
        if not encoded or not (gone := self._run("still", self._holder, *encoded)):
            return []
        self._require_history()
        return [_text(id) for id in gone]

    def count(self) -> tuple[int, int]:
        unfinished, dead = self._run("count")
        return unfinished, dead

    def get_request(self, id: str) -> StoredRequest:
        fields = self._require(id, *_JOB)
        if not self._check(id, _find_fault(id.encode(), fields)):
            raise Problem("job-lost", _DAMAGED)
        method, path, query, headers = orjson.loads(fields["sent"] or b"")
        pairs = tuple((name, value) for name, value in headers)
        return StoredRequest(method, path, query.encode("latin-1"), pairs)

    def get_body(self, id: str) -> bytes:
        fields = self._require(id, "body", "body_seal")
        body = fields["body"]
        if not self._check(id, find_damage(fields["body_seal"], body)) or body is None:
            raise Problem("job-lost", _DAMAGED)
        return body

    def complete(self, job: Job, status: Status, answer: Response, fault: str = "") -> bool:
        encoded = [(k.decode("latin-1"), v.decode("latin-1")) for k, v in answer.raw_headers]
        sealed = {
            "status": status.encode(),
            "code": str(answer.status_code).encode(),
            "headers": orjson.dumps(encoded),
            "answer": bytes(answer.body),
        }
        fields = {
            **sealed,
            "answer_seal": make_seal(job.id.encode(), *sealed.values()),
            "progress": orjson.dumps(asdict(job.progress)),
        }
        limits = (self._limits.keep_s, self._limits.max_bytes)
        pairs = [part for pair in fields.items() for part in pair]
        is_stored = self._run("complete", job.id, *limits, self._holder, fault, *pairs) == 1
        self._remembered.set_state(job.id, State.FINISHED)
        return is_stored

    def get(self, id: str) -> Job | None:
        fields = self._read(id, *_JOB)
        if fields is None:
            return None
        if not fields["fault"] and not self._check(id, _find_fault(id.encode(), fields)):
            fields = {**fields, "status": Status.FAILED.encode()}
        return _make_job(id, fields)

    def get_response(self, id: str) -> Response | None:
        fields = self._read(id, "fault", "request_id", *_ANSWER, "answer_seal")
        if fields is None or fields["ended"] is None:
            return None
        request_id = _text(fields["request_id"])
        if fields["fault"] and fields["code"] is None:
            detail = _LOST if fields["fault"] == LOST.encode() else _DAMAGED
            return Problem("job-lost", detail).response(request_id)
        parts = [fields[name] for name in _ANSWER]
        damage = find_damage(fields["answer_seal"], id.encode(), *parts)
        if not self._check(id, damage and f"of its response {damage}"):
            return Problem("job-lost", _DAMAGED).response(request_id)
        answer = Response(fields["answer"], int(fields["code"] or 0))
        answer.raw_headers = [
            (name.encode("latin-1"), value.encode("latin-1"))
            for name, value in orjson.loads(fields["headers"] or b"")
        ]
        return answer

    def list_dead(self) -> list[DeadJob]:
        return [job for _, job in self._list_dead()]

    def requeue(self, id: str) -> bool:
        raw = self._find_dead(id)
        return raw is not None and self._run("requeue", raw, Status.RUNNING) == 1

    def delete(self, id: str) -> bool:
        raw = self._find_dead(id) if "\\" in id else id
        self._remembered.set_state(id, State.DELETED)
        return self._run("delete", raw or id, self._limits.keep_s) == 1

    def expire(self) -> None:
        self._run("expire", self._limits.keep_s)
        if not (ids := self._remembered.next_jobs()):
            return
        states = dict(zip(ids, self._run("look", *ids), strict=True))
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
            again += self._call("look", *finished).count(State.UNFINISHED.value)
        if lost:
            self._link.count("lost", "jobs", lost)
            structlog.get_logger().error("redis lost jobs", count=lost)
        if again:
            structlog.get_logger().warning("redis lost responses; jobs run again", count=again)

    def _mend(self) -> None:
        """Put each job into the set where it belongs, and count again."""
        with self._link.guard("jobs"):
            for keys in _split(self._link.blocking_client.scan_iter(f"{JOB}*", count=1000)):
                self._call("place", *(key.removeprefix(JOB.encode()) for key in keys))
            self._call("mend")

    def _check(self, id: str | bytes, damage: str | None) -> bool:
        """Fail a job if it is damaged; return whether it is not."""
        if damage is not None:
            self._run("bury", id, damage)
        return damage is None

    def _list_dead(self) -> Iterator[tuple[bytes, DeadJob]]:
        for id, failed, has_request, values in self._run("dead", *_DEAD):
            owner, route, request_id, created, fault, starts = map(_text, values)
            yield (
                id,
                DeadJob(
                    *(_text(id), owner, route, request_id, _number(created), fault),
                    *(float(failed), int(_number(starts)), bool(has_request)),
                ),
            )

    def _find_dead(self, id: str) -> bytes | None:
        """The id in Redis of a dead job; what is no UTF-8 there is escaped in `DeadJob.id`."""
        return next((raw for raw, job in self._list_dead() if job.id == id), None)

    def _require(self, id: str, *names: str) -> Fields:
        """Read fields of an unfinished job."""
        fields = self._read(id, *names)
        if fields is None:
            raise StoreError("no such job")
        if fields["ended"] is not None:
            raise Problem("job-lost", _DAMAGED)  # reading it has shown it
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
        keys = [_text(key) for key in damaged[::2]]
        for key, reason in zip(keys, damaged[1::2], strict=True):
            self._link.report_damaged("jobs", key, _text(reason))
        if not set(keys).isdisjoint(SETS):
            self._mend()  # finds the jobs that were in this set
        return result


def _find_fault(id: bytes, fields: Fields) -> str | None:
    """Return what of a job is damaged, except for its body and its response."""
    if fields["status"] not in {status.encode() for status in Status}:
        return "its status is none"
    return find_damage(fields["seal"], id, *(fields[name] for name in _SEALED))


def _make_job(id: str, fields: Fields) -> Job:
    """Return a job; of one that is damaged, what can be read."""
    try:
        progress = _PROGRESS.validate_json(fields["progress"] or b"{}")
    except ValueError:
        progress = Progress()
    status = Status.FAILED if fields["fault"] else Status(_text(fields["status"]))
    return Job(
        *(_text(fields["route"]), _text(fields["request_id"]), id),
        *(_number(fields["created"]), int(_number(fields["starts"]))),
        *(status, progress, _text(fields["owner"])),
    )


def _text(value: bytes | None) -> str:
    return "" if value is None else value.decode(errors="backslashreplace")


def _number(value: bytes | str | None) -> float:
    try:
        number = float(value or 0)
    except ValueError:
        return 0.0
    return number if math.isfinite(number) else 0.0


def _split(items: Iterable[Any]) -> Iterator[list[Any]]:
    rest = iter(items)
    return iter(lambda: list(islice(rest, _AT_A_TIME)), [])
