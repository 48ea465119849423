"""HEAD as GET without a body, and a trailing slash as none, on every route."""

from __future__ import annotations

from typing import final

from starlette.types import ASGIApp, Message, Receive, Scope, Send


@final
class NormalizeMiddleware:
    """ASGI middleware, the outermost: hands a changed copy of the scope to the application.

    A HEAD request is answered by the route for GET (RFC 9110, section 9.3.2), whose body is
    dropped. uvicorn keeps the scope of its own, by which it knows that a HEAD has no body.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if len(scope["path"]) > 1 and scope["path"].endswith("/"):
            scope = {**scope, "path": scope["path"].rstrip("/") or "/"}
        if scope["method"] != "HEAD":
            await self._app(scope, receive, send)
            return
        is_over = False

        async def receive_until_head() -> Message:
            # Once the head is sent the client counts as gone, which ends a stream of events.
            return {"type": "http.disconnect"} if is_over else await receive()

        async def send_head(message: Message) -> None:
            nonlocal is_over
            if message["type"] == "http.response.start":
                await send(message)
                await send({"type": "http.response.body", "body": b""})
                is_over = True

        await self._app({**scope, "method": "GET"}, receive_until_head, send_head)
