"""What of a stored job is checked when it is read, and the job that its fields are."""

from __future__ import annotations

import math
from collections.abc import Mapping

import orjson
from pydantic import TypeAdapter
from starlette.responses import Response

from service.errors import Problem
from service.observability.progress import Progress
from service.storage.jobs.job import Job, Status
from service.storage.jobs.request import StoredRequest
from service.storage.jobs.seal import find_damage, make_seal

Fields = Mapping[str, bytes | None]
SEALED: tuple[str, ...] = (
    *("route", "request_id", "created", "owner", "fingerprint", "sent", "body_seal"),
)
"""Fields of a request, all but its body, whose seal is in `seal`."""
JOB_FIELDS = (*SEALED, "seal", "fault", "starts", "status", "progress", "postponed")
ANSWER_FIELDS = ("status", "code", "headers", "answer")
"""Fields of a response, whose seal is in `answer_seal`."""
DAMAGED = "damaged: "
"""How the fault of a job begins whose entry in the store is damaged; the reason follows."""
_PROGRESS = TypeAdapter(Progress)


def seal_request(
    job: Job, sent: StoredRequest, body: bytes, fingerprint: bytes
) -> dict[str, bytes]:
    """Return the fields of a request with their seals, without its body."""
    fields = {
        "route": job.route.encode(),
        "request_id": job.request_id.encode(),
        "created": repr(job.created).encode(),
        "owner": job.owner.encode(),
        "fingerprint": fingerprint,
        "sent": encode_request(sent),
        "body_seal": make_seal(body),
    }
    return {**fields, "seal": make_seal(job.id.encode(), *fields.values())}


def seal_answer(id: str, status: Status, answer: Response) -> dict[str, bytes]:
    """Return the fields of a response with their seal."""
    pairs = [(k.decode("latin-1"), v.decode("latin-1")) for k, v in answer.raw_headers]
    fields = {
        "status": status.encode(),
        "code": str(answer.status_code).encode(),
        "headers": orjson.dumps(pairs),
        "answer": bytes(answer.body),
    }
    return {**fields, "answer_seal": make_seal(id.encode(), *fields.values())}


def encode_request(sent: StoredRequest) -> bytes:
    """Encode all of a request but its body."""
    return orjson.dumps([sent.method, sent.path, sent.query.decode("latin-1"), sent.headers])


def decode_request(sent: bytes | None) -> StoredRequest:
    """Decode what `encode_request` returned."""
    method, path, query, headers = orjson.loads(sent or b"")
    pairs = tuple((name, value) for name, value in headers)
    return StoredRequest(method, path, query.encode("latin-1"), pairs)


def decode_answer(fields: Fields) -> Response:
    """Return the response of fields that were checked."""
    answer = Response(fields["answer"], int(fields["code"] or 0))
    answer.raw_headers = [
        (name.encode("latin-1"), value.encode("latin-1"))
        for name, value in orjson.loads(fields["headers"] or b"")
    ]
    return answer


def find_answer_fault(id: str, fields: Fields) -> str | None:
    """Return what of a response is damaged."""
    parts = [fields[name] for name in ANSWER_FIELDS]
    damage = find_damage(fields["answer_seal"], id.encode(), *parts)
    return damage and f"of its response {damage}"


def find_fault(id: bytes, fields: Fields) -> str | None:
    """Return what of a job is damaged, except for its body and its response."""
    if fields["status"] not in {status.encode() for status in Status}:
        return "its status is none"
    return find_damage(fields["seal"], id, *(fields[name] for name in SEALED))


def make_job(id: str, fields: Fields) -> Job:
    """Return a job; of one that is damaged, what can be read."""
    try:
        progress = _PROGRESS.validate_json(fields["progress"] or b"{}")
    except ValueError:
        progress = Progress()
    known = {status.encode(): status for status in Status}
    status = Status.FAILED if fields["fault"] else known[fields["status"] or b""]
    return Job(
        *(decode_text(fields["route"]), decode_text(fields["request_id"]), id),
        *(decode_number(fields["created"]), int(decode_number(fields["starts"]))),
        *(status, progress, decode_text(fields["owner"])),
        postponed=int(decode_number(fields["postponed"])),
    )


def damaged_job() -> Problem:
    return Problem(
        "job-lost",
        "What is stored of this job is damaged, so it has no response. Send the request again.",
    )


def decode_text(value: bytes | None) -> str:
    return "" if value is None else value.decode(errors="backslashreplace")


def decode_number(value: bytes | None) -> float:
    try:
        number = float(value or 0)
    except ValueError:
        return 0.0
    return number if math.isfinite(number) else 0.0
