"""Whatever a client sends, it gets a problem document that repeats none of it."""

from __future__ import annotations

import json
import socket

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.endpoints.common.schemas import ProblemDocument
from service.errors import PROBLEM_TYPES
from tests.support.bad_score_bodies import (
    BAD_ENVELOPE,
    BAD_GRAPHS,
    BAD_JSON,
    SECRET,
    arrays,
    rows,
    text,
)
from tests.support.bad_tensor_bodies import BAD_FILES, BAD_TENSORS, EDGES, SAFETENSORS, X, tensors
from tests.support.fuzz import changed_somewhere, judge, unharmed


def check(response, status, kind, code=None, at=None):
    """A problem document, as every error must be."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    assert response.elapsed.total_seconds() < 5  # well below one where nothing else runs
    problem = ProblemDocument.model_validate_json(response.content, strict=True)
    assert problem.type == f"urn:basin:problem:{kind}"
    assert problem.status == status == PROBLEM_TYPES[kind][0]
    assert problem.request_id == response.headers["x-request-id"]
    assert SECRET not in response.text
    assert len(problem.errors) <= 20
    for error in response.json()["errors"]:
        assert len(json.dumps(error).encode()) < 500
    if code is not None:
        found = [(error.code, error.pointer) for error in problem.errors]
        assert found[0] == (code, found[0][1] if at is None else at), found
    return problem


def post(client, content, content_type="application/json", **headers):
    headers = {"content-type": content_type} | headers
    return client.post("/anomaly/score", content=content, headers=headers)


@pytest.mark.parametrize("name", BAD_JSON)
def test_malformed_json(client, name):
    body, status = BAD_JSON[name]
    check(post(client, body), status, "invalid-json")


@pytest.mark.parametrize("name", BAD_ENVELOPE)
def test_bad_envelope(client, name):
    body, code, at = BAD_ENVELOPE[name]
    check(post(client, text(body)), 422, "invalid-request", code, at)


@pytest.mark.parametrize("name", BAD_GRAPHS)
def test_bad_graph(client, name):
    body, code, at = BAD_GRAPHS[name]
    problem = check(post(client, text(body)), 422, "invalid-graph")
    assert problem.errors[0].pointer == at
    assert code in (None, problem.errors[0].code)


def test_a_wrong_feature_count_names_the_features(client):
    problem = check(post(client, text(arrays(x=[[1, 2]] * 3))), 422, "invalid-graph")
    assert "5 features per node (age, degree, rate, volume, x), not 2" in problem.detail


@pytest.mark.parametrize("name", BAD_TENSORS)
def test_bad_tensors(client, name):
    body, code, at = BAD_TENSORS[name]
    check(post(client, body, SAFETENSORS), 422, "invalid-graph", code, at)


@pytest.mark.parametrize("name", BAD_FILES)
def test_malformed_safetensors(client, name):
    check(post(client, BAD_FILES[name], SAFETENSORS), 400, "invalid-safetensors")


def test_the_request_in_a_file_is_validated_too(client):
    body = tensors({"dynamics": {"steps": -1}}, x=X, edge_index=EDGES)
    problem = check(post(client, body, SAFETENSORS), 422, "invalid-request")
    assert problem.errors[0].pointer == "/dynamics/steps"
    body = tensors({"graph": {}}, x=X, edge_index=EDGES)
    check(post(client, body, SAFETENSORS), 422, "invalid-request", "unknown_field", "/graph")


@pytest.mark.parametrize(
    "content_type", ["", "text/plain", "application/x-www-form-urlencoded", "application/jsonx"]
)
def test_wrong_content_type(client, content_type):
    check(post(client, text(arrays()), content_type), 415, "unsupported-media-type")


def test_compressed_body(client):
    response = post(client, text(arrays()), **{"content-encoding": "gzip"})
    check(response, 415, "unsupported-media-type")


def test_parameters_of_the_content_type_are_fine(client):
    assert post(client, text(arrays()), "Application/JSON; charset=utf-8").status_code == 200


def test_a_body_over_the_limit(client):
    check(post(client, b" " * ((1 << 20) + 1)), 413, "body-too-large")

    def chunks():
        for _ in range(18):
            yield b" " * (1 << 16)

    check(post(client, chunks()), 413, "body-too-large")


def test_an_announced_body_over_the_limit_is_not_read(server):
    head = b"POST /anomaly/score HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    with socket.create_connection(("127.0.0.1", server.port), 5) as connection:
        connection.sendall(head + b"Connection: close\r\nContent-Length: 99999999999\r\n\r\n")
        answer = b"".join(iter(lambda: connection.recv(1 << 16), b""))  # until it is closed
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b"application/problem+json" in answer


def test_unknown_models(client):
    check(post(client, text(arrays() | {"model": SECRET})), 404, "unknown-model", None)
    check(client.get(f"/models/{SECRET}"), 404, "unknown-model")


@pytest.mark.parametrize("path", [f"/{SECRET}", "/models//x", "/%00", "/v3"])
def test_unknown_paths(client, path):
    check(client.get(path), 404, "not-found")


def test_wrong_methods(client):
    assert check(client.get("/anomaly/score"), 405, "method-not-allowed")
    assert client.delete("/models").headers["allow"] == "GET, HEAD"
    assert client.patch("/memories/m").headers["allow"] == "DELETE, GET, HEAD, PUT"


def test_other_requests_are_unharmed(server, sample):
    bad = [text(body) for body, *_ in (BAD_JSON | BAD_ENVELOPE | BAD_GRAPHS).values()]
    unharmed(server, post, text(sample(1).arrays()), bad)


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_no_body_makes_the_server_fail(server, data):
    start = st.sampled_from([text(arrays()), text(rows())])
    with server.client() as client:
        judge(post(client, changed_somewhere(data, start)), 400, 422)
