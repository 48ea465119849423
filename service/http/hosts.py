"""Refuse requests whose Host header is a name of another server, and heads that are ambiguous."""

from __future__ import annotations

import ipaddress
from collections.abc import Collection
from typing import final

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from service.errors import Problem
from service.observability.request_state import get_state, is_job
from service.settings import Settings, is_loopback

ANY = "*"
LOOPBACK_NAMES = ("localhost",)


@final
class HeadMiddleware:
    """ASGI middleware: answers 421 where the Host header is a name that is not allowed, and 400
    where the head is not one of HTTP/1.1.

    This prevents DNS rebinding: a page of another site can resolve its own domain to an address of
    this server and then read its answers as its own, but its browser sends the domain as Host.
    Addresses are always allowed, since no domain is one.

    Args:
        allowed: names, in lower case; `*` allows any.
    """

    def __init__(self, app: ASGIApp, allowed: Collection[str]) -> None:
        self._app, self._allowed = app, frozenset(allowed)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        problem = None if scope["type"] != "http" or is_job(scope) else self._find_problem(scope)
        if problem is None:
            await self._app(scope, receive, send)
        else:
            await problem.response(get_state(scope).request_id)(scope, receive, send)

    def _find_problem(self, scope: Scope) -> Problem | None:
        headers, version = Headers(scope=scope), scope["http_version"]
        hosts = headers.getlist("host")
        if version not in ("1.0", "1.1"):
            return Problem("bad-request", "This server speaks HTTP/1.1. Send the request as such.")
        # RFC 9112, sections 3.2 and 6.1: two readers of such a head may see two requests in it.
        if len(hosts) > 1 or (not hosts and version == "1.1"):
            return Problem("bad-request", "A request of HTTP/1.1 must have one Host header.")
        codings = [value.strip().lower() for value in headers.getlist("transfer-encoding")]
        if codings and (codings != ["chunked"] or version == "1.0"):
            return Problem("bad-request", "The only Transfer-Encoding that is read is `chunked`.")
        if hosts and not self._is_allowed(hosts[0]):
            detail = (
                "This server does not answer requests to the host that the Host header names. "
                "BASIN_ALLOWED_HOSTS lists the names that it has."
            )
            return Problem("unknown-host", detail)
        return None

    def _is_allowed(self, host: str) -> bool:
        name = strip_port(host).lower()
        return ANY in self._allowed or name in self._allowed or is_address(name)


def list_allowed_hosts(settings: Settings, is_admin: bool = False) -> tuple[str, ...]:
    """Return the names that requests to the server, or to its admin port, may have as Host.

    `BASIN_ALLOWED_HOSTS` is of the public port alone: an admin port on loopback stays closed to
    other names.
    """
    if settings.allowed_hosts and not is_admin:
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
