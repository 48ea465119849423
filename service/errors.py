"""Every way a request can fail, and the problem document (RFC 9457) that says so.

A document never carries what the client sent: pointers name places, details name rules.
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

# The one map from what went wrong to status and title; `type` is urn:basin:problem:<kind>.
PROBLEM_TYPES: dict[str, tuple[int, str]] = {
    "bad-request": (400, "The request is not valid HTTP for this server"),
    "invalid-json": (400, "The body is not valid JSON"),
    "invalid-safetensors": (400, "The body is not a valid safetensors file"),
    "invalid-multipart": (400, "The body is not valid multipart/form-data"),
    "incomplete-body": (400, "The body ended before it was complete"),
    "unauthenticated": (401, "A key is needed that this server knows"),
    "forbidden": (403, "The key is not for this"),
    "not-found": (404, "There is nothing at this path"),
    "unknown-model": (404, "There is no such model"),
    "unknown-memory": (404, "There is no such memory"),
    "unknown-graph": (404, "There is no such graph"),
    "nothing-to-show": (404, "The model has nothing of this kind to show as a picture"),
    "unknown-job": (404, "There is no such job"),
    "method-not-allowed": (405, "This path does not take this method"),
    "not-acceptable": (406, "The answer does not come in a type the client accepts"),
    "body-timeout": (408, "The body did not arrive in time"),
    "head-timeout": (408, "The head of the request did not arrive in time"),
    "memory-ships": (409, "This memory ships with the server and stays as it is"),
    "job-unfinished": (409, "The job has no answer yet"),
    "graph-replaced": (409, "The graph was replaced while the request was read"),
    "key-in-use": (409, "A request with this Idempotency-Key is being answered"),
    "body-too-large": (413, "The body is too large"),
    "unsupported-media-type": (415, "The body is of a type this route does not read"),
    "unsupported-image": (415, "The picture is of a kind that is not read"),
    "invalid-request": (422, "The request does not fit its schema"),
    "invalid-graph": (422, "The graph is not one this model can read"),
    "invalid-memory": (422, "The patterns are no memory that can be sampled"),
    "invalid-image": (422, "The picture or its mask cannot be read"),
    "invalid-checkpoint": (422, "The checkpoint cannot be served"),
    "wrong-model": (422, "The model serves another route"),
    "nothing-classified": (422, "None of the inputs could be classified"),
    "diverged": (422, "The dynamics diverged"),
    "key-reused": (422, "The Idempotency-Key belongs to another request"),
    "queue-full": (429, "Too many requests are waiting"),
    "rate-exceeded": (429, "The key has sent too many requests"),
    "quota-exceeded": (429, "The key has used up its quota"),
    "head-too-large": (431, "The head of the request is too large"),
    "internal-error": (500, "The server failed"),
    "job-crashed": (500, "The server ended while it ran the job, too often to try again"),
    "too-many-connections": (503, "Too many connections are open"),
    "not-ready": (503, "No model is ready"),
    "jobs-unavailable": (503, "Jobs cannot be stored or read now"),
    "memories-unavailable": (503, "Memories cannot be stored or read now"),
    "graphs-unavailable": (503, "Graphs cannot be stored or read now"),
    "molecules-unread": (503, "There was no time to read the molecules"),
    "deadline": (504, "The request took too long"),
    "store-full": (507, "There is no room to store this"),
}
AUTH_PROBLEMS = frozenset(("unauthenticated", "forbidden", "rate-exceeded", "quota-exceeded"))
"""Those that are the key's doing, or that of having none."""


@dataclass(frozen=True)
class FieldError:
    """One thing wrong: where (JSON pointer into the request), a stable code, the rule broken."""

    pointer: str
    code: str
    detail: str


class Problem(Exception):  # noqa: N818
    """A request that cannot be served; `kind` is a key of `KINDS`."""

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
        self.headers, self.told = dict(headers or {}), dict(extra or {})

    def response(self, request_id: str) -> Response:
        document = {
            "type": f"urn:basin:problem:{self.kind}",
            "title": self.title,
            "status": self.status,
            "detail": _clip(self.detail, _DETAIL_BYTES),
            "request_id": request_id,
            **self.told,
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
        return Response(orjson.dumps(document), self.status, self.headers, MEDIA_TYPE)

    def dumps(self) -> str:
        """As text, to cross from one process to another."""
        faults = [[fault.pointer, fault.code, fault.detail] for fault in self.faults]
        return orjson.dumps([self.kind, self.detail, faults]).decode()

    @classmethod
    def loads(cls, text: str) -> Problem:
        """What `dumps` wrote."""
        kind, detail, faults = orjson.loads(text)
        return cls(kind, detail, [FieldError(*fault) for fault in faults])


def make_problem(kind: str, pointer: str, code: str, detail: str) -> Problem:
    """A problem with a single fault, which is also its detail."""
    return Problem(kind, detail, [FieldError(pointer, code, detail)])


def pointer(*parts: str | int) -> str:
    """JSON pointer (RFC 6901) from known keys and indices."""
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in parts)


def unknown_fields(
    found: Mapping[str, object], known: Iterable[str], *where: str | int
) -> list[FieldError]:
    """A fault per unexpected key. A key is repeated only where it looks like a plain name."""
    expected = frozenset(known)
    if found.keys() <= expected:
        return []
    names = (key for key in found if key not in expected)
    allowed = ", ".join(sorted(expected))
    return [
        FieldError(
            pointer(*where, *([name] if re.fullmatch(r"\w{1,32}", name, re.ASCII) else [])),
            "unknown_field",
            f"there is no such field; allowed are {allowed}",
        )
        for name in islice(names, MAX_FIELD_ERRORS)
    ]


def _clip(text: str, limit: int) -> str:
    """At most `limit` bytes as JSON, escapes included."""
    if len(orjson.dumps(text.encode(errors="replace").decode())) - 2 <= limit:
        return text
    kept, size = 0, len("…".encode())
    for character in text:
        size += len(orjson.dumps(character.encode(errors="replace").decode())) - 2
        if size > limit:
            break
        kept += 1
    return text[:kept] + "…"
