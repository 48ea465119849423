"""POST /classify: inputs that are none, models that do something else, too much of either."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.service.endpoints.anomaly.test_bad_input import check
from tests.support.bad_classify_bodies import (
    ATOM,
    BAD_GRAPHS,
    BAD_REQUESTS,
    BAD_TENSORS,
    BOND,
    EDGES,
    GOOD,
    SMILES,
    molecule,
    shape,
    shapes,
)
from tests.support.bad_score_bodies import SECRET, text
from tests.support.bad_tensor_bodies import BAD_FILES, SAFETENSORS, tensors
from tests.support.fuzz import changed_somewhere, judge, unharmed


def post(client, content, content_type="application/json"):
    return client.post("/classify", content=content, headers={"content-type": content_type})


@pytest.mark.parametrize("name", BAD_REQUESTS)
def test_bad_requests(client, name):
    body, code, at = BAD_REQUESTS[name]
    check(post(client, text(body)), 422, "invalid-request", code, at)


@pytest.mark.parametrize("name", BAD_GRAPHS)
def test_bad_graphs(client, name):
    body, code, at = BAD_GRAPHS[name]
    check(post(client, text(body)), 422, "invalid-graph", code, at)


def test_a_wrong_column_is_named(client):
    problem = check(post(client, text(shapes(x=[[1]] * 3))), 422, "invalid-graph")
    assert "2 features per node (kind, size), not 1" in problem.detail
    problem = check(post(client, text(shapes(x=[[7, 1]] * 3))), 422, "invalid-graph")
    assert problem.detail == "The column kind must hold whole numbers from 0 to 2."


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
        assert "POST /classify. Models that do: cdat-mol, et-shape." in problem.detail
    graph = {"x": [[1.0] * 5], "edge_index": [[], []]}
    body = text({"graph": graph, "model": "cdat-mol"})
    for content in (body, tensors({"model": "cdat-mol"}, x=np.ones((1, 5)), edge_index=EDGES)):
        kind = "application/json" if content is body else SAFETENSORS
        response = client.post("/anomaly/score", content=content, headers={"content-type": kind})
        problem = check(response, 422, "wrong-model", "wrong_task", "/model")
        assert "Models that do: cdat-small, et-edges, et-small." in problem.detail


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
        max_response_bytes=12_000,
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
    assert limits["max_position_work"] == 900
    traced = {"smiles": ["C"] * 3, "include": ["trace"]}
    answer = post(strict, text(traced))
    assert answer.status_code == 200
    assert len(answer.content) <= 12_000
    body = traced | {"dynamics": {"steps": 64}}
    check(post(strict, text(body)), 422, "invalid-request", "too_large", "/include")


def test_other_requests_are_unharmed(server):
    bad = [text(body) for body, *_ in (BAD_REQUESTS | BAD_GRAPHS).values()]
    unharmed(server, post, text({"smiles": ["CCO", "c1ccccc1"]}), bad)


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_no_body_makes_the_server_fail(server, data):
    start = st.sampled_from([text(SMILES | {"model": None}), text(molecule()), text(shapes())])
    with server.client() as client:
        judge(post(client, changed_somewhere(data, start)), 400, 404, 422)
