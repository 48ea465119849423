"""Exceptions of the client."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import httpx


class BasinError(Exception):
    """The request could not be sent, or the response could not be read."""


class InputError(BasinError, ValueError):
    """An input was refused before anything was sent: a file, a table, a graph or a name."""


class UnreachableError(BasinError):
    """The server did not respond, or the connection broke before the response was complete."""


class MissingLibraryError(BasinError, ImportError):
    """A library of an extra cannot be imported; the message has the command that installs it."""


class ProblemError(BasinError):
    """The server refused the request with a problem document (RFC 9457).

    Attributes:
        status: HTTP status code.
        document: the problem document.
        kind: problem type without `urn:basin:problem:`, for example `invalid-graph`.
        errors: the invalid fields, each with `pointer` (a JSON Pointer into the request), `code`
            and `detail`.
    """

    def __init__(self, status: int, document: dict[str, Any]) -> None:
        self.status = status
        self.document = document
        self.kind: str = str(document.get("type", "")).removeprefix("urn:basin:problem:")
        self.detail: str = str(document.get("detail", ""))
        self.errors: list[dict[str, str]] = list(document.get("errors", ()))
        self.request_id: str | None = document.get("request_id")
        fields = "".join(f"\n  {error['pointer']}: {error['detail']}" for error in self.errors)
        super().__init__(f"{status} {document.get('title', self.kind)}: {self.detail}{fields}")

    @classmethod
    def from_response(cls, response: httpx.Response) -> ProblemError:
        try:
            document = json.loads(response.content)
        except ValueError:
            document = None
        if not isinstance(document, dict):  # the response of a proxy in front of the server
            document = {"type": "", "title": response.reason_phrase, "detail": response.text[:200]}
        return cls(response.status_code, document)


def one_line(error: object) -> str:
    """Return the first line of a message."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


# The libraries of the extras in `client/pyproject.toml`, by the name of their module.
_LIBRARIES = {"pandas": ("pandas", "pyarrow"), "images": ("PIL",), "rdkit": ("rdkit",)}


@contextmanager
def require_extra(extra: Literal["pandas", "images", "rdkit"]) -> Iterator[None]:
    """Replace the ModuleNotFoundError of an import of a library of an extra.

    Raises:
        MissingLibraryError: the library is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        library = (error.name or "").partition(".")[0]
        if library not in _LIBRARIES[extra]:
            raise
        raise MissingLibraryError(
            f"The library {library} is not installed, and this needs it. Run: "
            f"pip install 'basin-client[{extra}]'",
            name=error.name,
        ) from error
