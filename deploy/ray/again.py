"""No request is lost with the replica it was sent to."""

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
_DEATHS = 2  # more than these a request may have caused
_ID = b"x-request-id"
_MEANT = frozenset(  # set by the proxy, not by clients
    (
        *(_ID, b"x-request-disconnect-disabled", b"x-request-timeout-seconds"),
        b"serve_multiplexed_model_id",
    )
)


def middlewares() -> list[Middleware]:
    """Of the proxies; `RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH` names this function."""
    return [Middleware(Again)]


@final
class Again:
    """A middleware of Ray's proxies: what a replica did not answer is sent to another one.

    Where a replica died the proxy says nothing, where there is none it says so in its own words;
    Basin's errors are JSON. What computes may be done twice, and what is stored or changed twice is
    as once; what was forgotten when the replica died is reported as forgotten. A job without an
    Idempotency-Key may run twice, and a key is charged for both. Of an answer that has begun
    nothing can be taken back: a stream that breaks is the client's to ask for again.

    Args:
        patience_s: how long another replica is looked for once one was lost.
        most_bytes: of a body that is kept; a longer one is sent once.
    """

    def __init__(self, app: ASGIApp, patience_s: float = 30.0, most_bytes: int = 64 << 20) -> None:
        self._app, self._patience_s, self._most = app, patience_s, most_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"].startswith("/-/"):  # these are the proxy's own
            await self._app(scope, receive, send)
            return
        request_id = request_id_of(scope["headers"])
        headers = [pair for pair in scope["headers"] if pair[0] not in _MEANT]
        scope = {**scope, "headers": [*headers, (_ID, request_id.encode())]}
        if not all(_is_text(part) for pair in headers for part in pair):
            problem = Problem("bad-request", "a header is not UTF-8")
            await _refuse(problem, request_id, scope, receive, send)
            return
        kept, deaths, until, wait_s = _Kept(receive, self._most), 0, 0.0, _FIRST_S
        while True:
            forgotten = scope["method"] == "DELETE" and deaths > 0
            answer = _Answer(send, request_id, kept, forgotten)
            await self._app(dict(scope), kept.replayed(), answer)
            if answer.begun:
                return
            deaths += not answer.refused
            until = until or time.monotonic() + self._patience_s
            if kept.left or not kept.whole or deaths > _DEATHS or time.monotonic() + wait_s > until:
                break
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, _LONGEST_S)
        problem = Problem("not-ready", "no replica answered", headers={"retry-after": "1"})
        await _refuse(problem, request_id, scope, kept.replayed(), send)


class _Kept:
    """What the client sent, as often as it is needed, until there is an answer."""

    def __init__(self, receive: Receive, most: int) -> None:
        self._receive, self._room = receive, most
        self._messages: list[Message] = []
        self._keeps = self.whole = True
        self.left = False

    def forget(self) -> None:
        self._keeps = False
        self._messages = []

    def replayed(self) -> Receive:
        place = 0

        async def receive() -> Message:
            nonlocal place
            if place < len(self._messages):
                place += 1
                return self._messages[place - 1]
            message = await self._receive()
            self.left = message["type"] == "http.disconnect"
            if self._keeps and not self.left:
                self._room -= len(message.get("body", b""))
                if self._room < 0:
                    self.whole = False
                    self.forget()
                else:
                    self._messages.append(message)
                    place += 1
            return message

        return receive


class _Answer:
    """Passes on an answer, unless it is the proxy's that there is none.

    Attributes:
        begun: it has been passed on.
        refused: the proxy said that no replica is available.
    """

    def __init__(self, send: Send, request_id: str, kept: _Kept, forgotten: bool) -> None:
        self._send, self._id, self._kept, self._forgotten = send, request_id, kept, forgotten
        self.begun = self.refused = self._empty = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            kind, status = (
                Headers(raw=message["headers"]).get("content-type", ""),
                message["status"],
            )
            self.refused = kind.startswith("text/plain") and (status >= 500 or status == 404)
            if not self.refused:
                self._kept.forget()
                self.begun = True
                message = self._of_mine(message)
        elif self._empty:
            message = {**message, "body": b""}
        if self.begun:
            await self._send(message)

    def _of_mine(self, message: Message) -> Message:
        """With one request id; the proxy adds another. What is gone already was forgotten."""
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
