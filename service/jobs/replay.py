"""A request that was kept, sent again: through the app, as if its client had waited."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.datastructures import State
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Scope

from service.errors import answered
from service.storage.jobs.request import StoredRequest


async def replay(
    app: ASGIApp, sent: StoredRequest, body: Callable[[], Awaitable[bytes]], state: dict[str, Any]
) -> Response:
    """What `app` answers; where it fails, the problem that says so.

    Args:
        body: asked for it once the app reads it.
        state: of the request, with a `request_id`; the template of its route comes to it.
    """
    return await answered(_answer(app, sent, body, state), state["request_id"])


def is_replayed(state: State) -> bool:
    """Does nobody wait for the answer?"""
    return getattr(state, "replayed", False)


async def _answer(
    app: ASGIApp, sent: StoredRequest, body: Callable[[], Awaitable[bytes]], state: dict[str, Any]
) -> Response:
    unread, answer, parts = [body], Response(), []
    state["replayed"] = True

    async def receive() -> Message:
        if unread:
            return {"type": "http.request", "body": await unread.pop()(), "more_body": False}
        return await asyncio.Event().wait() and {}  # nobody hangs up

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            answer.status_code, answer.raw_headers = message["status"], list(message["headers"])
        else:
            parts.append(message.get("body", b""))

    headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in sent.headers]
    scope: Scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": sent.method,
        "scheme": "http",
        "path": sent.path,
        "raw_path": sent.path.encode(errors="replace"),
        "root_path": "",
        "query_string": sent.query,
        "headers": headers,
        "client": None,
        "server": None,
        "state": state,
    }
    await app(scope, receive, send)
    if (route := scope.get("route")) is not None:
        state["route"] = route.path
    answer.body = b"".join(parts)
    return answer
