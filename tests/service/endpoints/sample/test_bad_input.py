"""POST /sample: memories that are none, knobs out of range, answers that would be too large."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tests.service.endpoints.anomaly.test_bad_input import check
from tests.service.endpoints.sample.test_api import PATTERNS, body, post, tensors
from tests.support.bad_score_bodies import SECRET
from tests.support.bad_tensor_bodies import SAFETENSORS

RNG = np.random.default_rng(4)


def changed(row, column=0, value=0.0, width=6):
    patterns = PATTERNS.tolist()
    if column is None:
        patterns[row] = [value] * width
    else:
        patterns[row][column] = value
    return {"memory": {"patterns": patterns}}


IMAGE = {"kind": "images", "patterns": [[0.0, 0.5, 1.0, 0.2]]}
BAD_MEMORIES = {
    "rows of two widths": (changed(3, None, 1.0, 5), "wrong_shape", "/memory/patterns/3"),
    "zero norm": (changed(2, None, 0.0), "zero_norm", "/memory/patterns/2"),
    "duplicate": (
        {"memory": {"patterns": [[1, 2], [3, 1], [1, 2]]}},
        "duplicate",
        "/memory/patterns/2",
    ),
    "same direction": (
        {"memory": {"patterns": [[1, 2], [3, 1], [2, 4]]}},
        "duplicate",
        "/memory/patterns/2",
    ),
    "text": (changed(1, 4, SECRET), "wrong_type", "/memory/patterns/1/4"),
    "null": (changed(1, 4, None), "wrong_type", "/memory/patterns/1/4"),
    "bool": (changed(1, 4, True), "wrong_type", "/memory/patterns/1/4"),
    "beyond float32": (changed(1, 4, 1e39), "not_finite", "/memory/patterns/1/4"),
    "so large that its length is not finite": (
        {"memory": {"patterns": [[3e38, 3e38], [3e38, -3e38]]}},
        "out_of_range",
        "/memory/patterns/0/0",
    ),
    "large returns": (
        {"memory": {"kind": "returns", "patterns": [[1, 2], [3, -2e6]]}},
        "out_of_range",
        "/memory/patterns/1/1",
    ),
    "no pattern": ({"memory": {"patterns": []}}, "empty", "/memory/patterns"),
    "empty patterns": ({"memory": {"patterns": [[], []]}}, "wrong_shape", "/memory/patterns"),
    "flat": ({"memory": {"patterns": [1, 2, 3]}}, "wrong_type", "/memory/patterns/0"),
    "nothing in it": ({"memory": {}}, "one_of", "/memory"),
    "both": ({"memory": {"patterns": [[1]], "sequences": ["A"]}}, "one_of", "/memory"),
    "unknown field": (
        {"memory": {"patterns": [[1]], "colour": 1}},
        "unknown_field",
        "/memory/colour",
    ),
    "unknown kind": (
        {"memory": {"patterns": [[1]], "kind": SECRET}},
        "not_allowed",
        "/memory/kind",
    ),
    "image without shape": ({"memory": IMAGE}, "missing", "/memory/shape"),
    "image of other shape": (
        {"memory": IMAGE | {"shape": [3, 3]}},
        "wrong_shape",
        "/memory/patterns",
    ),
    "image of one side": ({"memory": IMAGE | {"shape": [4]}}, "wrong_shape", "/memory/patterns"),
    "image of two channels": (
        {"memory": IMAGE | {"shape": [1, 2, 2]}},
        "wrong_shape",
        "/memory/patterns",
    ),
    "image of negative shape": (
        {"memory": IMAGE | {"shape": [-2, -2]}},
        "wrong_shape",
        "/memory/shape",
    ),
    "image without rows": (
        {"memory": {"kind": "images", "shape": [0, 5], "patterns": [[]]}},
        "wrong_shape",
        "/memory/shape",
    ),
    "image without shape in its shape": (
        {"memory": IMAGE | {"shape": []}},
        "wrong_shape",
        "/memory/shape",
    ),
    "image too bright": (
        {"memory": {"kind": "images", "shape": [1, 2], "patterns": [[0, 1.5]]}},
        "out_of_range",
        "/memory/patterns/0/1",
    ),
    "shape of vectors": (
        {"memory": {"patterns": [[1, 2]], "shape": [2]}},
        "not_read",
        "/memory/shape",
    ),
    "letters": ({"memory": {"sequences": ["ACD", "AXD"]}}, "unknown_letter", "/memory/sequences/1"),
    "letters that lengthen": (
        {"memory": {"sequences": ["AC", "Aß"]}},
        "unknown_letter",
        "/memory/sequences/1",
    ),
    "a letter that lengthens": (
        {"memory": {"sequences": ["ß"]}},
        "unknown_letter",
        "/memory/sequences/0",
    ),
    "lengths": ({"memory": {"sequences": ["ACD", "AC"]}}, "wrong_shape", "/memory/sequences/1"),
    "no letters": ({"memory": {"sequences": ["", ""]}}, "wrong_shape", "/memory/sequences/0"),
    "one return": (
        {"memory": {"kind": "returns", "patterns": [[1.0]]}},
        "wrong_shape",
        "/memory/patterns",
    ),
    "equal returns": (
        {"memory": {"kind": "returns", "patterns": [[1.0, 2.0], [3.0, 3.0]]}},
        "zero_norm",
        "/memory/patterns/1",
    ),
}


@pytest.mark.parametrize("name", BAD_MEMORIES)
def test_bad_memories(client, name):
    change, code, at = BAD_MEMORIES[name]
    check(post(client, body(**change)), 422, "invalid-memory", code, at)


CLAMP = {"index": [0, 3], "values": [1.0, 2.0]}
BAD_REQUESTS = {
    "beta of zero": ({"beta": 0}, "out_of_range", "/beta"),
    "beta that single precision divides by zero": ({"beta": 2e-182}, "out_of_range", "/beta"),
    "step that single precision rounds to zero": (
        {"step_size": 1e-46},
        "out_of_range",
        "/step_size",
    ),
    "beta below zero": ({"beta": -1.0}, "out_of_range", "/beta"),
    "beta too large": ({"beta": 1e7}, "out_of_range", "/beta"),
    "beta of text": ({"beta": SECRET}, "wrong_type", "/beta"),
    "beta of bool": ({"beta": True}, "wrong_type", "/beta"),
    "one of the betas": ({"beta": [1.0, 0.0]}, "out_of_range", "/beta/1"),
    "no beta": ({"beta": []}, "out_of_range", "/beta"),
    "many betas": ({"beta": [1.0] * 33}, "out_of_range", "/beta"),
    "steps over the cap": ({"steps": 10**7, "thin": 10**4}, "out_of_range", "/steps"),
    "no steps": ({"steps": 0}, "out_of_range", "/steps"),
    "steps of text": ({"steps": SECRET}, "wrong_type", "/steps"),
    "too much work": (
        {
            "steps": 10**6,
            "thin": 10**4,
            "chains": 2000,
            "num_samples": 10**5,
            "memory": {"patterns": RNG.standard_normal((50, 40)).tolist()},
        },
        "too_much_work",
        "/steps",
    ),
    "too large an answer": (
        {"num_samples": 10**6, "chains": 10**6, "steps": 1, "burn_in": 0, "thin": 1},
        "too_large",
        "/num_samples",
    ),
    "chains that fill the memory": (
        {
            "num_samples": 20_000,
            "chains": 20_000,
            "steps": 1,
            "burn_in": 0,
            "thin": 1,
            "memory": {"patterns": np.random.default_rng(0).random((2000, 8)).tolist()},
        },
        "too_large",
        "/chains",
    ),
    "all energies recorded": (
        {"steps": 10**5, "thin": 1, "chains": 6},
        "too_large",
        "/thin",
    ),
    "burn-in of all": ({"burn_in": 60}, "out_of_range", "/burn_in"),
    "more than is kept": ({"num_samples": 13}, "out_of_range", "/num_samples"),
    "more chains than samples": ({"chains": 7}, "out_of_range", "/chains"),
    "step size of zero": ({"step_size": 0}, "out_of_range", "/step_size"),
    "step size above one": ({"step_size": 1.5}, "out_of_range", "/step_size"),
    "unknown method": ({"method": SECRET}, "not_allowed", "/method"),
    "unknown field": ({"colour": SECRET}, "unknown_field", "/colour"),
    "negative seed": ({"seed": -1}, "out_of_range", "/seed"),
    "no memory": ({"memory": None}, "missing", "/memory"),
    "memory of a number": ({"memory": 7}, "wrong_type", "/memory"),
    "init of text": ({"init": SECRET}, "not_allowed", "/init"),
    "init of another width": ({"init": {"states": [[1.0] * 5] * 3}}, "wrong_shape", "/init/states"),
    "init of another count": ({"init": {"states": [[1.0] * 6] * 2}}, "wrong_shape", "/init"),
    "init without length": (
        {"init": {"states": [[1.0] * 6, [0.0] * 6, [1.0] * 6]}},
        "zero_norm",
        "/init/states/1",
    ),
    "init far off": ({"init": {"states": [[1e9] * 6] * 3}}, "out_of_range", "/init/states/0/0"),
    "init of sequences": ({"memory": "rrm", "init": {"states": [[1.0]]}}, "not_read", "/init"),
    "clamp of a list": ({"clamp": [1]}, "wrong_type", "/clamp"),
    "clamp of nothing": ({"clamp": {"index": [], "values": []}}, "out_of_range", "/clamp/index"),
    "clamp of all": (
        {"clamp": {"index": list(range(6)), "values": [1.0] * 6}},
        "out_of_range",
        "/clamp/index",
    ),
    "clamp twice": ({"clamp": CLAMP | {"index": [3, 3]}}, "duplicate", "/clamp/index"),
    "clamp outside": ({"clamp": CLAMP | {"index": [0, 6]}}, "out_of_range", "/clamp/index/1"),
    "clamp of more values": ({"clamp": CLAMP | {"index": [1]}}, "wrong_shape", "/clamp/values"),
    "clamp of text": ({"clamp": CLAMP | {"values": [1.0, SECRET]}}, "wrong_type", None),
    "clamp with heads": ({"clamp": CLAMP, "heads": 2}, "conflict", "/clamp"),
    "clamp of sequences": ({"memory": "rrm", "clamp": CLAMP}, "not_read", "/clamp"),
}


@pytest.mark.parametrize("name", BAD_REQUESTS)
def test_bad_requests(client, name):
    change, code, at = BAD_REQUESTS[name]
    check(post(client, body(**change)), 422, "invalid-request", code, at)


def test_bad_tensors(client):
    for arrays, code, at in (
        ({"patterns": PATTERNS * np.array([[np.nan]], np.float32)}, "not_finite", "/patterns/0/0"),
        ({"patterns": PATTERNS.astype(np.int64)}, "wrong_dtype", "/patterns"),
        ({"patterns": PATTERNS[0]}, "wrong_shape", "/patterns"),
        ({"patterns": 1e6 * PATTERNS}, "out_of_range", "/patterns/0/0"),
        ({"patterns": PATTERNS[:0]}, "empty", "/patterns"),
        ({"patterns": PATTERNS.reshape(8, 2, 3)}, "wrong_shape", "/patterns"),
        ({"patterns": np.vstack([PATTERNS, PATTERNS[:1]])}, "duplicate", "/patterns/8"),
        ({"patterns": PATTERNS, "colour": PATTERNS}, "unknown_field", "/colour"),
    ):
        response = post(client, tensors({"beta": 1.0}, **arrays), SAFETENSORS)
        check(response, 422, "invalid-memory", code, at)
    lone = tensors({"beta": 1.0}, patterns=PATTERNS, clamp_index=np.array([1]))
    check(post(client, lone, SAFETENSORS), 422, "invalid-request", "missing", "/clamp_index")
    both = tensors({"memory": "rrm"}, patterns=PATTERNS)
    check(post(client, both, SAFETENSORS), 422, "invalid-request", "conflict", "/memory")


def test_no_number_in_json_is_not_finite(client):
    raw = json.dumps(body()).encode()
    check(post(client, raw.replace(b"50.0", b"NaN")), 400, "invalid-json")
    check(post(client, raw.replace(b"50.0", b"1e999")), 422, "invalid-request", "not_finite")


def test_an_unknown_memory(client):
    for name in ("nothing", "../secret", "", "a/b", SECRET):
        problem = check(post(client, body(memory=name)), 404, "unknown-memory", "unknown_memory")
        assert problem.errors[0].pointer == "/memory"


def test_large_json_is_asked_for_as_tensors(narrow):
    """Above 4 MiB, where a server reads so much at all."""
    with narrow.client() as client:
        raw = json.dumps(body(note="x")).encode() + b" " * (5 << 20)
        problem = check(post(client, raw), 413, "body-too-large")
    assert SAFETENSORS in problem.detail
