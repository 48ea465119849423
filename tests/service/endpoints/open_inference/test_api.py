"""The Open Inference Protocol, asked by NVIDIA's client and by hand."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image

from service.endpoints.open_inference.schemas import (
    InferResponse,
    ModelMetadata,
    ServerMetadata,
)
from tests.service.endpoints.jobs.test_api import LATER, over
from tests.support.checkpoints import MOLECULES, make_shapes
from tests.support.image_files import saved
from tests.support.image_models import OTHER, SEEN, SHAPE
from tests.support.open_inference import (
    DATATYPES,
    HOLE,
    SMALL,
    as_json,
    graph,
    inferred,
    texts,
    triton,
)
from tests.support.server import Server


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[Any]:
    with triton.InferenceServerClient(f"127.0.0.1:{server.port}") as client:
        yield client


@pytest.fixture
def plain(server: Server) -> Iterator[httpx.Client]:
    with server.client() as client:
        yield client


def test_it_says_what_there_is(client: Any) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    ServerMetadata.model_validate(client.get_server_metadata())
    names = {entry["name"] for entry in client.get_model_repository_index()}
    assert {"et-small", "cdat-mol", "et-tile", "ait-glyph", "ait-scene", "mnist-3"} <= names
    for entry in client.get_model_repository_index():
        name, version = entry["name"], entry["version"]
        assert client.is_model_ready(name)
        assert client.is_model_ready(name, version)
        told = client.get_model_metadata(name, version)
        ModelMetadata.model_validate(told)
        assert told == client.get_model_metadata(name)
        assert told["versions"] == [version]
    assert client.get_model_metadata("cdat-mol")["inputs"] == [
        {"name": "smiles", "datatype": "BYTES", "shape": [-1]}
    ]
    assert not client.is_model_ready("et-small", "9")
    assert not client.is_model_ready("nobody")


@pytest.mark.parametrize("binary", [False, True], ids=["json", "binary"])
def test_scores(client: Any, plain: httpx.Client, binary: bool) -> None:
    wanted = ("row", "score", "probability", "label", "rank")
    tensors = graph() | {"targets": np.array([4, 0, 9])}
    knobs = {"steps": 3, "beta_scale": 1.5, "include": "trace, components"}
    found = inferred(client, "et-small", binary, tensors, *wanted, **knobs)
    arrays = {name: tensors[name].tolist() for name in ("x", "edge_index")}
    native = plain.post(
        "/anomaly/score",
        json={
            "graph": arrays,
            "targets": [4, 0, 9],
            "dynamics": {"steps": 3, "beta_scale": 1.5},
            "include": ["trace", "components"],
        },
    ).json()
    assert found.as_numpy("row").tolist() == [4, 0, 9]
    for name in wanted[1:]:
        told = [result[name] for result in native["results"]]
        np.testing.assert_allclose(found.as_numpy(name), told, rtol=1e-5)
    response = json.loads(found.get_response()["parameters"]["response"])
    assert response["dynamics"]["steps"] == 3
    assert len(response["convergence"]["trace"]) == len(native["convergence"]["trace"])
    told = {one["name"]: one for one in client.get_model_metadata("et-small")["outputs"]}
    for output in found.get_response()["outputs"]:
        assert output["datatype"] == told[output["name"]]["datatype"]


def test_several_relations_and_half_precision(client: Any) -> None:
    tensors = graph(2)
    whole = inferred(client, "cdat-small", True, tensors)
    assert whole.get_response()["model_version"] == "1.2.3"
    others = {"x": ("FP16", np.float16), "edge_type": ("INT32", np.int32)}
    inputs = []
    for name, array in tensors.items():
        kind, dtype = others.get(name, ("INT64", np.int64))
        inputs.append(triton.InferInput(name, array.shape, kind))
        inputs[-1].set_data_from_numpy(array.astype(dtype))
    half = client.infer("cdat-small", inputs)
    np.testing.assert_allclose(half.as_numpy("score"), whole.as_numpy("score"), atol=0.05)


@pytest.mark.parametrize("binary", [False, True], ids=["json", "binary"])
def test_features_of_edges(client: Any, plain: httpx.Client, binary: bool) -> None:
    assert client.get_model_metadata("et-edges")["inputs"] == [
        {"name": "x", "datatype": "FP32", "shape": [-1, 5]},
        {"name": "edge_index", "datatype": "INT64", "shape": [2, -1]},
        {"name": "edge_attr", "datatype": "FP32", "shape": [-1, 2]},
        {"name": "edge_type", "datatype": "INT64", "shape": [-1]},
    ]
    tensors = graph(2, 2)
    result = inferred(client, "et-edges", binary, tensors)
    arrays = {name: array.tolist() for name, array in tensors.items()}
    native = plain.post("/anomaly/score", json={"model": "et-edges", "graph": arrays}).json()
    scores = [result["score"] for result in native["results"]]
    np.testing.assert_allclose(result.as_numpy("score"), scores, rtol=1e-5)
    turned = tensors | {"edge_attr": np.ascontiguousarray(tensors["edge_attr"][:, ::-1])}
    named = {"edge_feature_names": '["hour", "amount"]'}
    again = inferred(client, "et-edges", binary, turned, **named)
    np.testing.assert_allclose(again.as_numpy("score"), scores, rtol=1e-5)
    del tensors["edge_attr"]
    with pytest.raises(triton.InferenceServerException, match="/edge_attr"):
        inferred(client, "et-edges", binary, tensors)


@pytest.mark.parametrize("binary", [False, True], ids=["json", "binary"])
def test_molecules(client: Any, plain: httpx.Client, binary: bool) -> None:
    smiles = texts(MOLECULES[0], "no molecule", *MOLECULES[1:])
    wanted = ("mutagen.label", "mutagen.probabilities", "colour.probabilities", "status")
    found = inferred(client, "cdat-mol", binary, {"smiles": smiles}, *wanted)
    native = plain.post("/classify", json={"smiles": [text.decode() for text in smiles]}).json()
    status = [text.decode() if binary else text for text in found.as_numpy("status")]
    assert status == ["ok", "not_smiles", *["ok"] * 4]
    for row, result in enumerate(native["results"]):
        told = result.get("predictions", {})
        for task, labels in (("mutagen", ("no", "yes")), ("colour", ("red", "green", "blue"))):
            p = found.as_numpy(f"{task}.probabilities")[row]
            if told:
                each = told[task]["probabilities"]
                np.testing.assert_allclose(p, [each[label] for label in labels], rtol=1e-5)
            else:
                assert np.isnan(p).all()
    if binary:
        label = found.as_numpy("mutagen.label")[0].decode()
        assert label == native["results"][0]["predictions"]["mutagen"]["label"]


def test_graphs_of_columns(client: Any) -> None:
    shapes = make_shapes(1, 5)
    starts = np.cumsum([0, *(len(one.x) for one in shapes)])
    edges = [one.edge_index + start for one, start in zip(shapes, starts, strict=False)]
    tensors = {
        "x": np.concatenate([one.x for one in shapes]),
        "edge_index": np.concatenate(edges, 1),
        "ptr": starts,
    }
    found = inferred(client, "et-shape", True, tensors)
    assert found.as_numpy("shape.probabilities").shape == (5, 2)
    np.testing.assert_allclose(found.as_numpy("shape.probabilities").sum(1), 1)


@pytest.mark.parametrize("binary", [False, True], ids=["json", "binary"])
def test_pictures_are_completed(client: Any, plain: httpx.Client, binary: bool) -> None:
    tensors = {"image": SMALL, "mask": HOLE}
    found = inferred(client, "et-tile", binary, tensors, "completed", num_samples=2, noise=0.1)
    form = {"image": saved(SMALL), "mask": saved(HOLE.astype(np.uint8) * 255)}
    sent = {"dynamics": '{"noise": 0.1}', "num_samples": "2", "model": "et-tile"}
    native = plain.post("/complete", files=form, data=sent).json()
    pictures = [base64.b64decode(image["b64_png"]) for image in native["images"]]
    expected = np.stack([np.array(Image.open(io.BytesIO(picture))) for picture in pictures])
    assert found.as_numpy("completed").shape == (2, 20, 24, 3)
    np.testing.assert_array_equal(found.as_numpy("completed"), expected)


@pytest.mark.parametrize("binary", [False, True], ids=["json", "binary"])
def test_pictures_are_looked_at(client: Any, plain: httpx.Client, binary: bool) -> None:
    images = np.stack([SEEN, OTHER])
    found = inferred(client, "ait-glyph", binary, {"image": images}, "label", "probabilities")
    form = [("image", saved(SEEN)), ("image", saved(OTHER))]
    native = plain.post("/images/classify", files=form, data={"model": "ait-glyph"}).json()
    for row, result in enumerate(native["results"]):
        p = list(result["probabilities"].values())
        np.testing.assert_allclose(found.as_numpy("probabilities")[row], p, rtol=1e-5)
    asked = {"image": images, "question": texts(SHAPE)}
    answers = inferred(client, "ait-scene", binary, asked, "label", "probabilities")
    sent = {"model": "ait-scene", "question": SHAPE}
    native = plain.post("/images/answer", files=form, data=sent).json()
    told = [text.decode() if binary else text for text in answers.as_numpy("label")]
    assert told == [result["answer"] for result in native["results"]]


@pytest.mark.parametrize("binary", [False, True], ids=["json", "binary"])
def test_samples(client: Any, plain: httpx.Client, binary: bool) -> None:
    knobs = {"steps": 60, "burn_in": 10, "thin": 10, "chains": 6, "num_samples": 12, "seed": 7}
    found = inferred(client, "mnist-3", binary, {}, "samples", **knobs)
    native = plain.post("/sample", json={"memory": "mnist-3", **knobs}).json()
    samples = found.as_numpy("samples")
    [told] = client.get_model_metadata("mnist-3")["outputs"]
    assert list(samples.shape)[1:] == told["shape"][1:]
    assert found.get_response()["outputs"][0]["datatype"] == told["datatype"]
    np.testing.assert_array_equal(samples, np.array(native["samples"], np.float32))


def test_sequences_and_spectra(client: Any) -> None:
    few = {"steps": 30, "burn_in": 10, "thin": 10, "chains": 2, "num_samples": 2}
    found = inferred(client, "rrm", True, {}, **few, beta="[5.0, 50.0]")
    for name in ("samples_0", "samples_1"):
        for text in found.as_numpy(name):
            assert set(text.decode()) <= set("ACDEFGHIKLMNPQRSTVWY-")


def test_what_is_not_asked_for_comes_all_in_one_way(client: Any, plain: httpx.Client) -> None:
    found = inferred(client, "et-small", True, graph())
    assert found.as_numpy("score").shape == (40,)
    body = as_json(graph(), id="a1")
    answer = plain.post("/v2/models/et-small/versions/1.2.3/infer", json=body)
    told = InferResponse.model_validate_json(answer.content)
    assert (told.id, told.model_name, told.model_version) == ("a1", "et-small", "1.2.3")
    assert answer.headers["content-type"] == "application/json"
    assert "server-timing" in answer.headers
    scores = next(output.data for output in told.outputs if output.name == "score")
    np.testing.assert_allclose(scores, found.as_numpy("score"), rtol=1e-5)


def test_flat_and_nested_are_one(plain: httpx.Client) -> None:
    flat, nested = (
        plain.post("/v2/models/et-small/infer", json=as_json(graph(), nested)).json()
        for nested in (False, True)
    )
    assert flat["outputs"] == nested["outputs"]


def test_a_job_of_the_protocol(plain: httpx.Client, wait: Callable) -> None:
    """What tells where the JSON ends stays with it."""
    sample, content = graph(), b""
    inputs = []
    for name, array in sample.items():
        raw = array.tobytes()
        content += raw
        told = {"binary_data_size": len(raw)}
        shape, kind = list(array.shape), DATATYPES[array.dtype.kind]
        inputs.append({"name": name, "shape": shape, "datatype": kind, "parameters": told})
    head = json.dumps({"inputs": inputs, "parameters": {"binary_data_output": True}}).encode()
    length = {"inference-header-content-length": str(len(head))}
    at, body = "/v2/models/et-small/infer", head + content
    now = plain.post(at, content=body, headers=length)
    begun = plain.post(at, content=body, headers=length | LATER)
    assert begun.status_code == 202
    later = plain.get(over(plain, wait, begun.json())["result"])
    size = "inference-header-content-length"
    assert later.headers["content-type"] == "application/octet-stream"
    for answer in (now, later):
        told = json.loads(answer.content[: int(answer.headers[size])])
        sizes = [output["parameters"]["binary_data_size"] for output in told["outputs"]]
        assert int(answer.headers[size]) + sum(sizes) == len(answer.content)
