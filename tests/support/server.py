"""A server in a process of its own, and fixtures for the servers that most tests share."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from models import checkpoint
from service.registry.handles import Completer, handle_for
from tests.support.forked_server import ForkedProcess
from tests.support.paths import REPO
from tests.support.redis_server import SERVER, RedisServer


@dataclass(frozen=True)
class Server:
    url: str
    port: int
    process: subprocess.Popen[bytes] | ForkedProcess
    log: Path

    def client(self) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=30)

    def log_lines(self) -> list[dict[str, Any]]:
        return [
            json.loads(line) for line in self.log.read_text().splitlines(True) if line[-1] == "\n"
        ]


Start = Callable[..., Server]


@pytest.fixture(scope="session")
def started() -> Iterator[dict[str, list[Server]]]:
    """Servers that end with a module, and those that last."""
    servers: dict[str, list[Server]] = {"module": [], "session": []}
    yield servers
    _end(servers["module"] + servers["session"])


@pytest.fixture(scope="module", autouse=True)
def end_with_module(started: dict[str, list[Server]]) -> Iterator[None]:
    """Servers of all modules together would need more memory than there is."""
    yield
    _end(started["module"])
    started["module"].clear()


def _end(servers: list[Server]) -> None:
    for server in servers:
        server.process.kill()  # an orderly end is tested where it matters
    for server in servers:
        server.process.wait(30)


@pytest.fixture(scope="session")
def start(tmp_path_factory: pytest.TempPathFactory, started: dict[str, list[Server]]) -> Start:
    """Start servers with the given settings; they end with the module, or, if `lasts`, with the
    session.

    With `main`, the arguments of Python, a server is a new process of Python. Else it is forked
    (see `forked_server`), which is faster: enough unless the start itself, the memory of the
    process or hashes that differ between processes are tested."""

    def start_one(*main: str, lasts: bool = False, **settings: object) -> Server:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        log = tmp_path_factory.mktemp("server") / "log"
        # Each has its own jobs, graphs and memories, and computes again what is asked again.
        own = {name: log.with_name(f"{name}.sqlite") for name in ("job_store", "graph_store")}
        own["memory_store"] = log.with_name("memories")
        settings = {**own, "cache_bytes": 0} | settings
        env = {k: v for k, v in os.environ.items() if not k.startswith("BASIN_")}
        env |= {f"BASIN_{key.upper()}": str(value) for key, value in settings.items()}
        env |= {"BASIN_PORT": str(port), "BASIN_THREADS": "1"}
        if main:
            with log.open("wb") as stderr:
                process = subprocess.Popen(
                    [sys.executable, *main], cwd=REPO, env=env, stderr=stderr
                )
        else:
            process = ForkedProcess(env, log)
        server = Server(f"http://127.0.0.1:{port}", port, process, log)
        started["session" if lasts else "module"].append(server)
        return server

    return start_one


def wait_until(true: Callable[[], bool], seconds: float = 180) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


@pytest.fixture(scope="session")
def wait() -> Callable[..., None]:
    return wait_until


def gauge(server: Server, name: str) -> float:
    with server.client() as client:
        found = re.search(
            rf"^{re.escape(name)} ([0-9.e+-]+)$", client.get("/metrics").text, re.MULTILINE
        )
    assert found
    return float(found[1])


def depth(server: Server) -> float:
    return gauge(server, "basin_queue_depth")


@pytest.fixture
def idle(narrow: Server, wait: Callable[..., None]) -> Iterator[Server]:
    """The narrow server, with nothing to do before and after."""
    wait(lambda: depth(narrow) == 0)
    yield narrow
    wait(lambda: depth(narrow) == 0)


def answers_with(server: Server, path: str, status: int) -> bool:
    """Does a GET of `path` come back with `status`?"""
    assert server.process.poll() is None, server.log.read_text()
    try:
        return httpx.get(server.url + path).status_code == status
    except httpx.TransportError:
        return False


@pytest.fixture(scope="session")
def answers() -> Callable[[Server, str, int], bool]:
    return answers_with


@pytest.fixture(scope="session")
def server(start: Start, checkpoints: Path) -> Server:
    """A server as anyone would run it, but for a limit of 1 MiB."""
    one = start(
        lasts=True,
        checkpoints=checkpoints,
        default_anomaly_model="et-small",
        default_classify_model="cdat-mol",
        default_completion_model="et-tile",
        default_picture_model="ait-glyph",
        default_answer_model="ait-scene",
        max_body_bytes=1 << 20,
    )
    wait_until(lambda: answers_with(one, "/health/ready", 200))
    return one


@pytest.fixture(scope="session")
def narrow(start: Start, checkpoints: Path) -> Server:
    """A server that lets requests run long but not wait, and gives up early."""
    one = start(
        lasts=True,
        checkpoints=checkpoints,
        default_anomaly_model="et-small",
        default_classify_model="cdat-mol",
        default_completion_model="et-tile",
        default_picture_model="ait-glyph",
        default_answer_model="ait-scene",
        max_windows=8,
        max_steps=100_000_000,
        queue_size=1,
        deadline_s=4,
        body_timeout_s=0.4,
        max_nodes=100,
        max_edges=300,
    )
    wait_until(lambda: answers_with(one, "/health/ready", 200))
    return one


@pytest.fixture
def client(server: Server) -> Iterator[httpx.Client]:
    with server.client() as client:
        yield client


@pytest.fixture(scope="module")
def tile(checkpoints) -> Completer:
    model = handle_for(checkpoint.load_checkpoint(checkpoints / "et-tile"))
    assert isinstance(model, Completer)
    return model


@pytest.fixture
def redis_server(tmp_path: Path) -> Iterator[Callable[..., RedisServer]]:
    """Starts one, with these options besides."""
    if SERVER is None:
        pytest.skip("there is no redis-server here")
    started: list[RedisServer] = []

    def start(*options: str) -> RedisServer:
        folder = tmp_path / f"redis-{len(started)}"
        folder.mkdir()
        started.append(RedisServer(folder, *options))
        return started[-1]

    yield start
    for server in started:
        server.end()
