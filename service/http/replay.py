"""Run a stored request through the application, as if its client had sent it and waited."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Scope

from service.http.error_handlers import response_or_problem
from service.observability.request_state import RequestState, set_state
from service.storage.jobs.request import StoredRequest


async def replay(
    app: ASGIApp,
    request: StoredRequest,
    read_body: Callable[[], Awaitable[bytes]],
    state: RequestState,
) -> Response:
    """Return the response of `app`; where it raises, the problem document that says so.

    Args:
        read_body: called once the application reads the body.
        state: of the request, with its `job_owner`; `state.route` is set to the route's template.
    """
    return await response_or_problem(_call(app, request, read_body, state), state.request_id)


async def _call(
    app: ASGIApp,
    request: StoredRequest,
    read_body: Callable[[], Awaitable[bytes]],
    state: RequestState,
) -> Response:
    response, parts = Response(), list[bytes]()
    is_body_read = False

    async def receive() -> Message:
        nonlocal is_body_read
        if is_body_read:
            await asyncio.Event().wait()  # no client, so no disconnect ever comes
        is_body_read = True
        return {"type": "http.request", "body": await read_body(), "more_body": False}

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            response.status_code = message["status"]
            response.raw_headers = list(message["headers"])
        else:
            parts.append(message.get("body", b""))

    headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in request.headers]
    scope: Scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": request.method,
        "scheme": "http",
        "path": request.path,
        "raw_path": request.path.encode(errors="replace"),
        "root_path": "",
        "query_string": request.query,
        "headers": headers,
        "client": None,
        "server": None,
    }
    set_state(scope, state)
    await app(scope, receive, send)
    if (route := scope.get("route")) is not None:
        state.route = route.path
    response.body = b"".join(parts)
    return response
