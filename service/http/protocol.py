"""HTTP/1.1 as strangers speak it: bounds on what comes before a request is one, and after.

uvicorn's protocol reads heads of any size, for as long as it takes, and keeps answers for whoever
does not read them. Each would let a few connections take the memory, or all the descriptors.
"""

from __future__ import annotations

import asyncio
import secrets
import weakref
from functools import lru_cache
from typing import Any, final

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from service.auth.middleware import require_key
from service.context import AppContext
from service.errors import FieldError, Problem
from service.http.request_log import request_id_of, security_headers

_HEAD_BYTES = 1 << 16  # of the path, and names and values of headers
_UNREAD_BYTES = 1 << 19  # of a header that is not over; one read may bring half of that
_PIPELINED = 32  # requests that wait behind the one that is being answered
_COPIED = 1 << 18  # bytes of a body that are copied in less time than a call of the system takes
_LOOK_S = 10.0
_LEAST_BYTES = 100_000  # of an answer, that its client reads in that time
# Who sends one of these may be told something else than that there is no room.
_HEADERS_KEPT_FOR_APP = frozenset((b"prefer", b"expect", b"origin", b"upgrade"))
_NAME = "name-of-the-request"
_FRAMING = frozenset((b"content-length", b"transfer-encoding"))


class RejectedCycle:
    """A request that its head has refused, in the place of uvicorn's cycle. Its body goes nowhere,
    and the next request of this connection is begun when this one is complete."""

    response_started, response_complete, disconnected, more_body = True, False, False, True
    message_event = asyncio.Event()  # for which none waits

    def __init__(self, transport: asyncio.Transport, keep_alive: bool) -> None:
        self.transport, self.keep_alive = transport, keep_alive


@final
class CoalescingTransport:
    """The transport of one answer. The head waits for the first of the body, if there is one of a
    length that is told: whoever is woken by a head alone goes to sleep again."""

    def __init__(self, cycle: Any, transport: asyncio.Transport) -> None:
        self._cycle, self._transport = weakref.proxy(cycle), transport  # it holds this one
        self._head: bytes | None = None  # empty once it has gone
        self.is_closing = transport.is_closing

    def write(self, data: bytes) -> None:
        if self._head is None and self._cycle.response_started:
            self._head = b""
            if self._cycle.expected_content_length and self._cycle.scope["method"] != "HEAD":
                self._head = data
                return
        if self._head:
            head, self._head = self._head, b""
            if len(data) <= _COPIED:
                data = head + data
            else:
                self._transport.write(head)
        self._transport.write(data)

    def close(self) -> None:
        if self._head:
            self.write(b"")
        self._transport.close()


