"""Request ids, log lines, counters and traces, and the response to an unexpected error."""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import Iterable
from typing import TYPE_CHECKING

import structlog
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.errors import AUTH_PROBLEMS
from service.http.cancellation import ClientDisconnected
from service.http.error_handlers import internal_error
from service.observability.metrics import Metrics
from service.observability.request_state import RequestState, is_job, set_state

if TYPE_CHECKING:  # an extra
    from service.observability.tracing import TraceExporter

CLIENT_CLOSED = 499  # nginx's number for it; never on the wire, only in logs and metrics
_SECURITY_HEADERS = {
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
    "cache-control": "no-store",
}
_REQUEST_ID = re.compile(rb"[A-Za-z0-9_-]{1,64}")


def security_headers(encrypted: bool = False) -> dict[str, str]:
    """Return the headers that every response gets unless its route sets them itself.

    Args:
        encrypted: this server speaks TLS itself, so browsers are told to insist on it.
    """
    insist = {"strict-transport-security": "max-age=31536000"} if encrypted else {}
    return _SECURITY_HEADERS | insist


def new_request_id() -> str:
    """Return 24 random hexadecimal digits."""
    return secrets.token_hex(12)


def request_id_of(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """Return the client's `X-Request-Id` where it is well-formed, else a new one."""
    sent = next((value for name, value in headers if name == b"x-request-id"), b"")
    return sent.decode("ascii") if _REQUEST_ID.fullmatch(sent) else new_request_id()


class RequestLogMiddleware:
    """ASGI middleware: gives each request a `RequestState`; logs, counts and traces its end.

    Args:
        traces: exporter of traces; None where tracing is off.
        encrypted: this server speaks TLS itself.
    """

    def __init__(
        self, app: ASGIApp, metrics: Metrics, traces: TraceExporter | None, encrypted: bool = False
    ) -> None:
        self._app, self._metrics = app, metrics
        self._headers = [
            (name.encode("ascii"), value.encode("ascii"))
            for name, value in security_headers(encrypted).items()
        ]
        self._traces = traces
        self._log = structlog.get_logger()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or is_job(scope):  # a job is logged and counted by its runner
            await self._app(scope, receive, send)
            return
        state = RequestState(request_id_of(scope["headers"]))
        set_state(scope, state)
        status = 0

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = [*message["headers"], (b"x-request-id", state.request_id.encode("ascii"))]
                names = {name for name, _ in headers}
                headers += [header for header in self._headers if header[0] not in names]
                message["headers"] = headers
            await send(message)

        try:
            await self._app(scope, receive, send_with_headers)
        except ClientDisconnected:
            status = CLIENT_CLOSED
        except Exception:
            self._log.exception("request failed", request_id=state.request_id)
            if not status:
                problem = internal_error()
                state.problem = problem.kind
                response = problem.response(state.request_id)
                await response(scope, receive, send_with_headers)
            status = 500
        finally:
            state.timer.stop()
            # After the response: the event loop sends it once all that is ready has run.
            asyncio.get_running_loop().call_soon(
                self._record, scope, state, status or CLIENT_CLOSED
            )

    def _record(self, scope: Scope, state: RequestState, status: int) -> None:
        route = getattr(scope.get("route"), "path", "unmatched")
        key_name = scope["user"].name if "user" in scope else ""
        seconds = state.timer.elapsed_s()
        self._metrics.count_request(route, status, state.problem)
        phases = state.timer.phases | {"total": seconds}
        self._metrics.observe_request(route, state.model, phases)
        if state.problem in AUTH_PROBLEMS:
            self._metrics.key_refusals.labels(key_name, state.problem).inc()
        fields: dict[str, str | int | float | None] = {
            "request_id": state.request_id,
            "method": scope["method"],
            "route": route,
            "status": status,
            "problem": state.problem,
            "key": key_name or None,
            "model": state.model,
            "cost": state.cost,
        }
        if self._traces is not None:
            headers = Headers(scope=scope)
            fields["trace_id"] = self._traces.export_request(state.timer, fields, headers)
        self._log.info("request", ms=round(1e3 * seconds, 3), **fields)
