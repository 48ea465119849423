"""A server answers, and ends in time, whatever becomes of its log."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.support.checkpoints import FEATURES
from tests.support.paths import REPO

_GRAPH = {"x": [[0.5] * len(FEATURES)] * 2, "edge_index": [[0], [1]]}
_SHUTDOWN_S = 5


@contextmanager
def _serving(
    checkpoints: Path,
    folder: Path,
    stderr: int | None,
    prefix: Sequence[str] = (),
    module: Sequence[str] = ("service",),
) -> Iterator[tuple[httpx.Client, subprocess.Popen[bytes]]]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    settings = {"checkpoints": checkpoints, "default_anomaly_model": "et-small", "port": port}
    settings |= {name: folder / name for name in ("job_store", "graph_store", "memory_store")}
    settings |= {"shutdown_timeout_s": _SHUTDOWN_S, "threads": 1}
    env = {name: value for name, value in os.environ.items() if not name.startswith("BASIN_")}
    env |= {f"BASIN_{name.upper()}": str(value) for name, value in settings.items()}
    command = [*prefix, sys.executable, "-m", *module]
    process = subprocess.Popen(command, cwd=REPO, env=env, stderr=stderr)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as client:
            end = time.monotonic() + 120
            while True:
                assert process.poll() is None
                assert time.monotonic() < end
                try:
                    if client.get("/health/ready").status_code == 200:
                        break
                except httpx.TransportError:
                    time.sleep(0.1)
            yield client, process
    finally:
        process.kill()
        process.wait()


def _count_dropped(client: httpx.Client) -> int:
    metrics = client.get("/metrics").text
    match = re.search(r"^basin_log_lines_dropped_total ([0-9.e+]+)$", metrics, re.MULTILINE)
    assert match
    return int(float(match[1]))


def _full_pipe() -> tuple[int, int]:
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    try:
        while True:
            os.write(writing, b"\n" * (1 << 12))
    except BlockingIOError:
        os.set_blocking(writing, True)
    return reading, writing


def _end(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    assert process.wait(_SHUTDOWN_S + 5) == 0


def test_a_log_that_is_not_read_stops_no_request(checkpoints, tmp_path):
    reading, writing = _full_pipe()  # before the first line
    try:
        with _serving(checkpoints, tmp_path, writing) as (client, process):
            for _ in range(30):
                assert client.get("/health/live").status_code == 200
            answer = client.post("/anomaly/score", json={"graph": _GRAPH})
            assert answer.status_code == 200, answer.text
            _end(process)
        os.close(writing)
        writing = -1
        content = b""
        while part := os.read(reading, 1 << 16):
            content += part
        assert b"serving" not in content  # which shows that no line could be written
    finally:
        os.close(reading)
        if writing >= 0:
            os.close(writing)


def _open_full_device() -> int:
    return os.open("/dev/full", os.O_WRONLY)


def _open_pipe_without_reader() -> int:
    reading, writing = os.pipe()
    os.close(reading)
    return writing


@pytest.mark.parametrize("open_stderr", [_open_full_device, _open_pipe_without_reader])
def test_lines_that_cannot_be_written_are_counted(
    checkpoints, tmp_path, open_stderr: Callable[[], int]
):
    stderr = open_stderr()
    try:
        with _serving(checkpoints, tmp_path, stderr) as (client, process):
            assert client.post("/anomaly/score", json={"graph": _GRAPH}).status_code == 200
            count = _count_dropped(client)
            assert count >= 2
            for _ in range(5):
                assert client.get("/nothing").status_code == 404
            time.sleep(0.2)
            assert _count_dropped(client) >= count + 5
            _end(process)
    finally:
        os.close(stderr)


@pytest.mark.parametrize("command", [("service",), ("basin", "serve")])
def test_a_server_without_stderr_answers(checkpoints, tmp_path, command):
    closing = "sh", "-c", 'exec "$@" 2>&-', "sh"
    with _serving(checkpoints, tmp_path, None, closing, command) as (client, process):
        assert client.post("/anomaly/score", json={"graph": _GRAPH}).status_code == 200
        assert _count_dropped(client) == 0
        _end(process)
