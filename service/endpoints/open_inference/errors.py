"""Problems of routes under /v2, as that protocol tells them."""

from __future__ import annotations

from typing import Any, final

import orjson
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.errors import MEDIA_TYPE
from service.media_types import JSON

ROOT = "/v2"


@final
class OipErrorMiddleware:
    """ASGI middleware: `{"error": ...}` where there would be a problem document."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not is_of_protocol(scope["path"]):
            await self._app(scope, receive, send)
            return
        begun: Message | None = None
        parts = list[bytes]()

        async def send_told(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                if MutableHeaders(scope=message).get("content-type") == MEDIA_TYPE:
                    begun = message
                    return
            elif begun is not None:
                parts.append(message.get("body", b""))
                if message.get("more_body"):
                    return
                body = orjson.dumps({"error": _get_detail(orjson.loads(b"".join(parts)))})
                headers = MutableHeaders(scope=begun)
                headers["content-type"], headers["content-length"] = JSON, str(len(body))
                await send(begun)
                message = {"type": "http.response.body", "body": body}
            await send(message)

        await self._app(scope, receive, send_told)


def is_of_protocol(path: str) -> bool:
    return path == ROOT or path.startswith(f"{ROOT}/")


def _get_detail(problem: dict[str, Any]) -> str:
    faults = [f"{fault['pointer']}: {fault['detail']}" for fault in problem["errors"]]
    return f"{problem['title']}: {'; '.join(faults) or problem['detail']}"
