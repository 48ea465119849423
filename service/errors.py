"""All problem types, and the problem document (RFC 9457) of a request that fails.

A document never repeats the input: at most a number, the name of a field or an id.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from itertools import islice

import orjson
from starlette.responses import Response

MEDIA_TYPE = "application/problem+json"
MAX_FIELD_ERRORS = 20
_POINTER_BYTES, _DETAIL_BYTES = 120, 280  # keeps each fault below 500 bytes, escapes included

# Status and title by kind; `type` in the document is urn:basin:problem:<kind>.
PROBLEM_TYPES: dict[str, tuple[int, str]] = {
    "bad-request": (400, "Malformed HTTP request"),
    "invalid-json": (400, "The body is not valid JSON"),
    "invalid-safetensors": (400, "The body is not a valid safetensors file"),
    "invalid-multipart": (400, "The body is not valid multipart/form-data"),
    "incomplete-body": (400, "The connection closed before the body was complete"),
    "unauthenticated": (401, "Missing or invalid API key"),
    "forbidden": (403, "The API key does not allow this"),
    "not-found": (404, "No such path"),
    "unknown-model": (404, "No such model"),
    "unknown-memory": (404, "No such memory"),
    "unknown-graph": (404, "No such graph"),
    "nothing-to-show": (404, "The model has no image of this kind"),
    "unknown-job": (404, "No such job"),
    "method-not-allowed": (405, "Method not allowed for this path"),
    "not-acceptable": (406, "No supported media type in the Accept header"),
    "body-timeout": (408, "The body did not arrive in time"),
    "head-timeout": (408, "The request headers did not arrive in time"),
    "memory-ships": (409, "This memory is read-only"),
    "job-unfinished": (409, "The job has no response yet"),
    "graph-replaced": (409, "The graph was replaced during the request"),
    "key-in-use": (409, "A request with this Idempotency-Key is still running"),
    "job-lost": (410, "The job was lost; send the request again"),
    "body-too-large": (413, "The body is too large"),
    "unsupported-media-type": (415, "Unsupported media type of the body"),
    "unsupported-image": (415, "Unsupported image format"),
    "invalid-request": (422, "The request does not match its schema"),
    "invalid-graph": (422, "The graph is not valid for this model"),
    "invalid-memory": (422, "The patterns do not form a valid memory"),
    "invalid-image": (422, "The image or its mask is not valid"),
    "invalid-checkpoint": (422, "The checkpoint cannot be loaded"),
    "wrong-model": (422, "The model serves another route"),
    "nothing-classified": (422, "None of the inputs could be classified"),
    "diverged": (422, "The dynamics diverged"),
    "key-reused": (422, "The Idempotency-Key belongs to another request"),
    "queue-full": (429, "Too many requests are queued"),
    "rate-exceeded": (429, "The rate limit of the API key is exceeded"),
    "quota-exceeded": (429, "The quota of the API key is exceeded"),
    "unknown-host": (421, "The Host header names another server"),
    "head-too-large": (431, "The request headers are too large"),
    "internal-error": (500, "Internal server error"),
    "job-crashed": (500, "The server stopped too often while it ran the job"),
    "too-many-connections": (503, "Too many open connections"),
    "not-ready": (503, "No model is ready"),
    "jobs-unavailable": (503, "The job store is unavailable"),
    "memories-unavailable": (503, "The memory store is unavailable"),
    "graphs-unavailable": (503, "The graph store is unavailable"),
    "memory-damaged": (503, "What is stored of this memory is damaged"),
    "graph-damaged": (503, "What is stored of this graph is damaged"),
    "molecules-unread": (503, "The molecules were not parsed in time"),
    "deadline": (504, "The request exceeded its deadline"),
    "store-full": (507, "The storage limit is reached"),
}
AUTH_PROBLEMS = frozenset(("unauthenticated", "forbidden", "rate-exceeded", "quota-exceeded"))
"""Problems of the API key, or of a request without one."""


@dataclass(frozen=True)
class FieldError:
    """One error: a JSON pointer into the request, a stable code, and the message."""

    pointer: str
    code: str
    detail: str


class Problem(Exception):  # noqa: N818
    """A request that cannot be served; `kind` is a key of `PROBLEM_TYPES`."""

    def __init__(
        self,
        kind: str,
        detail: str,
        errors: Iterable[FieldError] = (),
        headers: Mapping[str, str] | None = None,
        extra: Mapping[str, object] | None = None,
    ) -> None:
        super().__init__(kind)
        self.kind, self.detail = kind, detail
        self.status, self.title = PROBLEM_TYPES[kind]
        self.faults = tuple(islice(errors, MAX_FIELD_ERRORS))
        self.headers, self.extra = dict(headers or {}), dict(extra or {})

    def to_document(self, request_id: str) -> dict[str, object]:
        """Return the problem document."""
        return {
            "type": f"urn:basin:problem:{self.kind}",
            "title": self.title,
            "status": self.status,
            "detail": _clip(self.detail, _DETAIL_BYTES),
            "request_id": request_id,
            **self.extra,
            "errors": [
                asdict(
                    replace(
                        fault,
                        pointer=_clip(fault.pointer, _POINTER_BYTES),
                        detail=_clip(fault.detail, _DETAIL_BYTES),
                    )
                )
                for fault in self.faults
            ],
        }

    def response(self, request_id: str) -> Response:
        """Return the problem document as a response."""
        document = orjson.dumps(self.to_document(request_id))
        return Response(document, self.status, self.headers, MEDIA_TYPE)

    def dumps(self) -> str:
        """Serialize, for another process."""
        faults = [[fault.pointer, fault.code, fault.detail] for fault in self.faults]
        return orjson.dumps([self.kind, self.detail, faults]).decode()

    @classmethod
    def loads(cls, text: str) -> Problem:
        """Restore what `dumps` wrote."""
        kind, detail, faults = orjson.loads(text)
        return cls(kind, detail, [FieldError(*fault) for fault in faults])


def make_problem(kind: str, pointer: str, code: str, detail: str) -> Problem:
    """Return a problem with one field error, whose message is also its detail."""
    return Problem(kind, detail, [FieldError(pointer, code, detail)])


def pointer(*parts: str | int) -> str:
    """Return the JSON pointer (RFC 6901) of keys and indices."""
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in parts)


def unknown_fields(
    fields: Mapping[str, object], known: Iterable[str], *where: str | int
) -> list[FieldError]:
    """Return an error per unexpected key; a key is repeated only if it looks like a plain name."""
    expected = frozenset(known)
    if fields.keys() <= expected:
        return []
    names = (key for key in fields if key not in expected)
    allowed = ", ".join(sorted(expected))
    return [
        FieldError(
            pointer(*where, *([name] if re.fullmatch(r"\w{1,32}", name, re.ASCII) else [])),
            "unknown_field",
            f"Unknown field. Allowed fields: {allowed}.",
        )
        for name in islice(names, MAX_FIELD_ERRORS)
    ]


def _clip(text: str, limit: int) -> str:
    """Cut `text` to `limit` bytes of JSON, escapes included."""
    if len(orjson.dumps(text.encode(errors="replace").decode())) - 2 <= limit:
        return text
    length, size = 0, len("…".encode())
    for character in text:
        size += len(orjson.dumps(character.encode(errors="replace").decode())) - 2
        if size > limit:
            break
        length += 1
    return text[:length] + "…"
