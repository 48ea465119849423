"""What the Python client does where a server refuses, is lost, or answers something else."""

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


class Scripted:
    """A server that answers as it is told: a status and headers each time, then 200."""

    def __init__(self, *script: tuple[int, dict[str, str]]) -> None:
        self.asked: list[dict[str, str]] = []
        script_left, outer = list(script), self

        class Handler(BaseHTTPRequestHandler):
            def do_DELETE(self) -> None:
                self.do_POST()

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers.get("content-length", 0)))
                outer.asked.append({name.lower(): text for name, text in self.headers.items()})
                status, headers = script_left.pop(0) if script_left else (200, {})
                if not status:
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

    def __enter__(self) -> Scripted:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def waited(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds that a client waits, which pass at once."""
    found: list[float] = []
    monkeypatch.setattr("basin_client.client.time.sleep", found.append)
    return found


def test_it_waits_as_long_as_it_is_told(waited: list[float]) -> None:
    with Scripted((429, {"retry-after": "7"}), (503, {}), (0, {})) as server:
        with Client(server.url, key="basin_mine") as client:
            assert len(client.classify("C")) == 0
        assert len(server.asked) == 4
        assert all(each["authorization"] == "Bearer basin_mine" for each in server.asked)
    assert waited[0] == 7
    assert 0.1 <= waited[1] <= 0.3
    assert 0.2 <= waited[2] <= 0.6


@pytest.mark.parametrize(
    ("script", "settings", "asked"),
    [
        ([(429, {"retry-after": "61"})], {}, 1),  # longer than it has patience for
        ([(429, {"retry-after": "40"})] * 2, {}, 2),
        ([(503, {})] * 9, {"retries": 2}, 3),
        ([(504, {})], {}, 1),  # it was begun, and would take as long again
        ([(422, {})], {}, 1),
    ],
)
def test_it_gives_up(
    waited: list[float], script: Any, settings: dict[str, Any], asked: int
) -> None:
    with Scripted(*script) as server, Client(server.url, **settings) as client:
        with pytest.raises(ProblemError):
            client.classify("C")
        assert len(server.asked) == asked


def test_what_is_forgotten_twice_is_forgotten(waited: list[float]) -> None:
    with Scripted((0, {}), (404, {})) as server, Client(server.url) as client:
        client.forget_memory("m")
        assert len(server.asked) == 2
    with Scripted((404, {})) as server, Client(server.url) as client, pytest.raises(ProblemError):
        client.forget_memory("m")


def test_only_what_computes_is_a_job() -> None:
    with Client("http://127.0.0.1:9") as client:
        for call in (operations.models(), operations.store_memory("m", np.eye(2))):
            with pytest.raises(TypeError, match="no job"):
                client.submit(call)


def test_an_answer_of_something_else(server: Server) -> None:
    with Client(server.url) as client:
        page = Request("GET", "/docs", lambda response: response.json())
        with pytest.raises(BasinError, match="none of a Basin server"):
            client.send(page)
    with Client("http://127.0.0.1:9", retries=0) as client, pytest.raises(UnreachableError):
        list(client.stream(operations.complete(b"", b"")))


def test_a_job_that_is_sent_twice_is_one(waited: list[float]) -> None:
    with Scripted((0, {})) as server, Client(server.url) as client:
        job = client.submit(operations.classify("C"))
        assert job.id == "j"
        keys = [each["idempotency-key"] for each in server.asked]
    assert len(keys) == 2
    assert keys[0] == keys[1]
    assert waited


def test_nobody_is_there(waited: list[float]) -> None:
    with (
        Client("http://127.0.0.1:9", retries=1) as client,
        pytest.raises(BasinError, match="not reached"),
    ):
        client.classify("C")
    assert len(waited) == 1


def test_an_answer_that_does_not_come(monkeypatch: pytest.MonkeyPatch) -> None:
    def late(*_: object, **__: object) -> None:
        raise httpx.ReadTimeout("late")

    with Client() as client:
        monkeypatch.setattr(client._http, "request", late)
        with pytest.raises(BasinError, match="no answer in time"):
            client.classify("C")
