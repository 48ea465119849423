"""The same models by ONNX Runtime: the same answers, and `GET /models` says so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from service.registry.loader import BackendUnavailableError, ModelLoader
from service.settings import Settings
from tests.support.completion import completed, pictures, told
from tests.support.server import Server, Start, answers_with, wait_until


@pytest.fixture(scope="module")
def servers(start: Start, checkpoints: Path) -> list[Server]:
    both = [
        start(checkpoints=checkpoints, default_completion_model="et-tile", backend=backend)
        for backend in ("torch", "onnx")
    ]
    for one in both:
        wait_until(lambda one=one: answers_with(one, "/health/ready", 200))
    return both


@pytest.mark.parametrize(
    "dynamics", [{}, {"steps": 7, "beta": 2.0}, {"tolerance": 0.3}, {"resonance": {"strength": 1}}]
)
def test_pictures_are_the_same(servers: list[Server], dynamics: dict[str, Any]) -> None:
    found, energies = [], []
    for server in servers:
        with server.client() as client:
            answer = completed(client, dynamics=dynamics)
        found.append(pictures(answer)[0].astype(int))
        energies.append(told(answer)["energy_final"])
    assert np.abs(found[0] - found[1]).max() <= 1
    assert energies[0] == pytest.approx(energies[1], rel=1e-4)


def test_models_tell_whose_kernels_they_have(servers: list[Server]) -> None:
    for server, runtime in zip(servers, ("torch", "onnxruntime"), strict=True):
        with server.client() as client:
            every = client.get("/models").json()["models"]
        found = {model["name"]: model["runtime"] for model in every}
        assert {found[name] for name in ("et-tile", "et-grey", "et-small", "cdat-mol")} == {runtime}
        assert found["ait-glyph"] == "torch", "whose memories no graph has"


def test_it_does_not_start_without(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ModelLoader.from_settings(Settings(threads=1)).onnx
    assert not ModelLoader.from_settings(Settings(threads=2)).onnx
    assert not ModelLoader.from_settings(Settings(threads=1, backend="torch")).onnx
    monkeypatch.setattr("service.registry.loader.find_spec", lambda name: None)
    assert not ModelLoader.from_settings(Settings(threads=1)).onnx
    with pytest.raises(BackendUnavailableError, match="BASIN_BACKEND"):
        ModelLoader.from_settings(Settings(backend="onnx"))
    with pytest.raises(BackendUnavailableError, match="BASIN_DEVICE"):
        ModelLoader.from_settings(Settings(device="cuda:99"))


def test_where_there_is_no_graph_torch_looks(
    checkpoints: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("no kernel")

    monkeypatch.setattr("models.onnx_backend.system.export", fails)
    assert ModelLoader(onnx=True).load(checkpoints / "et-tile").runtime == "torch"
