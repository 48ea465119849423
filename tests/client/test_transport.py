"""Retries and errors of the Python client against servers that refuse or break the connection."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import httpx
import numpy as np
import pytest
from basin_client import BasinError, Client, ProblemError, UnreachableError, operations
from basin_client.request import Request

from tests.support.server import Server


class ScriptedServer:
    """A server that responds with the statuses and headers of `script`, then with 200.

    Status 0 closes the connection. `requests` has the headers of each request.
    """

    def __init__(self, *script: tuple[int, dict[str, str]]) -> None:
        self.requests: list[dict[str, str]] = []
        remaining = list(script)
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_DELETE(self) -> None:
                self.do_POST()

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers.get("content-length", 0)))
                outer.requests.append({name.lower(): text for name, text in self.headers.items()})
                status, headers = remaining.pop(0) if remaining else (200, {})
                if status == 0:
                    self.connection.close()
                    return
                body = b'{"id": "j", "status": "running", "results": []}'
                self.send_response(status)
                for name, text in {**headers, "content-length": str(len(body))}.items():
                    self.send_header(name, text)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever)

    def __enter__(self) -> ScriptedServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds that a client would have slept; it does not sleep."""
    pauses: list[float] = []
    monkeypatch.setattr("basin_client.client.time.sleep", pauses.append)
    return pauses


def test_pauses_before_retries(pauses: list[float]) -> None:
    with ScriptedServer((429, {"retry-after": "7"}), (503, {}), (0, {})) as server:
        with Client(server.url, key="basin_mine") as client:
            assert len(client.classify("C")) == 0
        assert len(server.requests) == 4
        assert all(headers["authorization"] == "Bearer basin_mine" for headers in server.requests)
    assert pauses[0] == 7
    assert 0.1 <= pauses[1] <= 0.3
    assert 0.2 <= pauses[2] <= 0.6


@pytest.mark.parametrize(
    ("script", "settings", "num_requests"),
    [
        ([(429, {"retry-after": "61"})], {}, 1),  # longer than max_retry_wait_s
        ([(429, {"retry-after": "40"})] * 2, {}, 2),
        ([(429, {"retry-after": "2"})] * 2, {"max_retry_wait_s": 1}, 1),
        ([(503, {})] * 9, {"retries": 2}, 3),
        ([(504, {})], {}, 1),  # the computation was started, and would take as long again
        ([(422, {})], {}, 1),
    ],
)
def test_limits_of_retries(
    pauses: list[float], script: Any, settings: dict[str, Any], num_requests: int
) -> None:
    with ScriptedServer(*script) as server, Client(server.url, **settings) as client:
        with pytest.raises(ProblemError):
            client.classify("C")
        assert len(server.requests) == num_requests


def test_deleting_twice_succeeds(pauses: list[float]) -> None:
    with ScriptedServer((0, {}), (404, {})) as server, Client(server.url) as client:
        client.forget_memory("m")
        assert len(server.requests) == 2
    with (
        ScriptedServer((404, {})) as server,
        Client(server.url) as client,
        pytest.raises(ProblemError),
    ):
        client.forget_memory("m")


def test_only_computing_requests_can_be_jobs() -> None:
    with Client("http://127.0.0.1:9") as client:
        for request in (operations.models(), operations.store_memory("m", np.eye(2))):
            with pytest.raises(TypeError, match="cannot be a job"):
                client.submit(request)


def test_response_of_another_server(server: Server) -> None:
    with Client(server.url) as client:
        page = Request("GET", "/docs", lambda response: response.json())
        with pytest.raises(BasinError, match="not one of a Basin server"):
            client.send(page)
    with Client("http://127.0.0.1:9", retries=0) as client, pytest.raises(UnreachableError):
        list(client.stream(operations.complete(b"", b"")))


def test_a_retried_job_has_one_idempotency_key(pauses: list[float]) -> None:
    with ScriptedServer((0, {})) as server, Client(server.url) as client:
        job = client.submit(operations.classify("C"))
        assert job.id == "j"
        keys = [headers["idempotency-key"] for headers in server.requests]
    assert len(keys) == 2
    assert keys[0] == keys[1]
    assert pauses


def test_no_server(pauses: list[float]) -> None:
    with (
        Client("http://127.0.0.1:9", retries=1) as client,
        pytest.raises(UnreachableError, match="was not reached"),
    ):
        client.classify("C")
    assert len(pauses) == 1


def test_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    def time_out(*_: object, **__: object) -> None:
        raise httpx.ReadTimeout("late")

    with Client() as client:
        monkeypatch.setattr(client._http, "request", time_out)
        with pytest.raises(UnreachableError, match="did not respond within timeout_s"):
            client.classify("C")
