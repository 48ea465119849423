"""Require an API key for every route but health probes and pages."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import final

from starlette.datastructures import Headers
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from service.auth.key_store import ApiKeyStore
from service.auth.keys import ANONYMOUS, SECRET_PATTERN, ApiKey
from service.auth.usage_limits import UsageLimits
from service.errors import Problem
from service.observability.request_state import get_state, is_job
from service.shares import Shares

_PROBES = (f"{root}/health/{name}" for root in ("", "/v2") for name in ("live", "ready"))
PUBLIC_PATHS = frozenset((*_PROBES, "/", "/docs"))
"""Health probes and pages, which reveal nothing."""
_PUBLIC_ASSETS = "/assets/"


@final
class AuthMiddleware:
    """ASGI middleware: checks the API key before a byte of the body is read.

    Sets `scope["user"]` to the `ApiKey`, or to `ANONYMOUS` where no keys are required.

    Args:
        api_keys: None where no keys are required.
        open_requests: requests with a key whose response is not sent yet, by key.
        routes: of the application; the template of the matching one is logged for a refusal.
        prefix: put before the paths of this application when they are compared with the `routes`
            of a key.
    """

    def __init__(
        self,
        app: ASGIApp,
        api_keys: ApiKeyStore | None,
        usage_limits: UsageLimits,
        open_requests: Shares,
        routes: Iterable[Route],
        prefix: str = "",
    ) -> None:
        self._app = app
        self._api_keys = api_keys
        self._usage_limits = usage_limits
        self._open_requests = open_requests
        self._routes = list(routes)
        self._prefix = prefix

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            await self._authenticate(scope)
            opened = self._open_request(scope)
        except Problem as problem:
            await self._refuse(scope, receive, send, problem)
            return
        with opened:
            await self._app(scope, receive, send)

    async def _authenticate(self, scope: Scope) -> None:
        scope["user"] = ANONYMOUS
        if self._api_keys is None or _is_public(scope["path"]):
            return
        caller = authenticate(scope, self._api_keys, self._prefix)
        if not is_job(scope):
            await self._usage_limits.check_rate(caller)

    def _open_request(self, scope: Scope) -> AbstractContextManager[None]:
        """Return a context that counts a request with a key until its response is sent.

        Behind a proxy the connections of all keys come from one address. So one key, however slowly
        it sends bodies or reads responses, may only have as many as it leaves to other keys.
        """
        name = scope["user"].name
        if not name or is_job(scope):
            return nullcontext()
        if not self._open_requests.may_take(name):
            detail = (
                f"This API key has {self._open_requests.held_by(name)} requests open, and may have "
                f"as many as it leaves free of {self._open_requests.total} (half of "
                "BASIN_MAX_CONNECTIONS). Wait for responses. Retry after 1 s."
            )
            raise Problem("too-many-connections", detail, headers={"retry-after": "1"})
        return self._open_requests.hold(name)

    async def _refuse(self, scope: Scope, receive: Receive, send: Send, problem: Problem) -> None:
        state = get_state(scope)
        state.problem = problem.kind
        matches = (route for route in self._routes if route.path_regex.match(scope["path"]))
        if route := next(matches, None):
            scope["route"] = route
        await problem.response(state.request_id)(scope, receive, send)


def _is_public(path: str) -> bool:
    return path in PUBLIC_PATHS or path.startswith(_PUBLIC_ASSETS)


def authenticate(scope: Scope, api_keys: ApiKeyStore, prefix: str = "") -> ApiKey:
    """Return the key of a request, which must be valid for its route.

    Sets `scope["user"]` as soon as the key is known, so that a refusal is logged under its name.

    Raises:
        Problem: `unauthenticated` or `forbidden`.
    """
    if is_job(scope):  # the key was checked when the job was accepted; it may have changed since
        caller = api_keys.find_by_name(get_state(scope).job_owner or "")
    else:
        caller = api_keys.find_by_secret(_secret(scope))
    if caller is None:
        raise _unauthenticated("Unknown or revoked API key.")
    scope["user"] = caller
    if caller.is_expired:
        raise _unauthenticated("This API key has expired. Ask the operator for a new one.")
    if not caller.allows(scope["method"], prefix + scope["path"]):
        challenge = {"www-authenticate": 'Bearer error="insufficient_scope"'}
        raise Problem(
            "forbidden",
            "This API key does not allow this route. Ask the operator to add the route to the key.",
            headers=challenge,
        )
    return caller


def _secret(scope: Scope) -> str:
    """Return the secret in the Authorization header.

    Raises:
        Problem: the header is missing or malformed.
    """
    sent = Headers(scope=scope).getlist("authorization")
    if not sent:
        detail = "The request has no API key. Send the header `Authorization: Bearer <key>`."
        raise Problem("unauthenticated", detail, headers=_challenge(""))
    scheme, _, secret = sent[0].partition(" ")
    if len(sent) > 1 or scheme.lower() != "bearer" or not SECRET_PATTERN.fullmatch(secret.strip()):
        raise _unauthenticated(
            "Malformed API key. Send the header `Authorization: Bearer <key>` once, with a key "
            "that starts with `basin_`."
        )
    return secret.strip()


def _unauthenticated(detail: str) -> Problem:
    return Problem("unauthenticated", detail, headers=_challenge(' error="invalid_token"'))


def _challenge(parameters: str) -> dict[str, str]:
    return {"www-authenticate": f"Bearer{parameters}"}
