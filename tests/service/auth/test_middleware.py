"""Every route asks for a key, over a socket, and not everyone has one for it."""

from __future__ import annotations

import re
import socket

import httpx
import pytest
from starlette.routing import Route

from service.app import create_admin_app, create_app
from service.auth.keys import new_secret
from service.endpoints.routers import ADMIN, ROUTERS
from service.settings import Settings
from tests.service.endpoints.anomaly.test_bad_input import check
from tests.support.api_keys import Ring, bearer
from tests.support.server import Server

PROBES = {"/health/live", "/health/ready"}
PAGES = {"/", "/docs", "/assets/{path:path}"}
OPEN = PROBES | PAGES | {f"/v2{path}" for path in PROBES}


def routes_of(app, routers) -> list[tuple[str, str]]:
    """Whatever the app answers, documented or not, found by asking it."""
    routes = [*app.routes, *(route for router in routers for route in router.routes)]
    found = [route for route in routes if isinstance(route, Route)]
    paths = {(verb, route.path) for route in found for verb in route.methods or ()}
    assert len(paths) > 8
    return sorted((verb, re.sub(r"\{\w+\}", "thing", path)) for verb, path in paths)


def refused(answer: httpx.Response, status: int, kind: str) -> None:
    assert answer.status_code == status, answer.request.url
    if answer.request.url.path.startswith("/v2"):
        assert list(answer.json()) == ["error"]
    elif answer.request.method != "HEAD":
        check(answer, status, kind)


BAD_KEYS = {
    "none": {},
    "wrong": bearer(new_secret()),
    "malformed": bearer("basin_short"),
    "of another scheme": {"authorization": "Basic Zm9vOmJhcg=="},
    "empty": {"authorization": "Bearer"},
    "not ascii": {"authorization": "Bearer basin_\xe9".encode("latin-1")},
}

PUBLIC = [r for r in routes_of(create_app(Settings()), ROUTERS) if r[1] not in OPEN]
OPERATORS = [
    route
    for route in routes_of(create_admin_app(create_app(Settings()).state.context), ADMIN)
    if route[1] not in OPEN
]


@pytest.mark.parametrize("why", [*BAD_KEYS, "expired"])
def test_every_route_refuses(guarded, ring: Ring, why: str) -> None:
    server, port = guarded
    headers = BAD_KEYS[why] if why in BAD_KEYS else bearer(ring.secrets["expired"])
    with httpx.Client(headers=headers) as client:
        for at, routes in ((server.port, PUBLIC), (port, OPERATORS)):
            for verb, path in [*routes, ("GET", "/nowhere"), ("PATCH", "/classify")]:
                answer = client.request(verb, f"http://127.0.0.1:{at}{path}")
                challenge = answer.headers["www-authenticate"]
                refused(answer, 401, "unauthenticated")
                assert challenge == ("Bearer" if why == "none" else 'Bearer error="invalid_token"')


def test_every_route_refuses_a_key_for_nothing(guarded, ring: Ring) -> None:
    """One that is for all of the public port opens nothing of the operators', and the reverse."""
    server, port = guarded
    for name, at, routes in (
        ("nothing", server.port, PUBLIC),
        ("nothing", port, OPERATORS),
        ("all", port, OPERATORS),
        ("operator", server.port, PUBLIC),
    ):
        with httpx.Client(headers=bearer(ring.secrets[name])) as client:
            for verb, path in routes:
                answer = client.request(verb, f"http://127.0.0.1:{at}{path}")
                assert "insufficient_scope" in answer.headers["www-authenticate"]
                refused(answer, 403, "forbidden")


def test_every_route_lets_its_key_in(guarded, ring: Ring) -> None:
    server, port = guarded
    for name, at, routes in (("all", server.port, PUBLIC), ("operator", port, OPERATORS)):
        with httpx.Client(headers=bearer(ring.secrets[name])) as client:
            for verb, path in routes:
                answer = client.request(verb, f"http://127.0.0.1:{at}{path}")
                assert answer.status_code not in (401, 403, 429), (name, verb, path)


def test_probes_and_pages_need_no_key(guarded) -> None:
    for port, paths in ((guarded[0].port, OPEN), (guarded[1], PROBES)):
        for path in paths:
            path = path.replace("{path:path}", "page.js")
            assert httpx.get(f"http://127.0.0.1:{port}{path}").status_code == 200


def test_a_stranger_is_refused_before_the_body_is_read(server: Server) -> None:
    head = b"POST /classify HTTP/1.1\r\nHost: localhost\r\nContent-Length: 60000000\r\n\r\n"
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
        connection.sendall(head)
        assert connection.recv(12) == b"HTTP/1.1 401"


def test_a_key_behind_the_body_is_none(server: Server, ring: Ring) -> None:
    """Nor is any other trailer a header, however it arrives."""
    key = f"Authorization: Bearer {ring.secrets['all']}\r\n".encode()
    head = b"POST /classify HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
        connection.sendall(head + b"2\r\n{}\r\n0\r\n" + key + b"\r\n")
        assert connection.recv(12) == b"HTTP/1.1 401"


def test_two_keys_are_none(server: Server, ring: Ring) -> None:
    header = f"Authorization: Bearer {ring.secrets['all']}\r\n".encode()
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
        connection.sendall(b"GET /models HTTP/1.1\r\nHost: localhost\r\n" + 2 * header + b"\r\n")
        assert connection.recv(12) == b"HTTP/1.1 401"
