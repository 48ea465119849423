"""A server whose files are damaged, or cannot be written: clear errors, and all else is served."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import httpx
import pytest

from models import checkpoint
from tests.support.damage import flip_bytes
from tests.support.server import Server, Start, answers_with, gauge, wait_until

PATTERNS = {"patterns": [[1.0, 0.0, 0.5], [0.0, 1.0, 0.5]]}
SAMPLE = {"beta": 5, "steps": 20, "num_samples": 2}
LATER = {"prefer": "respond-async"}


@pytest.fixture
def folder(checkpoints: Path, tmp_path: Path) -> Path:
    for name in ("et-small", "cdat-small"):
        shutil.copytree(checkpoints / name, tmp_path / "checkpoints" / name)
    return tmp_path


@pytest.fixture
def make_read_only(folder: Path) -> Iterator[Callable[[], None]]:
    modes: dict[Path, int] = {}

    def make() -> None:
        for path in (folder, *folder.rglob("*")):
            modes[path] = path.stat().st_mode
            path.chmod(0o555 if path.is_dir() else 0o444)

    yield make
    for path, mode in modes.items():
        path.chmod(mode)


def serve(start: Start, folder: Path, *main: str) -> Server:
    stores = {name: folder / f"{name}.sqlite" for name in ("job_store", "graph_store")}
    own = {"checkpoints": folder / "checkpoints", "memory_store": folder / "memories"}
    server = start(*main, **stores, **own, default_anomaly_model="et-small")
    wait_until(lambda: answers_with(server, "/health/ready", 200))
    return server


def fill(client: httpx.Client, graph: dict) -> str:
    """Store a graph, memories and a job; return the path of the job."""
    assert client.put("/graphs/g", json=graph).status_code == 201
    for name in "ab":
        assert client.put(f"/memories/{name}", json=PATTERNS).status_code == 201
    job = client.post("/sample", json=SAMPLE | {"memory": "a"}, headers=LATER)
    assert job.status_code == 202
    wait_until(lambda: client.get(f"/jobs/{job.json()['id']}").json()["status"] == "done")
    return f"/jobs/{job.json()['id']}"


@pytest.mark.parametrize("damaged", ["graphs", "graphs-wal", "jobs", "memory", "weights"])
def test_one_percent_of_the_bytes(start: Start, folder: Path, sample, damaged: str) -> None:
    first = serve(start, folder)
    graph = sample(1).arrays()
    with first.client() as client:
        job = fill(client, graph)
        for _ in range(8):  # commits in the log
            client.put("/graphs/h", json=graph)
    first.process.kill() if damaged.endswith("-wal") else first.process.terminate()
    first.process.wait(30)
    file = {
        "graphs": folder / "graph_store.sqlite",
        "graphs-wal": folder / "graph_store.sqlite-wal",
        "jobs": folder / "job_store.sqlite",
        "memory": folder / "memories" / "a.safetensors",
        "weights": folder / "checkpoints" / "cdat-small" / checkpoint.WEIGHTS,
    }[damaged]
    flip_bytes(file, Random(1), 0.01)
    second = serve(start, folder)
    with second.client() as client:
        statuses = {
            "graphs": client.get("/graphs/g").status_code,
            "jobs": client.get(job).status_code,
            "memory": client.post("/sample", json=SAMPLE | {"memory": "a"}).status_code,
            "weights": client.get("/models/cdat-small").status_code,
            "others": client.post("/sample", json=SAMPLE | {"memory": "b"}).status_code,
            "scores": client.post("/anomaly/score", json=graph).status_code,
        }
    part = damaged.removesuffix("-wal")
    refused = 404 if part == "weights" else 503
    assert statuses == dict.fromkeys(statuses, 200) | {part: refused}
    errors = [line for line in second.log_lines() if line.get("level") == "error"]
    name = "cdat-small" if part == "weights" else file.name.removesuffix("-wal")
    assert any(name in str(line) for line in errors), errors
    assert not [line for line in second.log_lines() if line.get("status") == 500]


def test_a_job_over_a_damaged_memory_is_dead_and_the_queue_goes_on(
    start: Start, folder: Path
) -> None:
    server = serve(start, folder)
    with server.client() as client:
        for name in "ab":
            assert client.put(f"/memories/{name}", json=PATTERNS).status_code == 201
        flip_bytes(folder / "memories" / "a.safetensors", Random(1), 0.01)
        bad, good = (
            client.post("/sample", json=SAMPLE | {"memory": name}, headers=LATER).json()["id"]
            for name in "ab"
        )
        wait_until(lambda: client.get(f"/jobs/{bad}").json()["status"] == "failed")
        wait_until(lambda: client.get(f"/jobs/{good}").json()["status"] == "done")
        result = client.get(f"/jobs/{bad}/result")
        assert result.status_code == 503
        assert result.json()["type"].endswith("memory-damaged")
        wait_until(lambda: gauge(server, "basin_jobs_dead") == 1)


def test_where_nothing_can_be_written(start: Start, folder: Path, sample) -> None:
    server = serve(start, folder, "-m", "tests.support.server_with_full_disk")
    graph = sample(1).arrays()
    with server.client() as client:
        job = fill(client, graph)
        large = {"graph": {"x": [[0.1] * 5] * 9_000, "edge_index": [[0], [1]]}}
        for _ in range(12):  # until a megabyte is full
            last = client.put("/graphs/large", json=large)
        assert last.json()["type"].endswith("graphs-unavailable"), last.text
        big = {"patterns": [[1.0] * 200_000, [2.0] + [1.0] * 199_999]}
        assert client.put("/memories/big", json=big).status_code == 503
        sent = SAMPLE | {"memory": {"patterns": big["patterns"]}}
        assert client.post("/sample", json=sent, headers=LATER).status_code == 503
        assert client.get("/graphs/g").status_code == 200
        assert client.get(job).status_code == 200
        stored = {"graph_id": "g", "targets": graph["graph"]["node_ids"][:1]}
        assert client.post("/anomaly/score", json=stored).status_code == 200
        assert client.post("/sample", json=SAMPLE | {"memory": "a"}).status_code == 200
        assert client.post("/anomaly/score", json=graph).status_code == 200
    assert not [line for line in server.log_lines() if line.get("status") == 500]


def test_where_files_are_read_only(
    start: Start, folder: Path, sample, make_read_only: Callable[[], None]
) -> None:
    first = serve(start, folder)
    graph = sample(1).arrays()
    with first.client() as client:
        job = fill(client, graph)
        card = client.get("/memories/a").json()
    first.process.terminate()
    first.process.wait(30)
    make_read_only()
    second = serve(start, folder, "-m", "tests.support.server_as_plain_user")
    with second.client() as client:
        refused = {
            "graphs-unavailable": [
                client.get("/graphs/g"),
                client.put("/graphs/h", json=graph),
                client.delete("/graphs/g"),
            ],
            "memories-unavailable": [
                client.put("/memories/c", json=PATTERNS),
                client.delete("/memories/a"),
            ],
            "jobs-unavailable": [
                client.get(job),
                client.post("/sample", json=SAMPLE, headers=LATER),
            ],
        }
        for kind, answers in refused.items():
            for answer in answers:
                assert answer.status_code == 503, answer.text
                assert answer.json()["type"].endswith(kind)
        assert client.get("/memories/a").json() == card
        assert client.post("/sample", json=SAMPLE | {"memory": "a"}).status_code == 200
        assert client.post("/anomaly/score", json=graph).status_code == 200
    errors = [str(line) for line in second.log_lines() if line.get("level") == "error"]
    assert sum("is read-only for this process" in line for line in errors) == 2, errors
    assert not [line for line in second.log_lines() if line.get("status") == 500]
    folder.chmod(0o755)
    for path in folder.glob("*.sqlite"):
        path.chmod(0o644)
    with second.client() as client:  # without a restart
        wait_until(lambda: client.get("/graphs/g").status_code == 200)
        wait_until(lambda: client.get(job).status_code == 200)
