"""Around every request: its id, its log line, its counters, and an answer if all else fails."""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import structlog
from starlette.datastructures import Headers, State
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.errors import AUTH_PROBLEMS, Problem
from service.http.cancellation import ClientDisconnected
from service.jobs.replay import is_replayed
from service.observability.metrics import Metrics
from service.observability.stopwatch import StageTimer

if TYPE_CHECKING:  # an extra
    from service.observability.tracing import Traces

CLIENT_CLOSED = 499  # nginx's number for it; never on the wire, only in logs and metrics
_HARDENED = {
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
    "cache-control": "no-store",
}
_PAGES = {
    "/docs": "default-src 'none'; connect-src 'self'; frame-ancestors 'none'; "
    "img-src 'self' data: https://fastapi.tiangolo.com; script-src 'unsafe-inline' "
    "https://cdn.jsdelivr.net; style-src 'unsafe-inline' https://cdn.jsdelivr.net"
}
"""But of these pages, with what they load."""
_POLICY = b"content-security-policy"
_REQUEST_ID = re.compile(rb"[A-Za-z0-9_-]{1,64}")


def security_headers(encrypted: bool = False) -> dict[str, str]:
    """Headers of every answer, where its route says nothing else: nothing here is a page, or for
    others; and where this server encrypts, browsers may be told to insist."""
    insist = {"strict-transport-security": "max-age=31536000"} if encrypted else {}
    return _HARDENED | insist


def _new_request_ids() -> Iterator[str]:
    """24 hexadecimal digits each, that nobody can guess: many for each call of the system, in which
    the thread that computes would take the interpreter."""
    while True:
        drawn = secrets.token_hex(12 * 256)
        yield from (drawn[at : at + 24] for at in range(0, len(drawn), 24))


_NAMES = _new_request_ids()


def request_id_of(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """The one that the client gave, if it may be one, or another."""
    sent = next((value for name, value in headers if name == b"x-request-id"), b"")
    return sent.decode("ascii") if _REQUEST_ID.fullmatch(sent) else next(_NAMES)


class RequestLogMiddleware:
    """ASGI middleware. Sets `request_id` and `stopwatch` in the request's state.

    Args:
        traces: where requests are told, if anywhere.
        encrypted: by this server.
    """

    def __init__(
        self, app: ASGIApp, metrics: Metrics, traces: Traces | None, encrypted: bool = False
    ) -> None:
        self._app, self._metrics = app, metrics
        # As they go over the wire, for every answer has them.
        pairs = security_headers(encrypted).items()
        self._headers = [(name.encode("ascii"), value.encode("ascii")) for name, value in pairs]
        self._traces = traces
        self._log = structlog.get_logger()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        replayed = scope["type"] == "http" and is_replayed(State(scope.get("state")))
        if scope["type"] != "http" or replayed:  # a job is counted by itself
            await self._app(scope, receive, send)
            return
        request_id = request_id_of(scope["headers"])
        state = scope.setdefault("state", {})
        state["request_id"], state["stopwatch"] = request_id, (watch := StageTimer())
        status = 0

        async def send_signed(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                raw = list(message["headers"])
                there = {name for name, _ in raw}
                raw.append((b"x-request-id", request_id.encode("ascii")))
                if (page := _PAGES.get(scope["path"])) and status == 200:
                    raw = [each for each in raw if each[0] != _POLICY]
                    raw.append((_POLICY, page.encode("ascii")))
                    there.add(_POLICY)
                message["headers"] = raw + [each for each in self._headers if each[0] not in there]
            await send(message)

        try:
            await self._app(scope, receive, send_signed)
        except ClientDisconnected:
            status = CLIENT_CLOSED
        except Exception:
            self._log.exception("request failed", request_id=request_id)
            if not status:
                state["problem"] = "internal-error"
                problem = Problem("internal-error", "the log has the reason under this request_id")
                await problem.response(request_id)(scope, receive, send_signed)
            status = 500
        finally:
            # Once the answer has gone, which the loop sends when all has run that is ready.
            watch.stop()
            recording = scope, status or CLIENT_CLOSED, watch
            asyncio.get_running_loop().call_soon(self._record, *recording)

    def _record(self, scope: Scope, status: int, watch: StageTimer) -> None:
        state = scope["state"]
        route = getattr(scope.get("route"), "path", "unmatched")
        problem, key = state.get("problem"), state["caller"].name if "caller" in state else ""
        seconds = watch.elapsed()
        self._metrics.count_request(route, status, problem)
        phases = watch.phases | {"total": seconds}
        self._metrics.observe_request(route, state.get("model"), phases)
        if problem in AUTH_PROBLEMS:
            self._metrics.key_refusals.labels(key, problem).inc()
        about: dict[str, str | int | float | None] = {
            "request_id": state["request_id"],
            "method": scope["method"],
            "route": route,
            "status": status,
            "problem": problem,
            "key": key or None,
            "model": state.get("model"),
            "cost": state.get("cost"),
        }
        if self._traces is not None:
            about["trace_id"] = self._traces.request(watch, about, Headers(scope=scope))
        self._log.info("request", ms=round(1e3 * seconds, 3), **about)
