"""No request is lost with the replica it was sent to."""

from __future__ import annotations

import asyncio
import time
from typing import final

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.errors import Problem

_FIRST_S, _LONGEST_S = 0.05, 1.0


@final
class Again:
    """A middleware of Ray's proxies: what a replica did not answer is sent to another one.

    A proxy answers in its own words where a replica died, or where there is none; Basin never does:
    its errors are JSON. Doing something twice is doing it once: what computes changes nothing, and
    what is stored, changed or forgotten twice is so; a job without an Idempotency-Key may run
    twice. Of an answer that has begun nothing can be taken back: a stream that breaks is the
    client's to ask for again.

    Args:
        patience_s: how long another replica is looked for.
    """

    def __init__(self, app: ASGIApp, patience_s: float = 30.0) -> None:
        self._app, self._patience_s = app, patience_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        kept, until, wait_s = _Kept(receive), time.monotonic() + self._patience_s, _FIRST_S
        while True:
            answer = _Answer(send)
            await self._app(dict(scope), kept.replayed(), answer)
            if not answer.lost:
                return
            if kept.left or time.monotonic() + wait_s > until:
                break
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, _LONGEST_S)
        problem = Problem("not-ready", "no replica answered", headers={"retry-after": "1"})
        request_id = Headers(scope=scope).get("x-request-id", "")
        await problem.response(request_id)(scope, Request(scope, kept.replayed()).receive, send)


class _Kept:
    """What the client sent, as often as it is needed."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._messages: list[Message] = []
        self.left = False

    def replayed(self) -> Receive:
        place = 0

        async def receive() -> Message:
            nonlocal place
            if place == len(self._messages):
                message = await self._receive()
                self.left = message["type"] == "http.disconnect"
                if self.left:
                    return message
                self._messages.append(message)
            place += 1
            return self._messages[place - 1]

        return receive


class _Answer:
    """Passes on an answer, unless it is the proxy's that there is none."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.lost = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            kind = Headers(raw=message["headers"]).get("content-type", "")
            self.lost = message["status"] >= 500 and "json" not in kind
        if not self.lost:
            await self._send(message)
