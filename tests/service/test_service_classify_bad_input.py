"""POST /classify: inputs that are none, models that do something else, too much of either."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.schemas import ProblemDocument
from tests.service.bad_bodies import BAD_FILES, SAFETENSORS, SECRET, tensors, text
from tests.service.test_service_bad_input import check

ATOM = [3.0, 1.0, 2.0, 3.0, 0.0, 2.0, 0.0, 0.0]
BOND = [0.0, 0.0, 0.0, 0.0]


def shape(**changes):
    """A good graph for `et-shape`, changed."""
    return {"x": [[0, 0.5], [2, 1.5], [1, -1.0]], "edge_index": [[0, 1], [1, 2]]} | changes


def shapes(**changes):
    return {"graphs": [shape(), shape(**changes)], "model": "et-shape"}


def molecule(**changes):
    """A good graph for `cdat-mol`, changed."""
    good = {"x": [ATOM] * 3, "edge_index": [[0, 1], [1, 2]], "edge_attr": [BOND] * 2}
    return {"graphs": [good | changes]}


def post(client, content, content_type="application/json"):
    return client.post("/classify", content=content, headers={"content-type": content_type})


SMILES = {"smiles": ["CCO"]}
BAD_REQUESTS = {
    "nothing": ({}, "one_of", ""),
    "both": (SMILES | shapes(), "one_of", ""),
    "no object": ([1], "wrong_type", ""),
    "huge number": ('{"smiles": 1e999}', "not_finite", ""),
    "smiles is a number": ({"smiles": 7}, "wrong_type", "/smiles"),
    "smiles is an object": ({"smiles": {"a": SECRET}}, "wrong_type", "/smiles"),
    "one of them is a number": ({"smiles": ["CCO", 7]}, "wrong_type", "/smiles/1"),
    "one of them is null": ({"smiles": ["CCO", None]}, "wrong_type", "/smiles/1"),
    "one of them is a list": ({"smiles": [["CCO"]]}, "wrong_type", "/smiles/0"),
    "many are numbers": ({"smiles": [7] * 999}, "wrong_type", "/smiles/0"),
    "no smiles": ({"smiles": []}, "empty", "/smiles"),
    "too many smiles": ({"smiles": ["C"] * 1025}, "too_many", "/smiles"),
    "smiles for a model of graphs": (SMILES | {"model": "et-shape"}, "not_read", "/smiles"),
    "unknown field": (SMILES | {"colour": SECRET}, "unknown_field", "/colour"),
    "unknown field of odd name": (SMILES | {f"/{SECRET}~" * 99: 1}, "unknown_field", ""),
    "targets": (SMILES | {"targets": [0]}, "unknown_field", "/targets"),
    "many unknown fields": (SMILES | {f"f{i}": 0 for i in range(9999)}, "unknown_field", "/f0"),
    "unknown knob": (
        SMILES | {"dynamics": {"resonance": {}}},
        "unknown_field",
        "/dynamics/resonance",
    ),
    "steps over the cap": (SMILES | {"dynamics": {"steps": 65}}, "out_of_range", "/dynamics/steps"),
    "steps as text": (SMILES | {"dynamics": {"steps": SECRET}}, "wrong_type", "/dynamics/steps"),
    "both betas": (SMILES | {"dynamics": {"beta": 1, "beta_scale": 1}}, "conflict", "/dynamics"),
    "no temperature": (SMILES | {"dynamics": {"beta": 0}}, "out_of_range", "/dynamics/beta"),
    "include what is not": (SMILES | {"include": [SECRET]}, "not_allowed", "/include/0"),
    "model is a number": (SMILES | {"model": 7}, "wrong_type", "/model"),
    "model of a long name": (SMILES | {"model": SECRET * 99}, "too_long", "/model"),
}


@pytest.mark.parametrize("name", BAD_REQUESTS)
def test_bad_requests(client, name):
    body, code, at = BAD_REQUESTS[name]
    check(post(client, text(body)), 422, "invalid-request", code, at)


BAD_GRAPHS = {
    "graphs is a graph": ({"graphs": shape(), "model": "et-shape"}, "wrong_type", "/graphs"),
    "graphs is text": ({"graphs": SECRET, "model": "et-shape"}, "wrong_type", "/graphs"),
    "no graphs": ({"graphs": [], "model": "et-shape"}, "empty", "/graphs"),
    "too many graphs": ({"graphs": [shape()] * 1025, "model": "et-shape"}, "too_many", "/graphs"),
    "graph is a list": ({"graphs": [[SECRET]], "model": "et-shape"}, "wrong_type", "/graphs/0"),
    "unknown field": (shapes(weights=[SECRET]), "unknown_field", "/graphs/1/weights"),
    "edge types": (shapes(edge_type=[0, 0]), "unknown_field", "/graphs/1/edge_type"),
    "edge features of none": (shapes(edge_attr=[[1], [2]]), "not_read", "/graphs/1/edge_attr"),
    "no x": (
        {"graphs": [{"edge_index": [[], []]}], "model": "et-shape"},
        "wrong_type",
        "/graphs/0/x",
    ),
    "empty": (shapes(x=[], edge_index=[[], []]), "empty", "/graphs/1/x"),
    "flat x": (shapes(x=[1, 2]), "wrong_type", "/graphs/1/x/0"),
    "wrong feature count": (shapes(x=[[1.0]] * 3), "feature_count", "/graphs/1/x"),
    "ragged": (shapes(x=[[0, 1], [0], [1, 1]]), "feature_count", "/graphs/1/x/1"),
    "text in x": (shapes(x=[[0, 1], [0, SECRET], [0, 1]]), "wrong_type", "/graphs/1/x/1/1"),
    "true in x": (shapes(x=[[0, 1], [0, 1], [0, True]]), "wrong_type", "/graphs/1/x/2/1"),
    "null in x": (shapes(x=[[0, None], [0, 1], [0, 1]]), "wrong_type", "/graphs/1/x/0/1"),
    "beyond float32": (shapes(x=[[0, 1e39], [0, 1], [0, 1]]), "not_finite", "/graphs/1/x/0/1"),
    "category by name": (shapes(x=[["a", 1], [0, 1], [0, 1]]), "wrong_type", "/graphs/1/x/0/0"),
    "category beyond": (
        shapes(x=[[0, 1], [3, 1], [0, 1]]),
        "unknown_category",
        "/graphs/1/x/1/0",
    ),
    "negative category": (
        shapes(x=[[0, 1], [1, 1], [-1, 1]]),
        "unknown_category",
        "/graphs/1/x/2/0",
    ),
    "half a category": (
        shapes(x=[[0.5, 1], [1, 1], [0, 1]]),
        "unknown_category",
        "/graphs/1/x/0/0",
    ),
    "no edge_index": ({"graphs": [{"x": [[0, 1]]}], "model": "et-shape"}, "wrong_type", None),
    "edge_index transposed": (
        shapes(edge_index=[[0, 1], [1, 2], [2, 0]]),
        "wrong_shape",
        "/graphs/1/edge_index",
    ),
    "edge_index ragged": (
        shapes(edge_index=[[0, 1], [1]]),
        "wrong_shape",
        "/graphs/1/edge_index",
    ),
    "edge_index too large": (
        shapes(edge_index=[[0, 1], [1, 3]]),
        "out_of_range",
        "/graphs/1/edge_index/1/1",
    ),
    "edge_index negative": (
        shapes(edge_index=[[0, -1], [1, 2]]),
        "out_of_range",
        "/graphs/1/edge_index/0/1",
    ),
    "edge_index of 71 bits": (
        shapes(edge_index=[[0, 2**70], [1, 2]]),
        "wrong_type",
        "/graphs/1/edge_index/0/1",
    ),
    "edge_index as float": (
        shapes(edge_index=[[0, 1.0], [1, 2]]),
        "wrong_type",
        "/graphs/1/edge_index/0/1",
    ),
    "edge_attr missing": (molecule(edge_attr=None), "missing", "/graphs/0/edge_attr"),
    "edge_attr of too few edges": (
        molecule(edge_attr=[BOND]),
        "wrong_shape",
        "/graphs/0/edge_attr",
    ),
    "edge_attr of no edges": (
        molecule(edge_index=[[], []]),
        "wrong_shape",
        "/graphs/0/edge_attr",
    ),
    "edge_attr of other width": (
        molecule(edge_attr=[BOND[:3]] * 2),
        "feature_count",
        "/graphs/0/edge_attr",
    ),
    "edge_attr ragged": (
        molecule(edge_attr=[BOND, BOND[:3]]),
        "feature_count",
        "/graphs/0/edge_attr/1",
    ),
    "edge_attr is text": (molecule(edge_attr=SECRET), "wrong_type", "/graphs/0/edge_attr"),
    "unknown bond": (
        molecule(edge_attr=[BOND, [5.0, 0, 0, 0]]),
        "unknown_category",
        "/graphs/0/edge_attr/1/0",
    ),
    "unknown element": (
        molecule(x=[ATOM, [118.0, *ATOM[1:]], ATOM]),
        "unknown_category",
        "/graphs/0/x/1/0",
    ),
}


@pytest.mark.parametrize("name", BAD_GRAPHS)
def test_bad_graphs(client, name):
    body, code, at = BAD_GRAPHS[name]
    check(post(client, text(body)), 422, "invalid-graph", code, at)


def test_a_wrong_column_is_named(client):
    problem = check(post(client, text(shapes(x=[[1]] * 3))), 422, "invalid-graph")
    assert "2 features per node (kind, size), not 1" in problem.detail
    problem = check(post(client, text(shapes(x=[[7, 1]] * 3))), 422, "invalid-graph")
    assert problem.detail == "kind must be a whole number from 0 to 2"


X = np.array([[0, 0.5], [2, 1.5], [1, -1.0]], np.float32)
EDGES, PTR = np.array([[0, 1], [1, 0]]), np.array([0, 2, 3])
GOOD = {"x": X, "edge_index": EDGES, "ptr": PTR}
BAD_TENSORS = {
    "no x": ({"edge_index": EDGES}, "missing", "/x"),
    "no edges": ({"x": X}, "missing", "/edge_index"),
    "nan": (GOOD | {"x": np.where(X > 1, np.nan, X).astype("f4")}, "not_finite", "/x/1/0"),
    "x of three dimensions": (GOOD | {"x": X[None]}, "wrong_shape", "/x"),
    "three columns": (GOOD | {"x": np.ones((3, 3), "f4")}, "feature_count", "/x"),
    "category beyond": (GOOD | {"x": X + np.float32(1)}, "unknown_category", "/x/1/0"),
    "category of 64 bits": (
        GOOD | {"x": np.full((3, 2), 2**62)},
        "unknown_category",
        "/x/0/0",
    ),
    "no nodes": ({"x": X[:0], "edge_index": EDGES[:, :0].copy()}, "empty", "/x"),
    "float edges": (GOOD | {"edge_index": EDGES.astype("f4")}, "wrong_dtype", "/edge_index"),
    "edges of three rows": (
        GOOD | {"edge_index": np.zeros((3, 2), "i8")},
        "wrong_shape",
        "/edge_index",
    ),
    "edges out of range": (GOOD | {"edge_index": EDGES + 2}, "out_of_range", "/edge_index/0/1"),
    "edges between graphs": (
        GOOD | {"edge_index": np.array([[0, 1], [1, 2]])},
        "across_graphs",
        "/edge_index/1/1",
    ),
    "edge features of none": (
        GOOD | {"edge_attr": np.zeros((2, 1), "f4")},
        "not_read",
        "/edge_attr",
    ),
    "ptr of floats": (GOOD | {"ptr": PTR.astype("f4")}, "wrong_dtype", "/ptr"),
    "ptr of two dimensions": (GOOD | {"ptr": PTR[None]}, "wrong_shape", "/ptr"),
    "ptr of nothing": (GOOD | {"ptr": PTR[:0]}, "wrong_shape", "/ptr"),
    "ptr of one": (GOOD | {"ptr": PTR[:1]}, "wrong_shape", "/ptr"),
    "ptr from one on": (GOOD | {"ptr": np.array([1, 3])}, "wrong_shape", "/ptr"),
    "ptr short": (GOOD | {"ptr": np.array([0, 2])}, "wrong_shape", "/ptr"),
    "ptr beyond": (GOOD | {"ptr": np.array([0, 2, 4])}, "wrong_shape", "/ptr"),
    "ptr backwards": (GOOD | {"ptr": np.array([0, 3, 2, 3])}, "out_of_range", "/ptr/2"),
    "ptr standing still": (GOOD | {"ptr": np.array([0, 2, 2, 3])}, "out_of_range", "/ptr/2"),
    "ptr negative": (GOOD | {"ptr": np.array([0, -5, 3])}, "out_of_range", "/ptr/1"),
    "unknown tensor": (GOOD | {"targets": PTR}, "unknown_field", "/targets"),
}


@pytest.mark.parametrize("name", BAD_TENSORS)
def test_bad_tensors(client, name):
    arrays, code, at = BAD_TENSORS[name]
    body = tensors({"model": "et-shape"}, **arrays)
    check(post(client, body, SAFETENSORS), 422, "invalid-graph", code, at)


def test_bad_edge_features_in_tensors(client):
    good = {"x": np.array([ATOM] * 2, "f4"), "edge_index": np.array([[0], [1]])}
    for attr, code, at in (
        (None, "missing", "/edge_attr"),
        (np.array([BOND] * 2, "f4"), "wrong_shape", "/edge_attr"),
        (np.array([BOND[:3]], "f4"), "feature_count", "/edge_attr"),
        (np.array([[0, 2, 0, 0]], "u1"), "unknown_category", "/edge_attr/0/1"),
        (np.array([[0, np.nan, 0, 0]], "f4"), "not_finite", "/edge_attr/0/1"),
    ):
        arrays = good if attr is None else good | {"edge_attr": attr}
        response = post(client, tensors(None, **arrays), SAFETENSORS)
        check(response, 422, "invalid-graph", code, at)


def test_many_offsets(client):
    body = tensors(
        {"model": "et-shape"},
        x=np.ones((1025, 2), "f4"),
        edge_index=np.zeros((2, 0), "i8"),
        ptr=np.arange(1026),
    )
    check(post(client, body, SAFETENSORS), 422, "invalid-graph", "too_many", "/ptr")


@pytest.mark.parametrize("name", BAD_FILES)
def test_malformed_safetensors(client, name):
    check(post(client, BAD_FILES[name], SAFETENSORS), 400, "invalid-safetensors")


def test_the_request_in_a_file_is_validated_too(client):
    for request, code, at in (
        ({"dynamics": {"steps": -1}}, "out_of_range", "/dynamics/steps"),
        ({"smiles": "CCO"}, "unknown_field", "/smiles"),
        ({"graphs": []}, "unknown_field", "/graphs"),
    ):
        body = tensors({"model": "et-shape"} | request, **GOOD)
        check(post(client, body, SAFETENSORS), 422, "invalid-request", code, at)


@pytest.mark.parametrize("body", ['{"smiles": ["CCO", NaN]}', '{"smiles": "\\ud800"}', "", "{"])
def test_malformed_json(client, body):
    check(post(client, body), 400, "invalid-json")


def test_another_content_type(client):
    response = post(client, b"smiles=CCO", "application/x-www-form-urlencoded")
    check(response, 415, "unsupported-media-type")


def test_nothing_that_can_be_read(client):
    for smiles, pointers in ((SECRET, ["/smiles"]), (["n?", "C1CC"], ["/smiles/0", "/smiles/1"])):
        problem = check(post(client, text({"smiles": smiles})), 422, "nothing-classified")
        assert [(e.pointer, e.code) for e in problem.errors] == [
            (pointer, "not_smiles") for pointer in pointers
        ]
    many = check(post(client, text({"smiles": ["?"] * 1000})), 422, "nothing-classified")
    assert len(many.errors) == 20


def test_models_of_another_route_or_none(client):
    for model, status, kind in (
        ("et-small", 422, "wrong-model"),
        (SECRET, 404, "unknown-model"),
    ):
        problem = check(post(client, text(SMILES | {"model": model})), status, kind)
        assert problem.errors[0].pointer == "/model"
        assert problem.detail == "POST /classify is served by cdat-mol, et-shape"
    graph = {"x": [[1.0] * 5], "edge_index": [[], []]}
    body = text({"graph": graph, "model": "cdat-mol"})
    for content in (body, tensors({"model": "cdat-mol"}, x=np.ones((1, 5)), edge_index=EDGES)):
        kind = "application/json" if content is body else SAFETENSORS
        response = client.post("/anomaly/score", content=content, headers={"content-type": kind})
        problem = check(response, 422, "wrong-model", "wrong_task", "/model")
        assert problem.detail == "POST /anomaly/score is served by cdat-small, et-small"


def test_a_large_body_for_a_model_of_another_route(narrow):
    body = {"graph": {"x": [[1.0] * 5], "edge_index": [[], []]}, "model": "cdat-mol"}
    headers = {"content-type": "application/json"}
    with narrow.client() as client:
        content = text(body) + b" " * (5 << 20)
        check(client.post("/anomaly/score", content=content, headers=headers), 422, "wrong-model")


def test_large_json_is_asked_for_as_tensors(narrow):
    with narrow.client() as client:
        content = text(SMILES) + b" " * (5 << 20)
        problem = check(post(client, content), 413, "body-too-large")
    assert SAFETENSORS in problem.detail


@pytest.fixture(scope="module")
def strict(start, checkpoints, wait, answers):
    """A server with small limits."""
    server = start(
        checkpoints=checkpoints,
        default_classify_model="cdat-mol",
        max_graphs=3,
        max_pairs=50,
        max_position_work=900,
        max_smiles_length=12,
        max_atoms=6,
        max_response_bytes=4000,
    )
    wait(lambda: answers(server, "/health/ready", 200))
    with server.client() as client:
        yield client


def test_limits(strict):
    results = strict.post("/classify", json={"smiles": ["C" * 6, "C" * 7, "C" * 13]}).json()
    codes = [result.get("error", {}).get("code") for result in results["results"]]
    assert codes == [None, "too_many_atoms", "too_long"]
    assert results["results"][2]["input"] == "C" * 12
    check(post(strict, text({"smiles": ["C"] * 4})), 422, "invalid-request", "too_many", "/smiles")
    graph = {"x": [[0, 1.0]] * 7, "edge_index": [[0] * 21, [1] * 21]}
    body = {"graphs": [shape(), graph], "model": "et-shape"}
    check(post(strict, text(body)), 422, "invalid-graph", "too_many_pairs", "/graphs/1")
    long = {"x": [[0, 1.0]] * 24, "edge_index": [[], []]}
    body = {"graphs": [shape(), long], "model": "et-shape"}
    check(post(strict, text(body)), 422, "invalid-graph", "too_much_work", "/graphs/1")
    limits = strict.get("/models/cdat-mol").json()["limits"]
    assert (limits["max_graphs"], limits["max_atoms"], limits["max_pairs"]) == (3, 6, 50)
    traced = {"smiles": ["C"] * 3, "include": ["trace"]}
    assert post(strict, text(traced)).status_code == 200
    body = traced | {"dynamics": {"steps": 64}}
    check(post(strict, text(body)), 422, "invalid-request", "too_large", "/include")


def test_other_requests_are_unharmed(server):
    good = {"smiles": ["CCO", "c1ccccc1"]}
    bad = [text(body) for body, *_ in (BAD_REQUESTS | BAD_GRAPHS).values()]
    with server.client() as client, ThreadPoolExecutor(8) as pool:
        expected = client.post("/classify", json=good).json()["results"]
        noise = [pool.submit(post, client, body) for body in bad]
        for _ in range(10):
            assert client.post("/classify", json=good).json()["results"] == expected
        assert all(400 <= future.result().status_code < 500 for future in noise)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=12,
)


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_no_body_makes_the_server_fail(server, data):
    start = st.sampled_from([text(SMILES | {"model": None}), text(molecule()), text(shapes())])
    body = json.loads(data.draw(start))
    where = body
    while True:  # replace something somewhere
        keys = list(where) if isinstance(where, dict) else list(range(len(where)))
        key = data.draw(st.sampled_from([*keys, "dynamics"] if where is body else keys))
        inner = where.get(key) if isinstance(where, dict) else where[key]
        if not isinstance(inner, dict | list) or not inner or data.draw(st.booleans()):
            break
        where = inner
    where[key] = data.draw(JSON)
    with server.client() as client:
        response = post(client, json.dumps(body).encode())
    if response.status_code != 200:
        assert response.status_code in (400, 404, 422), response.text
        ProblemDocument.model_validate_json(response.content, strict=True)
        assert len(response.json()["errors"]) <= 20
