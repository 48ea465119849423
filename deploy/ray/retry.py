"""Send a request to another replica when the one that had it died."""

from __future__ import annotations

import asyncio
import time
from typing import final

from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware import Middleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.errors import Problem
from service.http.request_log import request_id_of

_FIRST_S, _LONGEST_S = 0.05, 1.0
_MAX_DEATHS = 2  # of replicas; after more the request itself may be the cause
_ID = b"x-request-id"
_PROXY_HEADERS = frozenset(  # set by the proxy, not by clients
    (
        *(_ID, b"x-request-disconnect-disabled", b"x-request-timeout-seconds"),
        b"serve_multiplexed_model_id",
    )
)


def middlewares() -> list[Middleware]:
    """Return the middlewares of the proxies.

    `RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH` names this function.
    """
    return [Middleware(RetryMiddleware)]


@final
class RetryMiddleware:
    """A middleware of Ray's proxies: retry on another replica what a replica did not answer.

    The proxy closes the connection where a replica died, and answers in plain text where there is
    none; Basin's own errors are JSON. A computation may run twice; storing or changing a resource
    twice has the effect of once; a DELETE that finds nothing after a replica died answers 204. A
    job without an Idempotency-Key may run twice, and its key is charged for both. A response that
    has begun is not retried: when its stream breaks, the client has to ask again.

    Args:
        patience_s: seconds to look for another replica once one was lost.
        max_bytes: of a body that is buffered for a retry; a longer one is sent once.
    """

    def __init__(self, app: ASGIApp, patience_s: float = 30.0, max_bytes: int = 64 << 20) -> None:
        self._app, self._patience_s, self._max_bytes = app, patience_s, max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"].startswith("/-/"):  # these are the proxy's own
            await self._app(scope, receive, send)
            return
        request_id = request_id_of(scope["headers"])
        headers = [pair for pair in scope["headers"] if pair[0] not in _PROXY_HEADERS]
        scope = {**scope, "headers": [*headers, (_ID, request_id.encode())]}
        if not all(_is_text(part) for pair in headers for part in pair):
            problem = Problem("bad-request", "a header is not UTF-8")
            await _refuse(problem, request_id, scope, receive, send)
            return
        request = _BufferedRequest(receive, self._max_bytes)
        deaths, until, wait_s = 0, 0.0, _FIRST_S
        while True:
            forgotten = scope["method"] == "DELETE" and deaths > 0
            response = _Response(send, request_id, request, forgotten)
            await self._app(dict(scope), request.replay(), response)
            if response.begun:
                return
            deaths += not response.refused
            until = until or time.monotonic() + self._patience_s
            if (
                request.left
                or not request.whole
                or deaths > _MAX_DEATHS
                or time.monotonic() + wait_s > until
            ):
                break
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, _LONGEST_S)
        problem = Problem("not-ready", "no replica answered", headers={"retry-after": "1"})
        await _refuse(problem, request_id, scope, request.replay(), send)


class _BufferedRequest:
    """The messages that the client sent, for replay until a response has begun."""

    def __init__(self, receive: Receive, max_bytes: int) -> None:
        self._receive, self._room = receive, max_bytes
        self._messages: list[Message] = []
        self._keeps = self.whole = True
        self.left = False

    def forget(self) -> None:
        self._keeps = False
        self._messages = []

    def replay(self) -> Receive:
        index = 0

        async def receive() -> Message:
            nonlocal index
            if index < len(self._messages):
                index += 1
                return self._messages[index - 1]
            message = await self._receive()
            self.left = message["type"] == "http.disconnect"
            if self._keeps and not self.left:
                self._room -= len(message.get("body", b""))
                if self._room < 0:
                    self.whole = False
                    self.forget()
                else:
                    self._messages.append(message)
                    index += 1
            return message

        return receive


class _Response:
    """Pass a response on, unless it is the proxy's that no replica is there.

    Attributes:
        begun: its head has been passed on.
        refused: the proxy said that no replica is available.
    """

    def __init__(
        self, send: Send, request_id: str, request: _BufferedRequest, forgotten: bool
    ) -> None:
        self._send, self._id, self._request, self._forgotten = send, request_id, request, forgotten
        self.begun = self.refused = self._empty = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            kind, status = (
                Headers(raw=message["headers"]).get("content-type", ""),
                message["status"],
            )
            self.refused = kind.startswith("text/plain") and (status >= 500 or status == 404)
            if not self.refused:
                self._request.forget()
                self.begun = True
                message = self._rewrite_head(message)
        elif self._empty:
            message = {**message, "body": b""}
        if self.begun:
            await self._send(message)

    def _rewrite_head(self, message: Message) -> Message:
        """Set the one request id, and answer 204 to a repeated DELETE that finds nothing."""
        headers = MutableHeaders(raw=list(message["headers"]))
        headers["x-request-id"] = self._id  # of several it leaves one
        status = message["status"]
        if self._forgotten and status == 404:
            self._empty, status = True, 204
            for name in ("content-type", "content-length"):
                del headers[name]
        return {**message, "status": status, "headers": headers.raw}


async def _refuse(
    problem: Problem, request_id: str, scope: Scope, receive: Receive, send: Send
) -> None:
    response = problem.response(request_id)
    response.headers["x-request-id"] = request_id
    await response(scope, receive, send)


def _is_text(part: bytes) -> bool:
    try:
        part.decode()
    except UnicodeDecodeError:
        return False
    return True
