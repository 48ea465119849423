"""What can go wrong, as exceptions."""

from __future__ import annotations

import json
from typing import Any

import httpx


class BasinError(Exception):
    """The server could not be asked, or its answer could not be read."""


class UnreachableError(BasinError):
    """Nobody answered, or not to the end."""


class ProblemError(BasinError):
    """The server refused: a problem document (RFC 9457).

    Attributes:
        kind: what stands behind `urn:basin:problem:`, as `invalid-graph`.
        errors: each with `pointer` (into the request), `code` and `detail`.
    """

    def __init__(self, status: int, document: dict[str, Any]) -> None:
        self.status, self.document = status, document
        self.kind: str = str(document.get("type", "")).removeprefix("urn:basin:problem:")
        self.detail: str = str(document.get("detail", ""))
        self.errors: list[dict[str, str]] = list(document.get("errors", ()))
        self.request_id: str | None = document.get("request_id")
        places = "".join(f"\n  {each['pointer']}: {each['detail']}" for each in self.errors)
        super().__init__(f"{status} {document.get('title', self.kind)}: {self.detail}{places}")

    @classmethod
    def of(cls, response: httpx.Response) -> ProblemError:
        try:
            document = json.loads(response.content)
        except ValueError:
            document = None
        if not isinstance(document, dict):  # of a proxy between
            document = {"type": "", "title": response.reason_phrase, "detail": response.text[:200]}
        return cls(response.status_code, document)
