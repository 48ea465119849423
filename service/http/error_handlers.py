"""Turn exceptions into problem documents."""

from __future__ import annotations

from collections.abc import Coroutine, Iterable
from typing import Any

import structlog
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from service.errors import FieldError, Problem, pointer
from service.observability.request_state import get_state


async def response_or_problem(work: Coroutine[Any, Any, Response], request_id: str) -> Response:
    """Return the response of `work`; where it raises, the problem document that says so."""
    try:
        return await work
    except Problem as problem:
        return problem.response(request_id)
    except Exception:
        structlog.get_logger().exception("request failed", request_id=request_id)
        return internal_error().response(request_id)


def internal_error() -> Problem:
    """The problem for an exception that no code expected."""
    detail = (
        "An unexpected error occurred. Report it with its request_id, under which the server "
        "log has the details."
    )
    return Problem("internal-error", detail)


async def handle_problem(request: Request, error: Exception) -> Response:
    """Exception handler for `Problem`."""
    assert isinstance(error, Problem)
    state = get_state(request.scope)
    state.problem = error.kind
    return error.response(state.request_id)


async def handle_invalid_parameters(request: Request, error: Exception) -> Response:
    """Exception handler for parameters of the path, query or header that FastAPI refuses."""
    assert isinstance(error, RequestValidationError)
    faults = [
        FieldError(pointer(*each["loc"][1:]), "not_allowed", f"{each['msg']}.")
        for each in error.errors()
    ]
    return await handle_problem(request, Problem("invalid-request", faults[0].detail, faults))


async def handle_http_exception(request: Request, error: Exception) -> Response:
    """Exception handler for what the router itself refuses: no such path, no such method."""
    assert isinstance(error, HTTPException)
    headers = dict(error.headers or {})
    if error.status_code == 404:
        problem = Problem(
            "not-found", "No route has this path. GET /docs lists the routes of this server."
        )
    elif error.status_code == 405:
        # Starlette's Allow header names the methods of the first route that matches alone.
        routes: Iterable[Route] = request.app.state.routes
        matches = [route for route in routes if route.path_regex.match(request.scope["path"])]
        methods = {method for route in matches for method in route.methods or ()}
        methods |= {"HEAD"} if "GET" in methods else set()  # see `NormalizeMiddleware`
        headers["Allow"] = ", ".join(sorted(methods))
        detail = (
            "This path does not support the method. The Allow header lists the methods that it "
            "supports."
        )
        problem = Problem("method-not-allowed", detail)
    else:
        problem = Problem(
            "bad-request",
            "The server cannot handle this HTTP request. GET /docs describes the routes.",
        )
    problem.headers |= headers
    return await handle_problem(request, problem)
