"""Read a request body, no more of it than allowed and no longer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Container
from contextlib import asynccontextmanager

from starlette.requests import ClientDisconnect, Request

from service.errors import Problem
from service.parsing.large import LARGE
from service.parsing.request import JSON, SAFETENSORS


def require_media_type(request: Request, allowed: Container[str], names: str) -> str:
    """The media type of the body, without parameters; 415 unless it is one of `allowed`."""
    require_identity(request)
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type not in allowed:
        raise Problem("unsupported-media-type", f"this route reads {names}")
    return media_type


def require_identity(request: Request) -> None:
    """415 where the body is encoded."""
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding != "identity":
        raise Problem("unsupported-media-type", "send the body without a content-encoding")


def require_small(body: bytes, media_type: str) -> None:
    """Refuse JSON so large that reading it would keep others waiting."""
    if media_type == JSON and len(body) > LARGE:
        detail = f"JSON may have up to {LARGE} bytes here; send arrays as {SAFETENSORS}"
        raise Problem("body-too-large", detail)


class Bodies:
    """Reads bodies: none larger than `max_bytes`, and all in memory at most `max_total_bytes`."""

    def __init__(self, max_bytes: int, max_total_bytes: int) -> None:
        self._max, self._max_total, self._total = max_bytes, max_total_bytes, 0

    @asynccontextmanager
    async def read(self, request: Request, timeout_s: float | None) -> AsyncIterator[bytes]:
        """The whole body, which counts until the context ends.

        A Content-Length above the limit is refused before a byte is read.
        """
        length = request.headers.get("content-length", "")
        if length.isdecimal() and int(length[:20]) > self._max:
            raise self._too_large()
        body, size = bytearray(), 0
        try:
            try:
                async with asyncio.timeout(timeout_s):
                    async for part in request.stream():
                        self._require_room(size, len(part))
                        size += len(part)
                        self._total += len(part)
                        body += part
            except TimeoutError:
                detail = f"the body was not complete after {timeout_s:g} s"
                raise Problem("body-timeout", detail, headers={"connection": "close"}) from None
            except ClientDisconnect:
                raise Problem("incomplete-body", "the connection closed within the body") from None
            whole = bytes(body)
            body.clear()
            yield whole
        finally:
            self._total -= size

    def _too_large(self) -> Problem:
        return Problem("body-too-large", f"a body may have up to {self._max} bytes")

    def _require_room(self, read: int, more: int) -> None:
        if read + more > self._max:
            raise self._too_large()
        if self._total + more > self._max_total:
            detail = "the bodies of other requests fill the memory there is for them"
            raise Problem("queue-full", detail, headers={"retry-after": "1"})
