"""Models come, change and go while the server runs, and no request is lost by it."""

from __future__ import annotations

import shutil
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import httpx
import pytest

from models import checkpoint
from tests.support.server import Server, Start, answers_with, wait_until


@pytest.fixture(scope="module")
def folder(checkpoints: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("own") / "checkpoints"
    for name in ("et-small", "cdat-small"):
        shutil.copytree(checkpoints / name, folder / name)
    return folder


@pytest.fixture(scope="module")
def admin(start: Start, folder: Path) -> Iterator[tuple[Server, httpx.Client]]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = start(
        checkpoints=folder,
        default_anomaly_model="et-small",
        admin_port=port,
        cache_bytes=1 << 20,
    )
    wait_until(lambda: answers_with(server, "/health/ready", 200))
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
        yield server, client


def _save(folder: Path, name: str, version: str, scale: float) -> None:
    """Another version, whose head is scaled."""
    loaded = checkpoint.load_checkpoint(folder / name)
    for parameter in loaded.network.networks[0].head.parameters():
        parameter.data *= scale
    manifest = loaded.manifest.model_copy(update={"version": version})
    shutil.rmtree(folder / name)
    checkpoint.save_checkpoint(folder / name, loaded.network, manifest, "# Another\n")


def test_a_new_version_takes_over_and_nothing_fails(admin, folder: Path, sample: Callable) -> None:
    server, operator = admin
    body, over = sample(1).arrays(), Event()
    seen: list[tuple[int, str, float]] = []

    def ask() -> None:
        with server.client() as client:
            while not over.is_set():
                answer = client.post("/anomaly/score", json=body).json()
                seen.append((200, answer["model"]["version"], answer["results"][0]["score"]))

    before = operator.get("/models").json()["models"]
    with ThreadPoolExecutor() as pool:
        asking = [pool.submit(ask) for _ in range(3)]
        try:
            for version in range(2, 5):
                _save(folder, "et-small", f"{version}.0.0", 2.0)
                answer = operator.put("/models/et-small")
                assert answer.status_code == 200, answer.text
                assert answer.json()["version"] == f"{version}.0.0"
                count = len(seen)
                wait_until(lambda count=count: len(seen) > count + 5)
        finally:
            over.set()  # else a failure would wait for those who ask
        for each in asking:
            each.result()
    scores: dict[str, set[float]] = {}
    for _, version, score in seen:
        scores.setdefault(version, set()).add(round(score, 4))
    assert {"2.0.0", "3.0.0", "4.0.0"} <= scores.keys()
    assert all(len(found) == 1 for found in scores.values()), "an answer is of the model it names"
    after = operator.get("/models").json()["models"]
    assert [model["name"] for model in after] == [model["name"] for model in before]
    assert after[1]["sha256"] != before[1]["sha256"]
    assert all(model["bytes"] > 1000 for model in after)


def test_models_go_and_come_back(admin, sample: Callable) -> None:
    server, operator = admin
    body = sample(4, 2).arrays(model="cdat-small")
    with server.client() as client:
        there = client.post("/anomaly/score", json=body)
        assert operator.delete("/models/cdat-small").status_code == 204
        gone = client.post("/anomaly/score", json=body)
        metrics = client.get("/metrics").text
        assert operator.put("/models/cdat-small").status_code == 200
        again = client.post("/anomaly/score", json=body)
    assert (there.status_code, gone.status_code, again.status_code) == (200, 404, 200)
    assert again.json()["results"] == there.json()["results"]
    assert 'basin_model_bytes{model="cdat-small"}' not in metrics
    assert operator.delete("/models/nobody").status_code == 404


def test_what_cannot_be_trusted_changes_nothing(admin, folder: Path, sample: Callable) -> None:
    server, operator = admin
    shutil.copytree(folder / "et-small", folder / "other-name")
    (weights,) = (folder / "cdat-small").glob("*.safetensors")
    kept = weights.read_bytes()
    weights.write_bytes(kept[:-1] + b"\0" + kept[-1:])
    try:
        for name in ("cdat-small", "other-name"):
            refused = operator.put(f"/models/{name}")
            assert refused.status_code == 422
            assert refused.json()["type"] == "urn:basin:problem:invalid-checkpoint"
    finally:
        weights.write_bytes(kept)
        shutil.rmtree(folder / "other-name")
    with server.client() as client:
        body = sample(4, 2).arrays(model="cdat-small")
        assert client.post("/anomaly/score", json=body).status_code == 200


@pytest.mark.parametrize("name", ["none", "..", "%2e%2e", "..%2Fcheckpoints", "Et-small", "a" * 99])
def test_nothing_outside_the_folder(admin, name: str) -> None:
    _, operator = admin
    assert operator.put(f"/models/{name}").status_code in (404, 405)


def test_the_public_port_has_none_of_it(admin) -> None:
    server, operator = admin
    with server.client() as client:
        assert client.put("/models/et-small").status_code == 405
        assert client.delete("/models/et-small").status_code == 405
    assert operator.post("/anomaly/score", json={}).status_code == 404
    assert operator.get("/health/ready").status_code == 200
    assert "basin_model_info" in operator.get("/metrics").text


def test_a_page_of_another_site_changes_nothing(admin) -> None:
    """It reaches this machine under a name of its own, which its requests carry."""
    _, operator = admin
    refused = operator.delete("/models/et-small", headers={"host": "evil.example:80"})
    assert (refused.status_code, refused.json()["type"]) == (421, "urn:basin:problem:unknown-host")
    assert "et-small" in operator.get("/models").text


def test_an_empty_server_tells_what_it_has(start: Start, tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = start(checkpoints=tmp_path, admin_port=port, wait_for_models=True)
    url = f"http://127.0.0.1:{port}/models"
    wait_until(lambda: answers_with(server, "/health/live", 200))
    wait_until(lambda: httpx.get(url).status_code == 200)
    assert httpx.get(url).json() == {"models": []}


def test_a_port_that_is_taken_ends_it_at_once(start: Start, checkpoints: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        server = start(checkpoints=checkpoints, admin_port=taken.getsockname()[1])
        assert server.process.wait(30) != 0
    log = server.log.read_text()
    assert "in use" in log
    assert "Traceback" not in log
    assert "model ready" not in log
