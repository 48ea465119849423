"""Requests to another host's name are refused: a page whose domain was rebound reads nothing."""

from __future__ import annotations

import socket

import httpx
import pytest

from service.http.hosts import is_address, list_allowed_hosts, strip_port
from service.settings import Settings
from tests.support.server import Server, Start, answers_with, wait_until


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:8000", 200),
        ("localhost", 200),
        ("LocalHost:80", 200),
        ("[::1]:8000", 200),
        ("10.1.2.3", 200),
        ("evil.example", 421),
        ("evil.example:8000", 421),
        ("localhost.evil.example", 421),
        ("127.0.0.1.evil.example", 421),
    ],
)
def test_names_of_other_hosts_are_refused(host: str, status: int, server: Server) -> None:
    response = httpx.get(f"{server.url}/models", headers={"host": host})
    assert response.status_code == status
    if status == 421:
        assert response.json()["type"] == "urn:basin:problem:unknown-host"
        assert response.headers["x-request-id"] == response.json()["request_id"]
        preflight = {"host": host, "origin": "http://evil.example"}
        refused = httpx.options(f"{server.url}/models", headers=preflight)
        assert refused.status_code == 421


def test_the_page_and_health_are_refused_too(server: Server) -> None:
    for path in ("/", "/docs", "/health/live", "/metrics", "/no-such-path"):
        assert httpx.get(server.url + path, headers={"host": "evil.example"}).status_code == 421


@pytest.mark.parametrize(
    "head",
    [
        b"GET /health/live HTTP/1.1\r\n",
        b"GET /health/live HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n",
        b"GET /health/live HTTP/2.0\r\nHost: localhost\r\n",
        b"POST /classify HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: gzip\r\n",
        b"POST /classify HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: gzip, chunked\r\n",
        b"POST /classify HTTP/1.0\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n",
        b"POST /classify HTTP/1.1\r\nHost: localhost\r\n"
        b"Transfer-Encoding: chunked\r\nTransfer-Encoding: gzip, chunked\r\n",
    ],
)
def test_ambiguous_heads_are_refused(head: bytes, server: Server) -> None:
    with socket.create_connection(("127.0.0.1", server.port), 5) as connection:
        connection.sendall(head + b"\r\n0\r\n\r\n")
        assert connection.recv(1 << 16).startswith(b"HTTP/1.1 400 ")


def test_http_1_0_needs_no_host(server: Server) -> None:
    with socket.create_connection(("127.0.0.1", server.port), 5) as connection:
        connection.sendall(b"GET /health/live HTTP/1.0\r\n\r\n")
        assert connection.recv(1 << 16).startswith(b"HTTP/1.1 200 ")


def test_names_are_those_of_the_settings(start: Start, checkpoints) -> None:
    server = start(
        checkpoints=checkpoints,
        default_anomaly_model="et-small",
        allowed_hosts="basin.example localhost",
    )
    wait_until(lambda: answers_with(server, "/health/ready", 200))
    for host, status in (("basin.example", 200), ("localhost", 200), ("other.example", 421)):
        assert httpx.get(f"{server.url}/models", headers={"host": host}).status_code == status


def test_defaults() -> None:
    assert list_allowed_hosts(Settings()) == ("localhost",)
    public = Settings(host="0.0.0.0", open=True)
    assert list_allowed_hosts(public) == ("*",)
    assert list_allowed_hosts(public, is_admin=True) == ("localhost",)
    anyone = Settings(allowed_hosts=("*",))
    assert list_allowed_hosts(anyone, is_admin=True) == ("localhost",)
    assert list_allowed_hosts(Settings(allowed_hosts=("A.example",))) == ("a.example",)


def test_hosts_are_parsed() -> None:
    assert [strip_port(host) for host in ("a.b:1", "a.b", "[::1]:80", "[::1]", "")] == [
        *("a.b", "a.b", "::1", "::1", ""),
    ]
    assert is_address("::1")
    assert not is_address("localhost")
