"""HTTP/1.1 as strangers speak it: bounds on what comes before a request is one, and after.

uvicorn's protocol reads heads of any size, for as long as it takes, and keeps answers for whoever
does not read them. Each would let a few connections take the memory, or all the descriptors.
"""

from __future__ import annotations

import asyncio
import secrets
from typing import Any, final

from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from service.access import hardened, request_id_of
from service.doors.door import require_key
from service.errors import Problem
from service.exchange import COMPUTING
from service.pace import Paced
from service.services import Services

_HEAD_BYTES = 1 << 16  # of the path, and names and values of headers
_UNREAD_BYTES = 1 << 19  # of a header that is not over; one read may bring half of that
_PIPELINED = 32  # requests that wait behind the one that is being answered
_LOOK_S = 10.0
_LEAST_BYTES = 100_000  # of an answer, that its client reads in that time
# Who sends one of these may be told something else than that there is no room.
_TELLING = frozenset((b"prefer", b"expect", b"origin"))
_COMPUTING = frozenset(path.encode() for path in COMPUTING)


@final
class Wire(HttpToolsProtocol):
    """One connection. What is refused here is answered with a problem, and the connection ends."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        services: Services = self.config.app.state.services  # type: ignore[union-attr]
        self._settings, self._metrics = services.settings, services.metrics
        self._engine, self._pace = services.engine, services.pace
        self._keyring = services.keyring
        self._hardened = hardened(services.settings.tls_certificate is not None)
        self._in_head, self._head, self._unread = False, 0, 0
        self._refusal: Problem | None = None
        self._deferred: Problem | None = None  # until those before it are answered
        self._late: asyncio.TimerHandle | None = None
        self._looking: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        most = self._settings.max_connections
        if len(self.connections) > most:
            self._refuse(Problem("too-many-connections", f"there may be {most} at a time"))
        else:
            self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self._late, self._looking):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing() or self._deferred is not None:
            return
        if self.cycle is None or self.cycle.response_complete:
            self._expect_head()
        super().data_received(data)
        # Of a head, or of what follows a body: a header that is not over is told to nobody.
        self._unread += len(data)
        if self._unread > _UNREAD_BYTES:
            self._refuse(_too_large())

    def send_400_response(self, msg: str) -> None:
        """What the parser does not take, or a callback below has refused."""
        rule = "it is HTTP/1.1, and says once how long its body is"
        self._refuse(self._refusal or Problem("bad-request", rule))

    def on_message_begin(self) -> None:
        self._in_head, self._head, self._unread = True, 0, 0
        if len(self.pipeline) >= _PIPELINED:
            self._fail(Problem("bad-request", f"at most {_PIPELINED} requests wait for an answer"))
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value) + 4)
        self._unread = 0
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        whole = self.app
        if (problem := self._no_room()) is not None:
            self.app = self._turning_away(problem)  # type: ignore[assignment]
        try:
            super().on_headers_complete()  # which may fail, and is of the head then
        finally:
            self.app = whole
        self._in_head = False
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def on_body(self, body: bytes) -> None:
        self._unread = 0
        super().on_body(body)

    def on_response_complete(self) -> None:
        if self._deferred is not None and len(self.pipeline) <= (not self._in_head):
            self._write(self._deferred)
        else:
            super().on_response_complete()
        self._watch_reader()

    def _no_room(self) -> Problem | None:
        """Why the request that begins here is refused whatever follows: in a flood of them the app
        would do little else."""
        assert self.parser is not None
        if not self._pace.flooded or self.url.partition(b"?")[0] not in _COMPUTING:
            return None
        telling = any(name in _TELLING for name, _ in self.headers)
        if telling or self.parser.get_method() != b"POST":
            return None
        try:
            self._engine.require_room()
        except Problem as problem:
            return problem
        return None

    def _turning_away(self, problem: Problem) -> ASGIApp:
        """An app that says so in few words, in its turn on this connection; whoever has no key for
        it is a stranger to the app."""
        whole: Any = self.app

        async def refuse(scope: Scope, receive: Receive, send: Send) -> None:
            scope["state"]["problem"] = problem.kind
            answer = problem.response(request_id := request_id_of(scope))
            answer.headers.update(self._hardened | {"x-request-id": request_id})
            self._metrics.problems.labels(problem.kind).inc()
            self._metrics.requests.labels(scope["path"], str(problem.status)).inc()
            await answer(scope, receive, send)

        paced = Paced(refuse, self._pace, self._metrics.held.inc)

        async def turn_away(scope: Scope, receive: Receive, send: Send) -> None:
            try:
                if self._keyring is not None:
                    require_key(scope, self._keyring)
            except Problem:
                await whole(scope, receive, send)
            else:
                await paced(scope, receive, send)

        return turn_away

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_reader()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._looking is not None:  # it has read
            self._looking.cancel()
            self._looking = None

    def _watch_reader(self) -> None:
        left = self.transport.get_write_buffer_size()
        if left and self._looking is None:
            self._looking = self.loop.call_later(_LOOK_S, self._look, left)

    def _look(self, before: int) -> None:
        """Has the client read of its answer since there were `before` bytes of it?"""
        self._looking = None
        if self.transport.get_write_buffer_size() > max(before - _LEAST_BYTES, 0):
            self.transport.abort()
        else:
            self._watch_reader()

    def _expect_head(self) -> None:
        if self._late is None:
            self._late = self.loop.call_later(self._settings.head_timeout_s, self._give_up)

    def _give_up(self) -> None:
        self._late = None
        if not self.transport.is_closing():
            if self._in_head:
                self._refuse(Problem("head-timeout", "the head of a request comes without delay"))
            else:
                self.transport.close()  # it has asked nothing

    def _count(self, size: int) -> None:
        self._head += size
        if self._head > _HEAD_BYTES:
            self._fail(_too_large())

    def _fail(self, problem: Problem) -> None:
        """Stop the parser, which ends in `send_400_response`."""
        self._refusal = problem
        raise problem

    def _refuse(self, problem: Problem) -> None:
        """Answer what is being read, and read no more. Whatever came before it on this connection
        is answered first, and is not to be mistaken for it."""
        cycle = self.cycle
        if cycle is None or cycle.response_complete:
            self._write(problem)
        elif self._in_head or self.pipeline:
            self._deferred = problem
            self.flow.pause_reading()
        elif cycle.response_started:
            self.transport.close()
        else:
            self._write(problem)  # its own body is broken

    def _write(self, problem: Problem) -> None:
        if self.transport.is_closing():
            return
        request_id = secrets.token_hex(12)
        answer = problem.response(request_id)
        headers = self._hardened | {"x-request-id": request_id, "connection": "close"}
        lines = [f"{name}: {value}" for name, value in (*answer.headers.items(), *headers.items())]
        head = "\r\n".join((f"HTTP/1.1 {problem.status} {problem.title}", *lines, "", ""))
        self.transport.write(head.encode("latin-1") + bytes(answer.body))
        self.transport.close()
        self._metrics.problems.labels(problem.kind).inc()
        self._metrics.requests.labels("unmatched", str(problem.status)).inc()


def _too_large() -> Problem:
    return Problem("head-too-large", f"path and headers may have {_HEAD_BYTES} bytes")
