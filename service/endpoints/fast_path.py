"""Routes that read their requests themselves: FastAPI tells of them, and has nothing to resolve."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import final

from fastapi import Request
from fastapi.routing import APIRoute
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from service.context import get_context
from service.errors import Problem
from service.http.error_handlers import handle_problem


@final
class FastRoute(APIRoute):
    """POST to a path without parameters, answered by a function of the request and `context`
    alone, by way of `exchange`."""


def fast_routes(routes: Iterable[BaseRoute]) -> dict[str, FastRoute]:
    """Those of `routes`, by path."""
    return {route.path: route for route in routes if isinstance(route, FastRoute)}


@final
class FastPathMiddleware:
    """ASGI middleware, the innermost: calls the function of a `FastRoute` directly.

    FastAPI's router and dependency resolution cost a tenth of a small request.
    """

    def __init__(self, app: ASGIApp, routes: Mapping[str, FastRoute]) -> None:
        self._app, self._routes = app, routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        route = self._routes.get(scope["path"]) if scope["type"] == "http" else None
        if route is None or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        scope["route"] = route
        request = Request(scope, receive, send)
        try:
            response = await route.endpoint(request, await get_context(request))
        except Problem as problem:
            response = await handle_problem(request, problem)
        await response(scope, receive, send)
