"""Servers of the benchmark's own, in other processes."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from tempfile import TemporaryDirectory

import httpx


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return free.getsockname()[1]


@contextmanager
def serving(**settings: str) -> Iterator[httpx.Client]:
    """A client of a server that is ready, and ends with the context; `settings` are variables of
    its environment.

    Raises:
        TimeoutError: it is not ready within a minute.
    """
    with process(**settings) as (_, client):
        yield client


@contextmanager
def process(**settings: str) -> Iterator[tuple[subprocess.Popen[bytes], httpx.Client]]:
    """As `serving`, with its process."""
    with started(**settings) as (server, client):
        _wait(client)
        yield server, client


@contextmanager
def started(**settings: str) -> Iterator[tuple[subprocess.Popen[bytes], httpx.Client]]:
    """As `process`, before it is ready."""
    port = free_port()
    # What is asked again is computed again.
    own = {"BASIN_PORT": str(port), "BASIN_LOG_LEVEL": "error", "BASIN_CACHE_BYTES": "0"}
    env = os.environ | own | settings
    server = subprocess.Popen([sys.executable, "-m", "service"], env=env)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=120) as client:
            yield server, client
    finally:
        server.terminate()
        server.wait()


@contextmanager
def bare(app: str) -> Iterator[int]:
    """Port of a server of `app` by uvicorn, while the context lasts."""
    port = free_port()
    command = [sys.executable, "-m", "uvicorn", app, "--port", str(port)]
    server = subprocess.Popen([*command, "--log-level", "error", "--no-access-log"])
    try:
        end = time.monotonic() + 60
        while time.monotonic() < end:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                time.sleep(0.05)
        yield port
    finally:
        server.terminate()
        server.wait()


@contextmanager
def redis() -> Iterator[str]:
    """The address of an empty one."""
    server = shutil.which("redis-server")
    assert server is not None, "redis-server is needed"
    port = free_port()
    with TemporaryDirectory() as folder:
        options = ["--port", str(port), "--bind", "127.0.0.1", "--dir", folder, "--save", ""]
        running = subprocess.Popen([server, *options], stdout=subprocess.DEVNULL)
        try:
            yield f"redis://127.0.0.1:{port}/0"
        finally:
            running.terminate()
            running.wait()


def _wait(client: httpx.Client) -> None:
    end = time.monotonic() + 60
    while time.monotonic() < end:
        try:
            if client.get("/health/ready").status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.1)
    raise TimeoutError("the server is not ready")
