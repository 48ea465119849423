"""The Open Inference Protocol, asked by NVIDIA's client and by hand."""

from __future__ import annotations

import base64
import io
import json
import socket
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import httpx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from service.errors import Problem
from service.open_inference.schemas import (
    InferError,
    InferResponse,
    ModelMetadata,
    ServerMetadata,
)
from service.open_inference.subjects import Arrays, Completes
from service.open_inference.tensors import Inference, written
from service.settings import Settings
from tests.service.conftest import MOLECULES, Server, make_sample, make_shapes
from tests.service.fuzz import changed_somewhere
from tests.service.picture_files import saved, smooth
from tests.service.recognising import OTHER, SEEN, SHAPE
from tests.service.test_service_jobs import LATER, over

triton = pytest.importorskip("tritonclient.http")
DATATYPES = {"f": "FP32", "i": "INT64", "u": "UINT8", "b": "BOOL", "O": "BYTES"}
SMALL = smooth(20, 24)
HOLE = np.zeros((20, 24), bool)
HOLE[5:11, 6:14] = True


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[Any]:
    with triton.InferenceServerClient(f"127.0.0.1:{server.port}") as client:
        yield client


@pytest.fixture
def plain(server: Server) -> Iterator[httpx.Client]:
    with server.client() as client:
        yield client


def inferred(
    client: Any, model: str, binary: bool, tensors: Arrays, *wanted: str, **parameters: Any
) -> Any:
    inputs = []
    for name, array in tensors.items():
        inputs.append(triton.InferInput(name, array.shape, DATATYPES[array.dtype.kind]))
        inputs[-1].set_data_from_numpy(array, binary_data=binary)
    outputs = [triton.InferRequestedOutput(name, binary_data=binary) for name in wanted]
    return client.infer(model, inputs, outputs=outputs or None, parameters=parameters or None)


def texts(*each: str) -> np.ndarray:
    return np.array([text.encode() for text in each], object)


def graph(relations: int = 1) -> Arrays:
    sample = make_sample(3, relations)
    arrays = {"x": sample.x, "edge_index": sample.edge_index}
    return arrays if relations == 1 else arrays | {"edge_type": sample.edge_type}


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


def as_json(tensors: Arrays, nested: bool = False, **rest: Any) -> dict[str, Any]:
    return {
        "inputs": [
            {
                "name": name,
                "shape": list(array.shape),
                "datatype": DATATYPES[array.dtype.kind],
                "data": (array if nested else array.reshape(-1)).tolist(),
            }
            for name, array in tensors.items()
        ],
        **rest,
    }


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


