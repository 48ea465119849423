"""Refuse requests whose Host header is a name of another server."""

from __future__ import annotations

import ipaddress
from collections.abc import Collection
from typing import final

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from service.errors import Problem
from service.observability.request_state import get_state
from service.settings import Settings, is_loopback

ANY = "*"
LOOPBACK_NAMES = ("localhost",)


@final
class HostMiddleware:
    """ASGI middleware: answers 421 where the Host header is a name that is not allowed.

    This prevents DNS rebinding: a page of another site can resolve its own domain to an address of
    this server and then read its answers as its own, but its browser sends the domain as Host.
    Addresses are always allowed, since no domain is one.

    Args:
        allowed: names, in lower case; `*` allows any.
    """

    def __init__(self, app: ASGIApp, allowed: Collection[str]) -> None:
        self._app, self._allowed = app, frozenset(allowed)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or self._is_allowed(Headers(scope=scope).get("host", "")):
            await self._app(scope, receive, send)
            return
        detail = (
            "This server does not answer requests to the host that the Host header names. "
            "BASIN_ALLOWED_HOSTS lists the names that it has."
        )
        problem = Problem("unknown-host", detail)
        await problem.response(get_state(scope).request_id)(scope, receive, send)

    def _is_allowed(self, host: str) -> bool:
        name = strip_port(host).lower()
        # A stored job that is run again has no Host; over HTTP/1.1 a request without one is 400.
        return not name or name in self._allowed or ANY in self._allowed or is_address(name)


def allowed_hosts(settings: Settings, is_admin: bool = False) -> tuple[str, ...]:
    """Return the names that requests to the server, or to its admin port, may have as Host."""
    if settings.allowed_hosts:
        return tuple(name.lower() for name in settings.allowed_hosts)
    host = settings.admin_host if is_admin else settings.host
    return LOOPBACK_NAMES if is_loopback(host) else (ANY,)


def strip_port(host: str) -> str:
    """Return the name or address of a Host header; of IPv6 without brackets."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]


def is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
