"""Around the routes: whoever asks for one shows a key for it, before a byte of a body is read."""

from __future__ import annotations

from collections.abc import Iterable
from typing import final

from starlette.datastructures import Headers
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from service.auth.key_store import ApiKeyStore
from service.auth.keys import ANONYMOUS, SECRET, ApiKey
from service.context import AppContext
from service.errors import Problem

PUBLIC_PATHS = frozenset(  # for probes, which tell nothing
    f"{root}/health/{name}" for root in ("", "/v2") for name in ("live", "ready")
)


@final
class AuthMiddleware:
    """ASGI middleware. Sets `caller`, a `Key`, in the request's state.

    Args:
        under: what stands before all paths of this app in the `routes` of a key.
    """

    def __init__(
        self, app: ASGIApp, context: AppContext, routes: Iterable[Route], under: str = ""
    ) -> None:
        self._app, self._services, self._under = app, context, under
        self._routes = list(routes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            try:
                await self._admit(scope)
            except Problem as problem:
                await self._refuse(scope, receive, send, problem)
                return
        await self._app(scope, receive, send)

    async def _admit(self, scope: Scope) -> None:
        state, keyring = scope["state"], self._services.keyring
        state["caller"] = ANONYMOUS
        if keyring is None or scope["path"] in PUBLIC_PATHS:
            return
        caller = require_key(scope, keyring, self._under)
        if not state.get("replayed"):
            await self._services.tolls.check_rate(caller)

    async def _refuse(self, scope: Scope, receive: Receive, send: Send, problem: Problem) -> None:
        state = scope["state"]
        state["problem"] = problem.kind
        found = (route for route in self._routes if route.path_regex.match(scope["path"]))
        if route := next(found, None):
            scope["route"] = route
        await problem.response(state["request_id"])(scope, receive, send)


def require_key(scope: Scope, keyring: ApiKeyStore, under: str = "") -> ApiKey:
    """Whose key is shown, which is for this route. Sets `caller` as soon as it is known.

    Raises:
        Problem: there is none.
    """
    state = scope["state"]
    if state.get("replayed"):  # a job has shown its key, which may have gone since
        caller = keyring.named(state["owner"])
    else:
        caller = keyring.holder(_secret(scope))
    if caller is None:
        raise _unauthenticated("this key is not known, or no longer")
    state["caller"] = caller
    if caller.expired:
        raise _unauthenticated("this key has expired")
    if not caller.allows(scope["method"], under + scope["path"]):
        challenge = {"www-authenticate": 'Bearer error="insufficient_scope"'}
        raise Problem("forbidden", "this key is not for this route", headers=challenge)
    return caller


def _secret(scope: Scope) -> str:
    """
    Raises:
        Problem: there is nothing that could be a key.
    """
    sent = Headers(scope=scope).getlist("authorization")
    if not sent:
        raise Problem(
            "unauthenticated", "send a key: Authorization: Bearer", headers=_challenge("")
        )
    scheme, _, secret = sent[0].partition(" ")
    if len(sent) > 1 or scheme.lower() != "bearer" or not SECRET.fullmatch(secret.strip()):
        raise _unauthenticated("this is not a key of this server")
    return secret.strip()


def _unauthenticated(detail: str) -> Problem:
    return Problem("unauthenticated", detail, headers=_challenge(' error="invalid_token"'))


def _challenge(told: str) -> dict[str, str]:
    return {"www-authenticate": f"Bearer{told}"}
