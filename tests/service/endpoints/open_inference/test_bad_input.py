"""What the Open Inference Protocol refuses, and how it says so."""

from __future__ import annotations

import json
import socket
import struct
import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import httpx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.endpoints.open_inference.adapters import Arrays, Completes
from service.endpoints.open_inference.schemas import (
    InferError,
)
from service.endpoints.open_inference.tensors import Inference, written
from service.errors import Problem
from service.settings import Settings
from tests.support.fuzz import changed_somewhere
from tests.support.open_inference import HOLE, SMALL, as_json, graph
from tests.support.server import Server

X = {"name": "x", "shape": [2, 5], "datatype": "FP32", "data": [0.0] * 10}
EDGES = {"name": "edge_index", "shape": [2, 1], "datatype": "INT64", "data": [0, 1]}
BAD = {
    "not JSON": (b"{", 400, "JSON"),
    "no object": (b"[]", 422, "must be a JSON object"),
    "no inputs": ({}, 422, "/inputs"),
    "unknown field": ({"inputs": [], "input": 1}, 422, "/input"),
    "unknown datatype": ({"inputs": [X | {"datatype": "FP8"}]}, 422, "/inputs/0/datatype"),
    "negative shape": ({"inputs": [X | {"shape": [-2, 5]}]}, 422, "/inputs/0/shape"),
    "huge shape": ({"inputs": [X | {"shape": [2**30, 2**30]}]}, 422, "/inputs/0/shape"),
    "large shape": ({"inputs": [X | {"shape": [2**15, 2**15]}]}, 422, "/inputs/0/data"),
    "many dimensions": ({"inputs": [X | {"shape": [1] * 9}]}, 422, "dimensions"),
    "short data": ({"inputs": [X | {"data": [0.0] * 9}]}, 422, "10 entries"),
    "ragged data": ({"inputs": [X | {"data": [[0.0] * 5, 1]}]}, 422, "/inputs/0/data/1"),
    "no data": ({"inputs": [{k: v for k, v in X.items() if k != "data"}]}, 422, "either `data`"),
    "both": ({"inputs": [X | {"parameters": {"binary_data_size": 40}}]}, 422, "/inputs/0"),
    "text": ({"inputs": [X | {"data": ["0"] * 10}]}, 422, "/inputs/0/data/0"),
    "true": ({"inputs": [EDGES | {"data": [True, 1]}]}, 422, "/inputs/0/data/0"),
    "too large": ({"inputs": [EDGES | {"data": [2**63, 1]}]}, 422, "INT64"),
    "twice": ({"inputs": [X, X]}, 422, "/inputs/1/name"),
    "no x": ({"inputs": [EDGES]}, 422, "/x"),
    "no such node": ({"inputs": [X, EDGES | {"data": [0, 2]}]}, 422, "/edge_index/1/0"),
    "strings": ({"inputs": [X | {"datatype": "BYTES", "data": ["a"] * 10}]}, 422, "/inputs/0"),
    "no such input": ({"inputs": [X, EDGES, X | {"name": "y"}]}, 422, "Unknown field"),
    "no such output": (
        {"inputs": [X, EDGES], "outputs": [{"name": "nothing"}]},
        422,
        "row, score",
    ),
    "many parameters": (
        {"inputs": [X, EDGES], "parameters": {f"a{i}": None for i in range(20_000)}},
        422,
        "/parameters: At most 32",
    ),
    "parameters of no kind": (
        {"inputs": [X | {"parameters": {"a": None}}]},
        422,
        "/inputs/0/parameters/a",
    ),
    "a name that is none": (
        {"inputs": [], "parameters": {"my secret": 1}},
        422,
        "/parameters: A parameter name",
    ),
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
    "bad JSON": ({"inputs": [X, EDGES], "parameters": {"resonance": "{"}}, 422, "Must be JSON"),
    "left over": (b'{"inputs": []}xyz', 422, "3 bytes follow"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_read_is_an_error_of_the_protocol(client: httpx.Client, name: str) -> None:
    sent, status, told = BAD[name]
    body = sent if isinstance(sent, bytes) else json.dumps(sent).encode()
    length = {"inference-header-content-length": str(len(body) - 3 * (name == "left over"))}
    answer = client.post("/v2/models/et-small/infer", content=body, headers=length)
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    assert told in InferError.model_validate_json(answer.content, strict=True).error


@pytest.mark.parametrize("length", ["", "-1", "1e3", "99999999999999", "²"])
def test_a_header_of_no_length(client: httpx.Client, length: str) -> None:
    headers = {"inference-header-content-length": length.encode()}
    answer = client.post("/v2/models/et-small/infer", content=b"{}", headers=headers)
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
        Completes(cast(Any, model)).to_native(inference, Settings(max_pixels=1999))
    assert "64 (BASIN_MAX_IMAGES) of 1999 pixels (BASIN_MAX_PIXELS)" in error.value.detail


def test_strings_in_bytes(client: httpx.Client) -> None:
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
        answer = client.post("/v2/models/cdat-mol/infer", content=head + raw, headers=length)
        assert answer.status_code == status, answer.text


@pytest.mark.parametrize(
    ("tensors", "told"),
    [
        (
            {"image": SMALL.astype(np.float32), "mask": HOLE},
            "/inputs/0: Must have the datatype UINT8",
        ),
        ({"image": SMALL[None], "mask": HOLE}, "/inputs/0: Must have 2 or 3 dimensions"),
        ({"image": SMALL, "mask": HOLE[:4]}, "/mask"),
        ({"image": SMALL}, "/mask"),
        ({"image": SMALL[:0], "mask": HOLE[:0]}, "/inputs/0"),
        ({"image": SMALL, "mask": HOLE, "other\r\n": HOLE}, "Unknown field"),
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


def test_strings_are_bounded(client: httpx.Client) -> None:
    raw = bytes(4 * 70_000)
    told = {"parameters": {"binary_data_size": len(raw)}, "shape": [70_000], "datatype": "BYTES"}
    head = json.dumps({"inputs": [told | {"name": "smiles"}]}).encode()
    length = {"inference-header-content-length": str(len(head))}
    answer = client.post("/v2/models/cdat-mol/infer", content=head + raw, headers=length)
    assert answer.status_code == 422
    assert "65536 strings" in answer.json()["error"]


def test_json_that_would_be_too_long_is_refused() -> None:
    inference = Inference(None, {}, {}, None, False)
    found = {"completed": np.zeros((5, 1000, 1000), np.uint8)}
    with pytest.raises(Problem) as error:
        written(inference, "m", "1", found, b"{}", 1 << 24)
    assert "binary_data" in error.value.detail
    in_bytes = written(replace(inference, as_bytes=True), "m", "1", found, b"{}", 1 << 24)
    assert len(in_bytes.file) > 5_000_000


@pytest.mark.parametrize(
    "headers",
    [{"content-type": "multipart/form-data; boundary=AAA"}, {"content-encoding": "gzip"}],
)
def test_what_is_not_read(client: httpx.Client, headers: dict[str, str]) -> None:
    answer = client.post("/v2/models/et-small/infer", content=b'{"inputs": []}', headers=headers)
    assert (answer.status_code, list(answer.json())) == (415, ["error"])


def test_a_memory_that_is_replaced_while_it_is_asked(server: Server) -> None:
    """What was asked about is what answers, or nothing is."""
    first, then = np.eye(3, dtype=np.float32), ["ACD", "ACC"]
    parameters = {"steps": 20, "burn_in": 10, "thin": 10, "chains": 1, "num_samples": 1}
    body = json.dumps({"inputs": [], "parameters": parameters}).encode()
    with server.client() as client:
        client.put("/memories/turning", json={"patterns": first.tolist()})
        with socket.create_connection(("127.0.0.1", server.port), 20) as line:
            head = "POST /v2/models/turning/infer HTTP/1.1\r\n"
            head += "host: localhost\r\nconnection: close\r\n"
            line.sendall(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body[:5])
            time.sleep(0.3)
            assert client.put("/memories/turning", json={"sequences": then}).status_code == 200
            line.sendall(body[5:])
            answer = b"".join(iter(lambda: line.recv(1 << 16), b""))
        client.delete("/memories/turning")
    assert answer.startswith(b"HTTP/1.1 503 ")
    assert b"replaced" in answer


def test_errors_of_the_router_are_the_protocol_s(client: httpx.Client) -> None:
    for answer, status in (
        (client.get("/v2/models/nobody"), 404),
        (client.get("/v2/models/et-small/versions/9"), 404),
        (client.get("/v2/nothing"), 404),
        (client.delete("/v2/models/et-small"), 405),
        (client.post("/v2/models/et-small/infer?timeout_ms=0", json={}), 422),
    ):
        assert answer.status_code == status
        assert list(answer.json()) == ["error"]
    assert client.get("/models/nobody").json()["type"].startswith("urn:basin")


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
