"""`basin.load` gives what a server answers, to the bit, without FastAPI."""

from __future__ import annotations

import base64
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import pandas as pd
import pytest
from basin_client import Client, Graph, InputError, ProblemError
from basin_client.request import Include
from PIL import Image

import basin
from tests.support.paths import REPO
from tests.support.server import Start, answers_with, wait_until

SHIPPED = sorted(path.name for path in (REPO / "checkpoints").iterdir() if path.is_dir())
PER_REQUEST = {"timings_ms", "request_id"}


@pytest.fixture(scope="module")
def client(start: Start) -> Iterator[Client]:
    server = start()
    wait_until(lambda: answers_with(server, "/health/ready", 200))
    with Client(server.url) as client:
        yield client


def load(name: str) -> Any:
    return basin.load(name, device="cpu", threads=1)


def to_call(example: dict[str, Any]) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
    """Return the method that an example body belongs to, and its arguments."""
    if "nodes" in example:
        return "score", ((pd.DataFrame(example["nodes"]), pd.DataFrame(example["edges"])),), {}
    if "transactions" in example:
        return "score_transactions", (pd.DataFrame(example["transactions"]),), {"id": "id"}
    if "smiles" in example:
        return "classify", ([*example["smiles"], "not a molecule"],), {}
    if "graphs" in example:
        graph = example["graphs"][0]
        arrays = {"x": np.array(graph["x"], np.float32)}
        arrays["edge_index"] = np.array(graph["edge_index"])
        return "classify", (Graph(**arrays),), {}
    image = base64.b64decode(example["image"])
    if "mask" in example:
        return "complete", (image, base64.b64decode(example["mask"])), {}
    if "question" in example:
        return "answer_images", (image, example["question"]), {}
    return "classify_images", (image,), {}


def require_equal(one: Any, other: Any, where: str = "") -> None:
    """Compare results to the bit, but for what each request has of its own."""
    assert type(one) is type(other), where
    if is_dataclass(one):
        for field in fields(one):
            require_equal(getattr(one, field.name), getattr(other, field.name), field.name)
    elif isinstance(one, dict):
        assert one.keys() | PER_REQUEST == other.keys() | PER_REQUEST, where
        for key in one.keys() - PER_REQUEST:
            require_equal(one[key], other[key], f"{where}/{key}")
    elif isinstance(one, list | tuple):
        assert len(one) == len(other), where
        for i, pair in enumerate(zip(one, other, strict=True)):
            require_equal(*pair, f"{where}/{i}")
    elif isinstance(one, np.ndarray | Image.Image):
        np.testing.assert_array_equal(np.asarray(one), np.asarray(other), where)
    else:
        assert one == other, where


@pytest.mark.parametrize("name", SHIPPED)
@pytest.mark.parametrize("dynamics", [None, {"steps": 3, "seed": 5}], ids=["trained", "changed"])
def test_each_shipped_model_answers_as_the_server(
    name: str, dynamics: dict[str, Any] | None, client: Client
) -> None:
    method, arguments, options = to_call(client.model(name)["example"])
    include: list[Include] = ["trace", "components"]
    if method in ("score", "score_transactions", "classify"):
        include.append("explanation")
    options |= {"dynamics": dynamics, "include": include}
    served = getattr(client, method)(*arguments, model=name, **options)
    require_equal(getattr(load(name), method)(*arguments, **options), served)


def test_a_memory_is_sampled_as_by_the_server(client: Client) -> None:
    params = {"beta": 60.0, "steps": 40, "num_samples": 3, "seed": 2}
    require_equal(basin.load("mnist-3").sample(**params), client.sample("mnist-3", **params))


def test_the_energy_and_its_trace_are_those_of_the_answer() -> None:
    model = load("cdat-ames")
    smiles = ["CCO", "not a molecule", "c1ccccc1"]
    results = model.classify(smiles, include=["trace", "components"])
    expected = [results.results[0].convergence, results.results[2].convergence]
    require_equal(model.energy(smiles), expected)
    traces = model.trace(smiles)
    assert len(traces) == 2
    for trace, convergence in zip(traces, expected, strict=True):
        assert trace["energy"][-1] == convergence.trace[-1]["energy"]
        parts = trace["attention"] + trace["hopfield"]
        np.testing.assert_allclose(parts, trace["energy"], rtol=1e-5)
        assert (np.diff(trace["storage"])[np.diff(trace["block"]) == 0] < 0).all()


def test_the_network_is_a_torch_module() -> None:
    model = load("et-tolokers")
    assert model.name == "et-tolokers"
    assert sum(parameter.numel() for parameter in model.network.parameters()) > 10_000
    assert model.manifest.architecture == "et"


def test_what_does_not_fit_is_refused_with_a_message(tmp_path) -> None:
    model = load("cdat-ames")
    with pytest.raises(InputError, match=r"call its method classify\(molecules\)"):
        model.complete(b"", b"")
    with pytest.raises(ProblemError) as refused:
        model.classify(["CCO"], dynamics={"steps": -1})
    assert refused.value.errors[0]["pointer"] == "/dynamics/steps"
    with pytest.raises(ProblemError) as unread:
        model.classify(["not a molecule"])
    assert unread.value.kind == "nothing-classified"
    image, mask = np.zeros((28, 28), np.uint8), np.full((28, 28), 255, np.uint8)
    with pytest.raises(ProblemError) as untold:
        load("et-mnist").complete(image, mask, include=["uncertainty"])
    assert untold.value.errors[0]["pointer"].startswith("/include")
    with pytest.raises(InputError, match=r"no checkpoint or memory.*cdat-ames.*mnist-3"):
        basin.load("cdat-nothing")
    with pytest.raises(InputError, match=r"manifest\.json"):
        basin.load(tmp_path)
    damaged = bytearray((REPO / "memories/mnist-3.safetensors").read_bytes())
    damaged[-100] ^= 1
    (tmp_path / "damaged.safetensors").write_bytes(damaged)
    with pytest.raises(InputError, match=r"damaged\.safetensors: the items are not those"):
        basin.load(tmp_path / "damaged.safetensors")
    with pytest.raises(InputError, match="no such GPU"):
        basin.load("cdat-ames", device="cuda:9")


def test_more_steps_than_a_server_allows_are_run() -> None:
    model = load("et-tolokers")
    nodes = pd.DataFrame({name: [0.0, 1.0] for name in model.manifest.config["features"]})
    nodes["id"] = ["a", "b"]
    edges = pd.DataFrame({"source": ["a"], "target": ["b"]})
    (convergence,) = model.energy((nodes, edges), dynamics={"steps": 500})
    assert convergence.steps == 500


def test_neither_fastapi_nor_uvicorn_is_imported() -> None:
    code = """
import sys
import basin
assert "torch" not in sys.modules
basin.load("et-mnist", device="cpu", threads=1)
print(sorted({"fastapi", "uvicorn"} & set(sys.modules)))
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=REPO)
    assert result.stdout == "[]\n", result.stderr
