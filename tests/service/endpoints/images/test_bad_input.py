"""POST /images/...: pictures that are none, questions that are none, too much of either."""

from __future__ import annotations

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.service.endpoints.anomaly.test_bad_input import check
from tests.support.bad_score_bodies import SECRET
from tests.support.completion import text
from tests.support.fuzz import changed_somewhere, judge
from tests.support.image_files import NOT_READ, flat_png
from tests.support.image_models import CLOSEST, SCENE, SHAPE, form, look


def image(data=SCENE, **rest):
    return {"image": text(data), **rest}


def question(asked, **rest):
    return image(question=asked, **rest)


BAD = {
    "no picture": ({}, 422, "invalid-request", "missing", "/image"),
    "no list of pictures": ({"image": []}, 422, "invalid-request", "empty", "/image"),
    "a number": ({"image": 7}, 422, "invalid-request", "wrong_type", "/image"),
    "a number among them": (
        {"image": [text(SCENE), 7]},
        422,
        "invalid-request",
        "wrong_type",
        "/image/1",
    ),
    "too many": ({"image": ["a"] * 65}, 422, "invalid-request", "too_many", "/image"),
    "not base64": ({"image": SECRET}, 422, "invalid-request", "not_base64", "/image"),
    "no image": (image(SECRET.encode()), 415, "unsupported-image", "not_read", "/image"),
    "a gif": (image(NOT_READ["gif"][0]), 415, "unsupported-image", "not_read", "/image"),
    "half a picture": (image(SCENE[:99]), 422, "invalid-image", "truncated", "/image"),
    "too large": (image(flat_png(4001)), 422, "invalid-image", "too_large", "/image"),
    "broken inside": (
        {"image": [text(SCENE), text(SCENE[:70] + b"\0" * 40 + SCENE[110:])]},
        422,
        "invalid-image",
        "damaged",
        "/image/1",
    ),
    "unknown field": (image(colour=SECRET), 422, "invalid-request", "unknown_field", "/colour"),
    "fit": (image(fit=SECRET), 422, "invalid-request", "not_allowed", "/fit"),
    "a knob of no number": (
        image(dynamics={"beta": SECRET}),
        422,
        "invalid-request",
        "wrong_type",
        "/dynamics/beta",
    ),
    "a knob that is none": (
        image(dynamics={"momentum": 1}),
        422,
        "invalid-request",
        "unknown_field",
        "/dynamics/momentum",
    ),
    "steps": (
        image(dynamics={"steps": 65}),
        422,
        "invalid-request",
        "out_of_range",
        "/dynamics/steps",
    ),
    "no such model": (image(model=SECRET), 404, "unknown-model", "unknown_model", "/model"),
    "a model that answers": (
        image(model="ait-scene"),
        422,
        "wrong-model",
        "wrong_task",
        "/model",
    ),
    "a model that completes": (image(model="et-tile"), 422, "wrong-model", "wrong_task", "/model"),
}