@final
class BoundedHttpProtocol(HttpToolsProtocol):
    """One connection. What is refused here is answered with a problem, and the connection ends."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        app = self.config.app.state  # type: ignore[union-attr]
        context: AppContext = app.context
        self._direct = app.direct
        self._settings, self._metrics = context.settings, context.metrics
        self._engine, self._pace = context.engine, context.pace
        self._keyring = context.keyring
        always = security_headers(context.settings.tls_certificate is not None)
        lines = (f"{name}: {value}\r\n" for name, value in always.items())
        self._hardened = "".join(lines).encode("ascii")
        self._in_head, self._head, self._unread = False, 0, 0
        self._staying = False  # a head is read again, by another parser
        self._running: Any = None  # the cycle that is being answered; uvicorn keeps the last one
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
        for cycle in (self._running, *(cycle for cycle, _ in self.pipeline)):
            if cycle is not None and not cycle.response_complete:
                cycle.disconnected = True
                cycle.message_event.set()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing() or self._deferred is not None:
            return
        self._unset_keepalive_if_required()
        self._feed(data)
        if self.cycle is None or self.cycle.response_complete:  # no head has ended yet
            self._expect_head()
        # Of a head, or of what follows a body: a header that is not over is told to nobody.
        self._unread += len(data)
        if self._unread > _UNREAD_BYTES:
            self._refuse(_too_large())

    def _feed(self, data: bytes) -> None:
        assert self.parser is not None
        try:
            self.parser.feed_data(data)
        except HttpParserUpgrade as at:
            self._stay(data[at.args[0] :])
        except HttpParserError:  # or a callback below has refused
            rule = "it is HTTP/1.1, and says once how long its body is"
            self._refuse(self._refusal or Problem("bad-request", rule))

    def _stay(self, rest: bytes) -> None:
        """There is no other protocol to change to, and the request holds as it is (RFC 9110 7.8).
        The parser takes it for over, and what follows for a request: another one reads its body."""
        self.parser = HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        framing = [b"%s: %s\r\n" % each for each in self.headers if each[0] in _FRAMING]
        self._staying = True
        self._feed(b"".join((b"POST / HTTP/1.1\r\n", *framing, b"\r\n")))
        self._feed(rest)

    def on_message_begin(self) -> None:
        if self._staying:
            return
        self._in_head, self._head, self._unread = True, 0, 0
        if len(self.pipeline) >= _PIPELINED:
            self._fail(Problem("bad-request", f"at most {_PIPELINED} requests wait for an answer"))
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        if self._staying:
            return
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value) + 4)
        self._unread = 0
        if self._in_head:  # behind a body it is a trailer, which nobody here reads
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self._staying:
            self._staying = False
            return
        wants = self._pace.flooded and self._needs_admission()
        if wants and self._engine.full:
            self._reject_early(self._engine.queue_full_error())
        else:
            super().on_headers_complete()  # which may fail, and is of the head then
            if wants:
                self._engine.expect()
        self._in_head = False
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def on_body(self, body: bytes) -> None:
        self._unread = 0
        if not isinstance(self.cycle, RejectedCycle):
            super().on_body(body)

    def on_message_complete(self) -> None:
        assert self.parser is not None
        if not self.parser.should_upgrade():
            super().on_message_complete()

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        self._running = cycle
        cycle.transport = CoalescingTransport(cycle, self.transport)
        super()._start_asgi_task(cycle, app)

    def on_response_complete(self) -> None:
        if self._deferred is not None and len(self.pipeline) <= (not self._in_head):
            self._write(self._deferred)
        else:
            super().on_response_complete()
        self._arm_slow_reader_timer()

    def _needs_admission(self) -> bool:
        """Does the request that begins here need a place, and now? Then it is refused whatever
        follows where there is none: in a flood of them the app would do little else. What waits
        behind others on this connection is the app's, and what has no key for its route: that is
        told something else."""
        assert self.parser is not None
        path = self.url.partition(b"?")[0]
        if path.decode("latin-1") not in self._direct or self.parser.get_method() != b"POST":
            return False
        waits = self.flow.write_paused or (self.cycle and not self.cycle.response_complete)
        if waits or not _HEADERS_KEPT_FOR_APP.isdisjoint([name for name, _ in self.headers]):
            return False
        return self._is_authenticated()

    def _is_authenticated(self) -> bool:
        """Is there a key with the request, where one is asked for?"""
        if self._keyring is None:
            return True
        path = self.url.partition(b"?")[0].decode("ascii")
        self.scope["method"], self.scope["path"] = "POST", path
        try:
            require_key(dict(self.scope), self._keyring)
        except Problem:
            return False
        return True

    def _reject_early(self, problem: Problem) -> None:
        """Answer at once, with neither a task nor the app, and read the next as
        `ThrottleMiddleware` does."""
        assert self.parser is not None
        keeps = self.parser.get_http_version() != "1.0" and self.parser.should_keep_alive()
        self.cycle = self._running = turned = RejectedCycle(self.transport, keeps)  # type: ignore[assignment]
        path = self.url.partition(b"?")[0].decode("ascii")
        self._send(problem, request_id_of(self.headers), path, closes=not keeps)
        if wait_s := self._pace.refuse():
            self._metrics.held.inc()
            self.loop.call_later(wait_s, self._resume_after_rejection, turned)
        else:  # but not before all that has come is read: what follows may have come too
            self.loop.call_soon(self._resume_after_rejection, turned)

    def _resume_after_rejection(self, turned: RejectedCycle) -> None:
        if turned.disconnected:
            return
        turned.response_complete = True
        if not turned.keep_alive:  # nor where the server ends meanwhile
            self.transport.close()
        self.on_response_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        # What was left of another response says nothing about how fast this one is read.
        self._cancel_slow_reader_timer()
        self._arm_slow_reader_timer()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._cancel_slow_reader_timer()  # it has read

    def _cancel_slow_reader_timer(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
            self._looking = None

    def _arm_slow_reader_timer(self) -> None:
        left = self.transport.get_write_buffer_size()
        if left and self._looking is None:
            self._looking = self.loop.call_later(_LOOK_S, self._look, left)

    def _look(self, before: int) -> None:
        """Has the client read of its answer since there were `before` bytes of it?"""
        self._looking = None
        if self.transport.get_write_buffer_size() > max(before - _LEAST_BYTES, 0):
            self.transport.abort()
        else:
            self._arm_slow_reader_timer()

    def _expect_head(self) -> None:
        if self._late is None:
            self._late = self.loop.call_later(
                self._settings.head_timeout_s, self._on_header_timeout
            )

    def _on_header_timeout(self) -> None:
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
        """Stop the parser, which ends in `_feed`."""
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
            cycle.transport.close()
        else:
            self._write(problem)  # its own body is broken

    def _write(self, problem: Problem) -> None:
        if not self.transport.is_closing():
            self._send(problem, secrets.token_hex(12), "unmatched", closes=True)
            self.transport.close()

    def _send(self, problem: Problem, request_id: str, route: str, closes: bool) -> None:
        dated = b"".join([b"%s: %s\r\n" % each for each in self.server_state.default_headers])
        last = self._hardened + (b"connection: close\r\n" if closes else b"")
        about = problem.kind, problem.detail, problem.faults, tuple(problem.headers.items())
        head, before, after = _template(*about, dated + last)
        name = request_id.encode("ascii")
        length = len(before) + len(name) + len(after)
        self.transport.write(
            b"%scontent-length: %d\r\nx-request-id: %s\r\n\r\n%s%s%s"
            % (head, length, name, before, name, after)
        )
        self._metrics.count_request(route, problem.status, problem.kind)


@lru_cache(16)  # in a flood one is told to many
def _template(
    kind: str,
    detail: str,
    faults: tuple[FieldError, ...],
    headers: tuple[tuple[str, str], ...],
    more: bytes,
) -> tuple[bytes, bytes, bytes]:
    """The head of an answer, but for how long it is and to which request, and its body before and
    after the id of that."""
    problem = Problem(kind, detail, faults, dict(headers))
    answer = problem.response(_NAME)
    lines = [b"%s: %s\r\n" % each for each in answer.raw_headers if each[0] != b"content-length"]
    before, _, after = bytes(answer.body).partition(_NAME.encode("ascii"))
    return b"".join((STATUS_LINE[problem.status], *lines, more)), before, after


def _too_large() -> Problem:
    return Problem("head-too-large", f"path and headers may have {_HEAD_BYTES} bytes")
