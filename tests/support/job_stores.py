"""Job stores with little to say about each job."""

from __future__ import annotations

from starlette.responses import Response

from service.storage.jobs.base import JobLimits, JobStore
from service.storage.jobs.job import Job, Status
from service.storage.jobs.request import StoredRequest

SENT = StoredRequest(
    "POST", "/sample", b"a=1", (("accept", "*/*"), ("content-type", "application/json"))
)
LIMITS = JobLimits(max_jobs=9, max_bytes=1 << 20, keep_s=600)


def add_job(
    store: JobStore,
    body: bytes = b"{}",
    key: str | None = None,
    fingerprint: bytes = b"",
    owner: str = "",
) -> Job:
    return store.add(Job("/sample", "r", owner=owner), SENT, body, key, fingerprint)


def finish_job(
    store: JobStore, job: Job, body: bytes = b"x", status: Status = Status.DONE, fault: str = ""
) -> bool:
    code = 200 if status is Status.DONE else 500
    return store.complete(job, status, Response(body, code), fault)
