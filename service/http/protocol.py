"""HTTP/1.1 for untrusted clients: limits on request heads and on slow readers.

uvicorn's protocol reads request heads of any size for any length of time, and buffers responses for
clients that do not read them. Either would let a few connections exhaust memory or descriptors.

Several methods of `HttpToolsProtocol` that are overridden here are private. `pyproject.toml` pins
uvicorn's minor version, and `tests/service/http/test_uvicorn_hooks.py` checks that they exist.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any, Protocol, cast, final

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from service.auth.clients import identify_network
from service.auth.key_store import ApiKeyStore
from service.auth.middleware import authenticate
from service.engine.engine import Engine
from service.errors import Problem
from service.http.connections import require_connection
from service.http.request_log import new_request_id, request_id_of, security_headers
from service.http.throttle import RefusalThrottle
from service.observability.metrics import Metrics
from service.settings import Settings

_MAX_HEAD_BYTES = 1 << 16  # path, header names and header values
_MAX_UNPARSED_BYTES = 1 << 19  # of one unfinished header; a single read may bring half of it
_MAX_PIPELINED = 32  # requests that wait behind the one being answered
_SLOW_READER_CHECK_S = 10.0
_MIN_READ_BYTES = 100_000  # of its response, that a client must read between two checks
# With one of these headers the application may owe another response than "the queue is full".
_HEADERS_KEPT_FOR_APP = frozenset((b"prefer", b"expect", b"origin", b"upgrade"))
_BODY_LENGTH_HEADERS = frozenset((b"content-length", b"transfer-encoding"))


class ProtocolContext(Protocol):
    """What the protocol reads of `service.context.AppContext`."""

    @property
    def settings(self) -> Settings: ...
    @property
    def metrics(self) -> Metrics: ...
    @property
    def engine(self) -> Engine: ...
    @property
    def throttle(self) -> RefusalThrottle: ...
    @property
    def api_keys(self) -> ApiKeyStore | None: ...


class RejectedCycle:
    """Stands in for uvicorn's `RequestResponseCycle` of a request that was rejected by its head.

    Its body is discarded; the connection's next request starts once this one has been read.
    """

    response_started, response_complete, disconnected, more_body = True, False, False, True
    message_event = asyncio.Event()  # uvicorn sets it; no task waits for it

    def __init__(self, transport: asyncio.Transport, keep_alive: bool) -> None:
        self.transport, self.keep_alive = transport, keep_alive


@final
class BoundedHttpProtocol(HttpToolsProtocol):
    """One connection. What is rejected here is answered with a problem document."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        app = self.config.app.state  # type: ignore[union-attr]
        context: ProtocolContext = app.context
        self._inference_paths: frozenset[str] = app.inference_paths
        self._settings = context.settings
        self._metrics = context.metrics
        self._engine = context.engine
        self._throttle = context.throttle
        self._api_keys = context.api_keys
        self._security_headers = [
            (name.encode("ascii"), value.encode("ascii"))
            for name, value in security_headers(self._settings.tls_certificate is not None).items()
        ]
        self.network = ""  # of the peer, known once connected
        self._in_head = False
        self._head_bytes = 0
        self._unparsed_bytes = 0
        self._replaying_head = False  # a second parser reads the same head, see `_ignore_upgrade`
        self._running: Any = None  # the cycle being answered; uvicorn keeps only the newest
        self._parser_problem: Problem | None = None
        self._deferred: Problem | None = None  # sent once earlier requests are answered
        self._head_timer: asyncio.TimerHandle | None = None
        self._slow_reader_timer: asyncio.TimerHandle | None = None

    # --- connection -----------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.network = identify_network(self.client)
        connections = cast(set[BoundedHttpProtocol], self.connections)
        try:
            require_connection(connections, self.network, self._settings.max_connections)
        except Problem as problem:
            self._reject_and_close(problem)
        else:
            self._start_head_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self._head_timer, self._slow_reader_timer):
            if timer is not None:
                timer.cancel()
        # uvicorn tells only its newest cycle; those that run or wait before it must stop too.
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
        if self.cycle is None or self.cycle.response_complete:  # the head is still incomplete
            self._start_head_timer()
        # httptools reports a header only once it is complete, so bytes are counted here as well.
        self._unparsed_bytes += len(data)
        if self._unparsed_bytes > _MAX_UNPARSED_BYTES:
            self._reject_and_close(_head_too_large())

    # --- parser callbacks -----------------------------------------------------------------------

    def _feed(self, data: bytes) -> None:
        assert self.parser is not None
        try:
            self.parser.feed_data(data)
        except HttpParserUpgrade as upgrade:
            self._ignore_upgrade(data[upgrade.args[0] :])
        except HttpParserError:  # malformed, or a callback below raised `_parser_problem`
            detail = (
                "Malformed HTTP/1.1 request, or conflicting Content-Length and Transfer-Encoding."
            )
            self._reject_and_close(self._parser_problem or Problem("bad-request", detail))

    def _ignore_upgrade(self, rest: bytes) -> None:
        """Read on as if no upgrade had been asked for (RFC 9110 section 7.8 allows that).

        After an Upgrade header httptools takes the request for complete and its body for the next
        request. A second parser, given the same body length, reads the body instead.
        """
        self.parser = HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        body_length = [
            b"%s: %s\r\n" % header for header in self.headers if header[0] in _BODY_LENGTH_HEADERS
        ]
        self._replaying_head = True
        self._feed(b"".join((b"POST / HTTP/1.1\r\n", *body_length, b"\r\n")))
        self._feed(rest)

    def on_message_begin(self) -> None:
        if self._replaying_head:
            return
        self._in_head, self._head_bytes, self._unparsed_bytes = True, 0, 0
        if len(self.pipeline) >= _MAX_PIPELINED:
            detail = f"At most {_MAX_PIPELINED} requests may wait for a response on one connection."
            self._stop_parser(Problem("bad-request", detail))
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        if self._replaying_head:
            return
        self._count_head_bytes(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count_head_bytes(len(name) + len(value) + 4)
        self._unparsed_bytes = 0
        if self._in_head:  # after a body it is a trailer, which no route reads
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self._replaying_head:
            self._replaying_head = False
            return
        admission = self._engine.admission
        key = self._key_to_admit() if self._throttle.is_flooded else None
        if key is not None and admission.is_full(key):
            self._reject_early(admission.queue_full_error(key), key)
        else:
            super().on_headers_complete()
        self._in_head = False
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def on_body(self, body: bytes) -> None:
        self._unparsed_bytes = 0
        if not isinstance(self.cycle, RejectedCycle):
            super().on_body(body)

    def on_message_complete(self) -> None:
        assert self.parser is not None
        if not self.parser.should_upgrade():
            super().on_message_complete()

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    def on_response_complete(self) -> None:
        num_waiting = len(self.pipeline)
        if self._deferred is not None and num_waiting <= (0 if self._in_head else 1):
            self._write_and_close(self._deferred)
        else:
            super().on_response_complete()
        self._arm_slow_reader_timer()

    def _count_head_bytes(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > _MAX_HEAD_BYTES:
            self._stop_parser(_head_too_large())

    def _stop_parser(self, problem: Problem) -> None:
        """Raise out of a parser callback; `_feed` then rejects the request with `problem`."""
        self._parser_problem = problem
        raise problem

    # --- early rejection while the queue is full ------------------------------------------------

    def _key_to_admit(self) -> str | None:
        """Return the API key of this request if it surely needs a place in the queue, and nothing
        but one: its name, empty where no keys are required; else None.

        During a flood such a request can be rejected by its head alone. A request that is
        pipelined, carries a header of `_HEADERS_KEPT_FOR_APP` or lacks a valid API key is left to
        the application, which may owe it another response.
        """
        assert self.parser is not None
        path = self.url.partition(b"?")[0]
        if path.decode("latin-1") not in self._inference_paths:
            return None
        if self.parser.get_method() != b"POST":
            return None
        if self.flow.write_paused or (self.cycle and not self.cycle.response_complete):
            return None
        if not _HEADERS_KEPT_FOR_APP.isdisjoint([name for name, _ in self.headers]):
            return None
        if self._api_keys is None:
            return ""
        self.scope["method"], self.scope["path"] = "POST", path.decode("ascii")
        try:
            return authenticate(dict(self.scope), self._api_keys).name
        except Problem:
            return None

    def _reject_early(self, problem: Problem, key: str) -> None:
        """Respond without starting a task or calling the application. Where refusals are too
        frequent, the client waits as in `ThrottleMiddleware`."""
        assert self.parser is not None
        keep_alive = self.parser.get_http_version() != "1.0" and self.parser.should_keep_alive()
        rejected = RejectedCycle(self.transport, keep_alive)
        self.cycle = rejected  # type: ignore[assignment]
        self._running = rejected
        path = self.url.partition(b"?")[0].decode("ascii")
        wait = self._throttle.refuse(key or self.network)
        if wait.after_s:
            self._metrics.held.inc()
        send = partial(
            self._send_rejection, rejected, problem, request_id_of(self.headers), path, wait.after_s
        )
        if wait.before_s:
            self.loop.call_later(wait.before_s, send)
        else:
            send()

    def _send_rejection(
        self, rejected: RejectedCycle, problem: Problem, id: str, path: str, after_s: float
    ) -> None:
        if rejected.disconnected or self.transport.is_closing():
            return
        self._send(problem, id, path, close=not rejected.keep_alive)
        if after_s:
            self.loop.call_later(after_s, self._resume_after_rejection, rejected)
        else:  # after the rest of this read, which may hold the body, is parsed
            self.loop.call_soon(self._resume_after_rejection, rejected)

    def _resume_after_rejection(self, rejected: RejectedCycle) -> None:
        if rejected.disconnected:
            return
        rejected.response_complete = True
        if not rejected.keep_alive:  # also cleared by uvicorn while the server shuts down
            self.transport.close()
        self.on_response_complete()

    # --- clients that read their responses too slowly -------------------------------------------

    def pause_writing(self) -> None:
        super().pause_writing()
        # What was left of an earlier response says nothing about how fast this one is read.
        self._cancel_slow_reader_timer()
        self._arm_slow_reader_timer()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._cancel_slow_reader_timer()

    def _cancel_slow_reader_timer(self) -> None:
        if self._slow_reader_timer is not None:
            self._slow_reader_timer.cancel()
            self._slow_reader_timer = None

    def _arm_slow_reader_timer(self) -> None:
        unsent_bytes = self.transport.get_write_buffer_size()
        if unsent_bytes and self._slow_reader_timer is None:
            self._slow_reader_timer = self.loop.call_later(
                _SLOW_READER_CHECK_S, self._check_slow_reader, unsent_bytes
            )

    def _check_slow_reader(self, unsent_bytes_before: int) -> None:
        """Abort unless the client has read `_MIN_READ_BYTES` since the last check."""
        self._slow_reader_timer = None
        unsent_bytes = self.transport.get_write_buffer_size()
        if unsent_bytes > max(unsent_bytes_before - _MIN_READ_BYTES, 0):
            self.transport.abort()
        else:
            self._arm_slow_reader_timer()

    # --- rejections that close the connection ---------------------------------------------------

    def _start_head_timer(self) -> None:
        if self._head_timer is None:
            timeout_s = self._settings.head_timeout_s
            self._head_timer = self.loop.call_later(timeout_s, self._on_head_timeout)

    def _on_head_timeout(self) -> None:
        self._head_timer = None
        if self.transport.is_closing():
            return
        if self._in_head:
            timeout_s = self._settings.head_timeout_s
            detail = (
                f"The request headers did not arrive within {timeout_s:g} s (BASIN_HEAD_TIMEOUT_S)."
            )
            self._reject_and_close(Problem("head-timeout", detail))
        else:
            self.transport.close()  # an idle connection, which expects no response

    def _reject_and_close(self, problem: Problem) -> None:
        """Respond to the request being read with `problem`, and read no more.

        Requests that came before it on this connection are answered first.
        """
        cycle = self.cycle
        if cycle is None or cycle.response_complete:
            self._write_and_close(problem)
        elif self._in_head or self.pipeline:
            self._deferred = problem
            self.flow.pause_reading()
        elif cycle.response_started:
            cycle.transport.close()
        else:  # the body of the request being answered is malformed
            self._write_and_close(problem)

    def _write_and_close(self, problem: Problem) -> None:
        if not self.transport.is_closing():
            self._send(problem, new_request_id(), "unmatched", close=True)
            self.transport.close()

    def _send(self, problem: Problem, request_id: str, route: str, close: bool) -> None:
        response = problem.response(request_id)
        headers = [
            *self.server_state.default_headers,
            *response.raw_headers,
            (b"x-request-id", request_id.encode("ascii")),
            *self._security_headers,
        ]
        if close:
            headers.append((b"connection", b"close"))
        head = b"".join(b"%s: %s\r\n" % header for header in headers)
        self.transport.write(
            b"%s%s\r\n%s" % (STATUS_LINE[problem.status], head, bytes(response.body))
        )
        self._metrics.count_request(route, problem.status, problem.kind)


def _head_too_large() -> Problem:
    detail = f"Path and headers together may have at most {_MAX_HEAD_BYTES} bytes."
    return Problem("head-too-large", detail)
