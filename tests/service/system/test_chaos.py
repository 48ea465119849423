"""What breaks beside a server while clients ask it: whatever was accepted is answered.

Redis has its own (`test_service_redis.py`).
"""

from __future__ import annotations

import resource
import select
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from models import checkpoint
from tests.service.endpoints.anomaly.test_bad_input import check
from tests.service.endpoints.sample.test_api import body
from tests.support.server import Server, Start, answers_with, wait_until
from tests.support.traffic import Traffic, kept, traffic

pytestmark = pytest.mark.slow
UNSHARE = ["unshare", "--mount", "--map-root-user"]


@pytest.fixture
def serve(start: Start, checkpoints: Path) -> Callable[..., Server]:
    def one(*main: str, **settings: Any) -> Server:
        own = {"checkpoints": checkpoints, "default_anomaly_model": "et-small"} | settings
        server = start(*main, **own)
        wait_until(lambda: answers_with(server, "/health/ready", 200))
        return server

    return one


def untroubled(seen: Traffic) -> None:
    """Scores were answered all along, in time, and alike."""
    assert seen.ended is None
    assert seen.statuses.keys() == {200}
    assert seen.longest_s < 2
    assert len(seen.scores) == 1


@pytest.fixture
def small_disk(tmp_path: Path) -> tuple[str, str]:
    """Python that runs Basin where the folder besides is a disk of 2 MiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = f"mount -t tmpfs -o size=2m tmpfs {disk}"
    try:
        subprocess.run([*UNSHARE, "sh", "-c", mount], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no disk can be mounted here")
    command = [*UNSHARE, "sh", "-c", f"{mount} && exec {sys.executable} -m service"]
    return f"import os; os.execvp('unshare', {command!r})", str(disk)


def fill(path: Path) -> None:
    with path.open("wb", buffering=0) as file:
        while True:
            file.write(b"\0" * 4096)


def test_the_disk_is_full(small_disk, serve, sample, wait) -> None:
    code, disk = small_disk
    store = {"job_store": f"{disk}/jobs.sqlite", "memory_store": f"{disk}/memories"}
    server = serve("-c", code, **store)
    filler = Path(f"/proc/{server.process.pid}/root{disk}/filler")
    patterns = {"patterns": [[1.0, 0.0], [0.0, 1.0]]}
    with server.client() as client, traffic(server, sample(3).arrays()) as seen:
        wait(lambda: len(seen.jobs) >= 3)
        assert client.put("/memories/before", json=patterns).status_code == 201
        with pytest.raises(OSError, match="No space left"):
            fill(filler)
        # A log that was written back has room for a few more.
        wait(lambda: seen.refused >= 3)
        refused = client.put("/memories/after", json={"patterns": [[1.0] * 4096]})
        check(refused, 503, "memories-unavailable")
        assert client.get("/memories/after").status_code == 404
        assert client.post("/sample", json=body(memory="before")).status_code == 200
        assert client.get("/health/ready").status_code == 200
        filler.unlink()
        before = len(seen.jobs)
        wait(lambda: len(seen.jobs) >= before + 3)
        assert client.put("/memories/after", json=patterns).status_code == 201
    untroubled(seen)
    kept(server, seen, wait)
    assert any(line["event"] == "job store failed" for line in server.log_lines())


@pytest.fixture
def admin_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def test_a_checkpoint_goes_bad(serve, checkpoints, tmp_path, admin_port, sample, wait) -> None:
    folder = tmp_path / "checkpoints"
    shutil.copytree(checkpoints / "et-small", folder / "et-small")
    shutil.copytree(checkpoints / "cdat-small", folder / "cdat-small")
    settings = {"checkpoints": folder, "job_store": tmp_path / "jobs.sqlite"}
    server = serve(**settings, admin_port=admin_port)
    weights, manifest = (folder / "et-small" / n for n in (checkpoint.WEIGHTS, checkpoint.MANIFEST))
    good = weights.read_bytes()
    told = manifest.read_bytes()
    bad = {
        weights: (good[: len(good) // 2], b"", good[:-1] + bytes([good[-1] ^ 1]), b"\xff" * 64),
        manifest: (told[:-20], b"{}", b"\0" * 100, b"[" * 100_000),
    }
    with (
        httpx.Client(base_url=f"http://127.0.0.1:{admin_port}", timeout=30) as operator,
        traffic(server, sample(3).arrays()) as seen,
    ):
        wait(lambda: len(seen.jobs) >= 2)
        for path, contents in bad.items():
            was = path.read_bytes()
            for content in contents:
                path.write_bytes(content)  # in place, under a server that has read it
                refused = operator.put("/models/et-small")
                check(refused, 422, "invalid-checkpoint")
            path.write_bytes(was)
        assert operator.put("/models/et-small").status_code == 200
        before = len(seen.jobs)
        wait(lambda: len(seen.jobs) >= before + 2)
    untroubled(seen)
    kept(server, seen, wait)

    # The next server goes on with what is whole.
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(30) == 0
    weights.write_bytes(good[:-1])
    after = serve(**settings)
    with after.client() as client:
        assert [m["name"] for m in client.get("/models").json()["models"]] == ["cdat-small"]
        check(client.post("/anomaly/score", json=sample(3).arrays()), 404, "unknown-model")
    assert any(line["event"] == "checkpoint refused" for line in after.log_lines())
    kept(after, seen, wait)


def test_there_are_no_more_descriptors(serve, sample, tmp_path, wait) -> None:
    server = serve(memory_store=tmp_path)  # which is looked into for each job
    pid = server.process.pid
    limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    with server.client() as client, traffic(server, sample(3).arrays()) as seen:
        assert client.get("/health/ready").status_code == 200  # this line is open
        wait(lambda: len(seen.jobs) >= 2)
        used = max(int(path.name) for path in Path(f"/proc/{pid}/fd").iterdir())
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (used + 10, limits[1]))
        with ExitStack() as crowd:
            lines = [socket.create_connection(("127.0.0.1", server.port), 10) for _ in range(200)]
            for line in lines:
                crowd.enter_context(line)
            before = seen.statuses[200]
            wait(lambda: seen.statuses[200] > before + 50)
            assert client.get("/health/ready").status_code == 200
            readable, _, _ = select.select(lines, [], [], 0)  # which says that it was closed
            assert len(readable) > 150
        wait(lambda: answers_with(server, "/health/live", 200))
        before = len(seen.jobs)
        wait(lambda: len(seen.jobs) >= before + 2)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)
    untroubled(seen)
    kept(server, seen, wait)


def test_told_to_end_in_the_middle(serve, sample, tmp_path, wait) -> None:
    store = tmp_path / "jobs.sqlite"
    server = serve(job_store=store, log_level="info")
    with ExitStack() as clients:
        graphs = [sample(i).arrays() for i in range(6)]
        every = [clients.enter_context(traffic(server, graph)) for graph in graphs]
        wait(lambda: all(seen.jobs for seen in every))
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(30) == 0
        wait(lambda: all(seen.ended for seen in every))
    answered = [line for line in server.log_lines() if line.get("route") == "/anomaly/score"]
    assert {line["status"] for line in answered} <= {200, 503}
    for seen in every:
        assert seen.statuses.keys() <= {200, 503}
    # None that was answered did not arrive.
    assert len(answered) == sum(seen.statuses.total() for seen in every)
    promised = [line for line in server.log_lines() if line.get("status") == 202]
    assert len(promised) == sum(len(seen.jobs) for seen in every)
    after = serve(job_store=store)
    for seen in every:
        kept(after, seen, wait)