BAD_QUESTIONS = {
    "in other words": (question(f"Is it {SECRET}?"), "not_a_form", "/question"),
    "of a kind it was not trained on": (
        question("How many objects are between the red object and the green object?"),
        "not_a_form",
        "/question",
    ),
    "too long": (question("red " * 100), "not_a_form", "/question"),
    "empty": (question(""), "not_a_form", "/question"),
    "one of several": (question([SHAPE, SECRET]), "not_a_form", "/question/1"),
    "no list": (question([]), "empty", "/question"),
    "too many": (question([SHAPE] * 65), "too_many", "/question"),
    "not as many as pictures": (
        {"image": [text(SCENE)] * 3, "question": [SHAPE, SHAPE]},
        "wrong_shape",
        "/question",
    ),
    "a number": (question(7), "wrong_type", "/question"),
    "a colour there is none of": (
        question(CLOSEST | {"colour": SECRET}),
        "not_allowed",
        "/question/colour",
    ),
    "no colour": (question({"asked": "shape"}), "missing", "/question/colour"),
    "another field": (question(CLOSEST | {"size": 1}), "unknown_field", "/question/size"),
    "one colour too many": (question(CLOSEST | {"other": "red"}), "conflict", "/question"),
    "another kind": (question(CLOSEST | {"kind": "ternary"}), "conflict", "/question"),
    "one colour twice": (
        question("How many objects are between the red object and the red object?"),
        "conflict",
        "/question",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_requests(client, name):
    content, status, kind, code, at = BAD[name]
    check(client.post("/images/classify", json=content), status, kind, code, at)


@pytest.mark.parametrize("name", BAD_QUESTIONS)
def test_bad_questions(client, name):
    content, code, at = BAD_QUESTIONS[name]
    response = client.post("/images/answer", json=content)
    check(response, 422, "invalid-request", code, at)


def test_a_question_is_needed_where_one_is_answered_and_nowhere_else(client):
    response = client.post("/images/answer", json=image())
    check(response, 422, "invalid-request", "missing", "/question")
    response = client.post("/images/classify", json=question(SHAPE))
    check(response, 422, "invalid-request", "unknown_field", "/question")


def test_the_forms_are_told(client):
    problem = check(look(client, SCENE, question="Why?"), 422, "invalid-request")
    assert "red, green, blue, orange, grey or yellow" in problem.detail
    kinds = [error.detail.partition(":")[0] for error in problem.errors]
    assert kinds == ["`non-relational`", "`relational`"]
    assert SHAPE in problem.errors[0].detail
    assert "closest to the red object?" in problem.errors[1].detail
    assert not any("…" in error.detail for error in problem.errors)


def test_models_that_would_do_are_told(client):
    problem = check(look(client, SCENE, model="et-tile"), 422, "wrong-model")
    assert "POST /images/classify. Models that do: ait-glyph, ait-grey." in problem.detail
    problem = check(look(client, SCENE, question=SHAPE, model="none"), 404, "unknown-model")
    assert "POST /images/answer. Models that do: ait-scene." in problem.detail


def test_bad_bodies(client):
    def post(content, content_type):
        return client.post(
            "/images/classify", content=content, headers={"content-type": content_type}
        )

    check(post(b"{", "application/json"), 400, "invalid-json")
    check(post(SCENE, "image/png"), 415, "unsupported-media-type")
    check(post(b"--b", "multipart/form-data; boundary=b"), 400, "invalid-multipart")
    check(form(client, b""), 422, "invalid-image", "empty", "/image")
    check(form(client, SCENE, b""), 422, "invalid-image", "empty", "/image/1")
    check(form(client, *[SCENE] * 65), 422, "invalid-request", "too_many", "/image")
    check(form(client, *[SCENE] * 99), 400, "invalid-multipart")
    check(form(client, SCENE, question="[red]"), 422, "invalid-request", "wrong_type", "/question")
    check(form(client, SCENE, dynamics="x"), 422, "invalid-request", "wrong_type", "/dynamics")


def test_a_trace_too_large_is_not_begun(narrow):
    with narrow.client() as client:
        response = look(client, SCENE, dynamics={"steps": 10_000_000}, include=["trace"])
    check(response, 422, "invalid-request", "too_large", "/include")


def test_dynamics_that_leave_nothing_finite(client):
    response = look(client, SCENE, dynamics={"noise": 10.0, "step_size": 100.0, "steps": 64})
    [result] = response.json()["results"]
    assert result["convergence"]["stop_reason"] == "diverged"
    assert abs(sum(result["probabilities"].values()) - 1) < 1e-6


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_no_body_fails_but_as_a_problem(client, data):
    good = {"fit": "crop", "dynamics": {"steps": 1, "seed": 3}, "include": ["trace"]}
    asked = {"question": [SHAPE, CLOSEST]} if data.draw(st.booleans()) else {}
    start = st.just(orjson.dumps(image(**good, **asked)))
    path = "/images/answer" if asked else "/images/classify"
    body = changed_somewhere(data, start)
    response = client.post(path, content=body, headers={"content-type": "application/json"})
    judge(response, 400, 404, 415, 422)
