"""Routes that read their requests themselves: FastAPI tells of them, and has nothing to resolve."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import final

from fastapi import Request
from fastapi.routing import APIRoute
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from service.context import services
from service.errors import Problem, answer_problem


@final
class Direct(APIRoute):
    """POST to a path without parameters, answered by a function of the request and `services`
    alone, by way of `exchange`."""


def direct(routes: Iterable[BaseRoute]) -> dict[str, Direct]:
    """Those of `routes`, by path."""
    return {route.path: route for route in routes if isinstance(route, Direct)}


@final
class Shortcut:
    """ASGI middleware, the innermost: what a `Direct` route answers goes to its function at once.
    To find that by the router, and what it depends on, is a tenth of what a small request costs."""

    def __init__(self, app: ASGIApp, routes: Mapping[str, Direct]) -> None:
        self._app, self._routes = app, routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        route = self._routes.get(scope["path"]) if scope["type"] == "http" else None
        if route is None or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        scope["route"] = route
        request = Request(scope, receive, send)
        try:
            response = await route.endpoint(request, await services(request))
        except Problem as problem:
            response = await answer_problem(request, problem)
        await response(scope, receive, send)