X = {"name": "x", "shape": [2, 5], "datatype": "FP32", "data": [0.0] * 10}
EDGES = {"name": "edge_index", "shape": [2, 1], "datatype": "INT64", "data": [0, 1]}
BAD = {
    "not JSON": (b"{", 400, "JSON"),
    "no object": (b"[]", 422, "must be an object"),
    "no inputs": ({}, 422, "/inputs"),
    "unknown field": ({"inputs": [], "input": 1}, 422, "/input"),
    "unknown datatype": ({"inputs": [X | {"datatype": "FP8"}]}, 422, "/inputs/0/datatype"),
    "negative shape": ({"inputs": [X | {"shape": [-2, 5]}]}, 422, "/inputs/0/shape"),
    "huge shape": ({"inputs": [X | {"shape": [2**30, 2**30]}]}, 422, "/inputs/0/shape"),
    "large shape": ({"inputs": [X | {"shape": [2**15, 2**15]}]}, 422, "/inputs/0/data"),
    "many dimensions": ({"inputs": [X | {"shape": [1] * 9}]}, 422, "dimensions"),
    "short data": ({"inputs": [X | {"data": [0.0] * 9}]}, 422, "10 entries"),
    "ragged data": ({"inputs": [X | {"data": [[0.0] * 5, 1]}]}, 422, "/inputs/0/data/1"),
    "no data": ({"inputs": [{k: v for k, v in X.items() if k != "data"}]}, 422, "give `data`"),
    "both": ({"inputs": [X | {"parameters": {"binary_data_size": 40}}]}, 422, "/inputs/0"),
    "text": ({"inputs": [X | {"data": ["0"] * 10}]}, 422, "/inputs/0/data/0"),
    "true": ({"inputs": [EDGES | {"data": [True, 1]}]}, 422, "/inputs/0/data/0"),
    "too large": ({"inputs": [EDGES | {"data": [2**63, 1]}]}, 422, "INT64"),
    "twice": ({"inputs": [X, X]}, 422, "/inputs/1/name"),
    "no x": ({"inputs": [EDGES]}, 422, "/x"),
    "no such node": ({"inputs": [X, EDGES | {"data": [0, 2]}]}, 422, "/edge_index/1/0"),
    "strings": ({"inputs": [X | {"datatype": "BYTES", "data": ["a"] * 10}]}, 422, "/inputs/0"),
    "no such input": ({"inputs": [X, EDGES, X | {"name": "y"}]}, 422, "no such field"),
    "no such output": (
        {"inputs": [X, EDGES], "outputs": [{"name": "nothing"}]},
        422,
        "the outputs are row, score",
    ),
    "many parameters": (
        {"inputs": [X, EDGES], "parameters": {f"a{i}": None for i in range(20_000)}},
        422,
        "/parameters: at most 32",
    ),
    "parameters of no kind": (
        {"inputs": [X | {"parameters": {"a": None}}]},
        422,
        "/inputs/0/parameters/a",
    ),
    "a name that is none": ({"inputs": [], "parameters": {"my secret": 1}}, 422, "/parameters: a"),
    "long shape": ({"inputs": [X | {"shape": [""] * 50_000}]}, 422, "/inputs/0/shape"),
    "zero of much": (
        {"inputs": [X | {"shape": [0, 2**40, 2**40], "data": []}]},
        422,
        "/inputs/0/shape",
    ),
    "an extension": (
        {"inputs": [X, EDGES], "outputs": [{"name": "row", "parameters": {"classification": 2}}]},
        422,
        "/outputs/0/parameters/classification",
    ),
    "knobs twice": (
        {"inputs": [X, EDGES], "parameters": {"dynamics": '{"noise": 0.1}', "steps": 3}},
        422,
        "/parameters/dynamics",
    ),
    "no such knob": ({"inputs": [X, EDGES], "parameters": {"step": 3}}, 422, "/step"),
    "a bad knob": ({"inputs": [X, EDGES], "parameters": {"steps": -3}}, 422, "/dynamics/steps"),
    "bad JSON": ({"inputs": [X, EDGES], "parameters": {"resonance": "{"}}, 422, "must be JSON"),
    "left over": (b'{"inputs": []}xyz', 422, "3 bytes are left"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_read_is_an_error_of_the_protocol(plain: httpx.Client, name: str) -> None:
    sent, status, told = BAD[name]
    body = sent if isinstance(sent, bytes) else json.dumps(sent).encode()
    length = {"inference-header-content-length": str(len(body) - 3 * (name == "left over"))}
    answer = plain.post("/v2/models/et-small/infer", content=body, headers=length)
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    assert told in InferError.model_validate_json(answer.content, strict=True).error


@pytest.mark.parametrize("length", ["", "-1", "1e3", "99999999999999", "²"])
def test_a_header_of_no_length(plain: httpx.Client, length: str) -> None:
    headers = {"inference-header-content-length": length.encode()}
    answer = plain.post("/v2/models/et-small/infer", content=b"{}", headers=headers)
    assert answer.status_code in (400, 422)
    assert "error" in answer.json()


def test_nothing_is_written_that_is_too_large() -> None:
    image = np.zeros((40, 50), np.uint8)
    inference = Inference(None, {}, {"image": image, "mask": image != 0}, None, True)
    model = SimpleNamespace(
        name="m",
        route="/complete",
        sha256="",
        manifest=SimpleNamespace(version="1", architecture="et"),
    )
    with pytest.raises(Problem, match="invalid-request") as error:
        Completes(cast(Any, model)).asked(inference, Settings(max_pixels=1999))
    assert error.value.detail == "up to 64 pictures of 1999 pixels"


def test_strings_in_bytes(plain: httpx.Client) -> None:
    entry = {"name": "smiles", "shape": [2], "datatype": "BYTES"}
    good = struct.pack("<I", 3) + b"CCO" + struct.pack("<I", 1) + b"C"
    for raw, status in (
        (good, 200),
        (good[:-1], 422),
        (good + b"\0", 422),
        (struct.pack("<I", 2**32 - 1) + b"CCO", 422),
        (struct.pack("<I", 1) + b"\xff" + good[7:], 422),
    ):
        told = entry | {"parameters": {"binary_data_size": len(raw)}}
        head = json.dumps({"inputs": [told]}).encode()
        length = {"inference-header-content-length": str(len(head))}
        answer = plain.post("/v2/models/cdat-mol/infer", content=head + raw, headers=length)
        assert answer.status_code == status, answer.text


@pytest.mark.parametrize(
    ("tensors", "told"),
    [
        ({"image": SMALL.astype(np.float32), "mask": HOLE}, "/inputs/0: must be of type UINT8"),
        ({"image": SMALL[None], "mask": HOLE}, "/inputs/0: must have 2 or 3 dimensions"),
        ({"image": SMALL, "mask": HOLE[:4]}, "/mask"),
        ({"image": SMALL}, "/mask"),
        ({"image": SMALL[:0], "mask": HOLE[:0]}, "/inputs/0"),
        ({"image": SMALL, "mask": HOLE, "other\r\n": HOLE}, "no such field"),
    ],
)
def test_pictures_that_are_none(server: Server, tensors: Arrays, told: str) -> None:
    content, inputs = b"", []
    for name, array in tensors.items():
        content += array.tobytes()
        kind = {"f": "FP32", "u": "UINT8", "b": "BOOL"}[array.dtype.kind]
        entry = {"name": name, "shape": list(array.shape), "datatype": kind}
        inputs.append(entry | {"parameters": {"binary_data_size": array.nbytes}})
    head = json.dumps({"inputs": inputs}).encode()
    length = {"inference-header-content-length": str(len(head))}
    at = f"{server.url}/v2/models/et-tile/infer"
    answer = httpx.post(at, content=head + content, headers=length)
    assert answer.status_code == 422
    assert told in answer.json()["error"]


def test_strings_are_bounded(plain: httpx.Client) -> None:
    raw = bytes(4 * 70_000)
    told = {"parameters": {"binary_data_size": len(raw)}, "shape": [70_000], "datatype": "BYTES"}
    head = json.dumps({"inputs": [told | {"name": "smiles"}]}).encode()
    length = {"inference-header-content-length": str(len(head))}
    answer = plain.post("/v2/models/cdat-mol/infer", content=head + raw, headers=length)
    assert answer.status_code == 422
    assert "65536 strings" in answer.json()["error"]


def test_json_that_would_be_too_long_is_refused() -> None:
    inference = Inference(None, {}, {}, None, False)
    found = {"completed": np.zeros((5, 1000, 1000), np.uint8)}
    with pytest.raises(Problem) as error:
        written(inference, "m", "1", found, b"{}")
    assert "binary_data" in error.value.detail
    in_bytes = written(replace(inference, as_bytes=True), "m", "1", found, b"{}")
    assert len(in_bytes.file) > 5_000_000


@pytest.mark.parametrize(
    "headers",
    [{"content-type": "multipart/form-data; boundary=AAA"}, {"content-encoding": "gzip"}],
)
def test_what_is_not_read(plain: httpx.Client, headers: dict[str, str]) -> None:
    answer = plain.post("/v2/models/et-small/infer", content=b'{"inputs": []}', headers=headers)
    assert (answer.status_code, list(answer.json())) == (415, ["error"])


def test_a_memory_that_is_replaced_while_it_is_asked(server: Server) -> None:
    """What was asked about is what answers, or nothing is."""
    first, then = np.eye(3, dtype=np.float32), ["ACD", "ACC"]
    parameters = {"steps": 20, "burn_in": 10, "thin": 10, "chains": 1, "num_samples": 1}
    body = json.dumps({"inputs": [], "parameters": parameters}).encode()
    with server.client() as client:
        client.put("/memories/turning", json={"patterns": first.tolist()})
        with socket.create_connection(("127.0.0.1", server.port), 20) as line:
            head = "POST /v2/models/turning/infer HTTP/1.1\r\nhost: h\r\nconnection: close\r\n"
            line.sendall(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body[:5])
            time.sleep(0.3)
            assert client.put("/memories/turning", json={"sequences": then}).status_code == 200
            line.sendall(body[5:])
            answer = b"".join(iter(lambda: line.recv(1 << 16), b""))
        client.delete("/memories/turning")
    assert answer.startswith(b"HTTP/1.1 503 ")
    assert b"replaced" in answer


def test_errors_of_the_router_are_the_protocol_s(plain: httpx.Client) -> None:
    for answer, status in (
        (plain.get("/v2/models/nobody"), 404),
        (plain.get("/v2/models/et-small/versions/9"), 404),
        (plain.get("/v2/nothing"), 404),
        (plain.delete("/v2/models/et-small"), 405),
        (plain.post("/v2/models/et-small/infer?timeout_ms=0", json={}), 422),
    ):
        assert answer.status_code == status
        assert list(answer.json()) == ["error"]
    assert plain.get("/models/nobody").json()["type"].startswith("urn:basin")


@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_whatever_is_sent(server: Server, data: Any) -> None:
    few = graph()
    good = as_json(few | {"edge_index": few["edge_index"][:, :3]})
    body = changed_somewhere(data, st.just(json.dumps(good)))
    answer = httpx.post(f"{server.url}/v2/models/et-small/infer", content=body, timeout=20)
    if answer.status_code != 200:
        assert answer.status_code in (400, 413, 422), answer.text
        InferError.model_validate_json(answer.content, strict=True)
