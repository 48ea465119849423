"""Read request bodies within limits of size and time."""

from __future__ import annotations

import asyncio
from collections.abc import Container
from typing import final

from starlette.requests import Request

from service.auth.clients import identify_client
from service.errors import Problem
from service.media_types import JSON, SAFETENSORS
from service.shares import Shares
from service.workers.large_json import LARGE_BODY_BYTES


def require_media_type(request: Request, allowed: Container[str], names: str) -> str:
    """Return the media type of the body, without parameters; 415 unless it is in `allowed`."""
    require_identity(request)
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type not in allowed:
        raise Problem(
            "unsupported-media-type", f"Unsupported Content-Type. Send the body as {names}."
        )
    return media_type


def require_identity(request: Request) -> None:
    """Refuse a body with a Content-Encoding (415)."""
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding != "identity":
        raise Problem(
            "unsupported-media-type",
            "Encoded bodies are not supported. Send the body without Content-Encoding.",
        )


def require_small(body: bytes, media_type: str) -> None:
    """Refuse JSON that is so large that parsing it would block other requests."""
    if media_type == JSON and len(body) > LARGE_BODY_BYTES:
        detail = (
            f"The JSON body has {len(body)} bytes; at most {LARGE_BODY_BYTES} are allowed on "
            f"this route. Send arrays as {SAFETENSORS}."
        )
        raise Problem("body-too-large", detail)


_SMALL_BYTES = 1 << 16  # with every connection of a client this is far less than its share


class BodyReader:
    """Reads bodies of at most `max_bytes`, and of at most `max_total_bytes` in memory together, of
    which each client may hold as much as it leaves free, see `Shares`.

    Args:
        small_bytes: what is no larger only has to fit into the total, so that large bodies do not
            hinder small ones of the same client, or of others behind the same address.
    """

    def __init__(
        self, max_bytes: int, max_total_bytes: int, small_bytes: int = _SMALL_BYTES
    ) -> None:
        self._max, self._small = max_bytes, small_bytes
        self._shares = Shares(max_total_bytes)

    def read(self, request: Request, timeout_s: float | None) -> _Body:
        """Return a context manager that reads the body, which counts until the context ends.

        A Content-Length above a limit, or for which there is no room now, is refused before a byte
        is read.
        """
        return _Body(self, request, timeout_s)

    def require_length(self, request: Request, client: str) -> None:
        """Refuse a Content-Length above a limit, or for which there is no room now."""
        length = request.headers.get("content-length", "")
        if not length.isdecimal():
            return
        size = int(length[:20])
        if size > self._max:
            raise self._too_large()
        self._require_room(client, size, 0)

    def count(self, client: str, read: int, more: int) -> None:
        """Count `more` bytes of a body of which `read` bytes are counted already."""
        if read + more > self._max:
            raise self._too_large()
        self._require_room(client, more, read)
        self._shares.take(client, more)

    def forget(self, client: str, size: int) -> None:
        """Stop counting `size` bytes of a body."""
        self._shares.release(client, size)

    def _require_room(self, client: str, more: int, read: int) -> None:
        is_small = read + more <= self._small
        if not (self._shares.has_room(more) if is_small else self._shares.may_take(client, more)):
            raise self._buffer_full(client, more)

    def _buffer_full(self, client: str, more: int) -> Problem:
        shares = self._shares
        limit = f"{shares.total} bytes (BASIN_MAX_BUFFERED_BYTES)"
        if shares.has_room(more):
            detail = (
                f"The bodies of this client in memory have {shares.held_by(client)} of {limit}. "
                "One API key, or one address without keys, may have as much as it leaves free. "
                "Send fewer requests at a time. Retry after 1 s."
            )
        else:
            detail = f"The bodies of all requests would exceed {limit}. Retry after 1 s."
        return Problem("queue-full", detail, headers={"retry-after": "1"})

    def _too_large(self) -> Problem:
        return Problem(
            "body-too-large",
            f"A request body may have at most {self._max} bytes (BASIN_MAX_BODY_BYTES). Send "
            "less in one request.",
        )


@final
class _Body:
    """Context manager that reads the body of one request."""

    def __init__(self, bodies: BodyReader, request: Request, timeout_s: float | None) -> None:
        self._bodies, self._request, self._timeout_s = bodies, request, timeout_s
        self._client = identify_client(request.scope)
        self._size = 0

    async def __aenter__(self) -> bytes:
        self._bodies.require_length(self._request, self._client)
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._whole()
        except BaseException as error:
            self._bodies.forget(self._client, self._size)
            if not isinstance(error, TimeoutError):
                raise
        detail = (
            f"The body was not complete after {self._timeout_s:g} s (BASIN_BODY_TIMEOUT_S). "
            "Send it faster, or send less."
        )
        raise Problem("body-timeout", detail, headers={"connection": "close"})

    async def __aexit__(self, *_: object) -> None:
        self._bodies.forget(self._client, self._size)

    async def _whole(self) -> bytes:
        whole, more = await self._part()  # most bodies come in one part, which is not copied
        while more:
            if isinstance(whole, bytes):
                whole = bytearray(whole)
            part, more = await self._part()
            whole += part
        return bytes(whole)

    async def _part(self) -> tuple[bytes | bytearray, bool]:
        message = await self._request.receive()
        if message["type"] == "http.disconnect":
            raise Problem(
                "incomplete-body",
                "The connection closed before the body was complete. Send the whole body.",
            )
        part = message.get("body", b"")
        self._bodies.count(self._client, self._size, len(part))
        self._size += len(part)
        return part, message.get("more_body", False)
