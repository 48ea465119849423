"""Bodies of POST /complete: JSON and forms, and what is wrong with them."""

from __future__ import annotations

import base64
import json
from typing import Any

import httpx
import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from service.endpoints.complete.decoding import decode_request
from service.endpoints.complete.parse import CompletionRequest, read_request
from service.errors import Problem
from service.settings import Settings
from tests.support.bad_score_bodies import SECRET
from tests.support.fuzz import changed_somewhere
from tests.support.image_files import FILES, NOT_READ, chunk, exif, flat_png, saved, smooth

IMAGE, JSON = FILES["png"], "application/json"
HOLE = np.zeros((20, 30), np.uint8)
HOLE[4:9, 5:12] = 255
MASK = saved(HOLE)
SETTINGS = Settings()


def text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def body(**changes: Any) -> bytes:
    return json.dumps({"image": text(IMAGE), "mask": text(MASK)} | changes).encode()


def form(fields: dict[str, Any], **files: bytes) -> tuple[bytes, str]:
    """As httpx sends it."""
    sent = {name: (f"{SECRET}.txt", data, "text/plain") for name, data in files.items()}
    request = httpx.Request("POST", "http://h/complete", data=fields, files=sent)
    return request.read(), request.headers["content-type"]


def parts(*parts: tuple[str, bytes], boundary: str = "b", end: bool = True) -> bytes:
    """A form by hand: header lines and data."""
    lines = [f"--{boundary}\r\n{head}\r\n\r\n".encode() + data + b"\r\n" for head, data in parts]
    return b"".join(lines) + (f"--{boundary}--\r\n".encode() if end else b"")


def named(name: str, data: bytes = b"1") -> tuple[str, bytes]:
    return f'Content-Disposition: form-data; name="{name}"', data


def read(body: bytes, content_type: str = JSON, **changes: Any) -> CompletionRequest:
    return read_request(body, content_type, Settings.model_validate(changes))


def refusal(body: bytes, content_type: str = JSON) -> Problem:
    with pytest.raises(Problem) as refused:
        decode_request(read(body, content_type))
    problem = refused.value
    assert SECRET.encode() not in problem.response("id").body
    return problem


def test_json_and_a_form_say_the_same():
    rest = {
        "mask_mode": "black_fill",
        "model": "et-64",
        "num_samples": 3,
        "dynamics": {"steps": 4, "noise": 0.5},
        "include": ["trace"],
    }
    as_text = {k: v if isinstance(v, str) else json.dumps(v) for k, v in rest.items()}
    one = read(body(**rest), "application/json; charset=utf-8")
    other = read(*form(as_text, image=IMAGE, mask=MASK))
    assert one == other
    assert one.model == "et-64"
    assert one.num_samples == 3
    assert one.dynamics.noise == 0.5
    assert one.include == {"trace"}
    opened = decode_request(one)
    np.testing.assert_array_equal(opened.image.to_array(), smooth(20, 30))
    np.testing.assert_array_equal(opened.hole.hidden, HOLE == 0)


def test_what_is_left_out():
    found = read(body(dynamics=None, mask_mode=None))
    assert (found.mask_mode, found.num_samples, found.model) == ("white_fill", 1, None)
    assert found.include == frozenset()


@pytest.mark.parametrize(
    "head",
    [
        "data:image/png;base64,",
        "data:;base64,",
        "data:image/svg+xml;charset=utf-8;base64,",
        "data:text/plain;base64,",
    ],
)
def test_data_uris(head):
    assert read(body(image=head + text(IMAGE))) == read(body())


def test_lines_may_be_broken():
    wrapped = base64.encodebytes(IMAGE).decode()
    assert "\n" in wrapped
    assert read(body(image=wrapped.replace("\n", "\r\n"))) == read(body())


def test_an_image_may_bring_its_own_mask():
    image = saved(np.dstack([smooth(20, 30), 255 - HOLE]))
    opened = decode_request(read(body(image=text(image), mask=None, mask_mode="alpha")))
    np.testing.assert_array_equal(opened.hole.hidden, HOLE == 255)
    opened = decode_request(read(body(image=text(IMAGE), mask=text(image), mask_mode="alpha")))
    np.testing.assert_array_equal(opened.hole.hidden, HOLE == 255)


def test_a_mask_fits_what_is_seen_not_what_is_stored():
    turned = text(saved(smooth(20, 30), exif=exif(6)))
    assert refusal(body(image=turned)).faults[0].code == "wrong_shape"
    opened = decode_request(read(body(image=turned, mask=text(saved(np.rot90(HOLE).copy())))))
    assert opened.image.shape == opened.hole.hidden.shape == (30, 20)


BAD_TEXT = {
    "number": (7, "wrong_type"),
    "list": ([SECRET], "wrong_type"),
    "nothing": ("", "empty"),
    "words": (SECRET + "!", "not_base64"),
    "unpadded": (text(b"1234").rstrip("="), "not_base64"),
    "padded within": ("YQ==YQ==", "not_base64"),
    "blanks": (text(IMAGE).replace("A", "A ", 1), "not_base64"),
    "url-safe": ("-_-_", "not_base64"),
    "beyond ascii": ("é" + SECRET, "not_base64"),
    "data uri of text": ("data:image/png," + SECRET, "not_base64"),
    "data uri without end": ("data:image/png;base64", "not_base64"),
    "long data uri": ("data:" + "a;" * 100_000, "not_base64"),
}


@pytest.mark.parametrize("field", ["image", "mask"])
@pytest.mark.parametrize("name", BAD_TEXT)
def test_text_that_is_no_file(name, field):
    value, code = BAD_TEXT[name]
    problem = refusal(body(**{field: value}))
    assert problem.status == 422
    assert (problem.faults[0].pointer, problem.faults[0].code) == (f"/{field}", code)


BAD_FIELDS = {
    "no image": ({"image": None}, "missing", "/image"),
    "no mask": ({"mask": None}, "missing", "/mask"),
    "unknown mode": ({"mask_mode": SECRET}, "not_allowed", "/mask_mode"),
    "unknown field": ({"colour": SECRET}, "unknown_field", "/colour"),
    "no samples": ({"num_samples": 0}, "out_of_range", "/num_samples"),
    "many samples": ({"num_samples": 17}, "out_of_range", "/num_samples"),
    "half a sample": ({"num_samples": 1.5}, "wrong_type", "/num_samples"),
    "dynamics": ({"dynamics": {"speed": 1}}, "unknown_field", "/dynamics/speed"),
    "steps": ({"dynamics": {"steps": 65}}, "out_of_range", "/dynamics/steps"),
    "include": ({"include": [SECRET]}, "not_allowed", "/include/0"),
    "model": ({"model": 7}, "wrong_type", "/model"),
}


@pytest.mark.parametrize("name", BAD_FIELDS)
def test_bad_fields(name):
    change, code, at = BAD_FIELDS[name]
    problem = refusal(body(**change))
    assert problem.kind == "invalid-request"
    assert (problem.faults[0].code, problem.faults[0].pointer) == (code, at)


BAD_PICTURES = {
    "gif": ({"image": NOT_READ["gif"][0]}, "unsupported-image", "not_read", "/image"),
    "text as a mask": ({"mask": SECRET.encode()}, "unsupported-image", "not_read", "/mask"),
    "half": ({"image": IMAGE[:50]}, "invalid-image", "truncated", "/image"),
    "broken inside": (
        {"image": IMAGE.replace(b"IDAT", b"IDAT" + SECRET.encode())},
        "invalid-image",
        None,
        "/image",
    ),
    "large": ({"image": flat_png(4001)}, "invalid-image", "too_large", "/image"),
    "other size": ({"mask": saved(HOLE[:, :-1])}, "invalid-image", "wrong_shape", "/mask"),
    "turned": ({"mask": saved(HOLE, exif=exif(8))}, "invalid-image", "wrong_shape", "/mask"),
    "empty": ({"mask": saved(0 * HOLE)}, "invalid-image", "nothing_to_fill", "/mask"),
    "full": ({"mask": saved(0 * HOLE + 255)}, "invalid-image", "nothing_known", "/mask"),
    "cut": (
        {"mask": MASK[:33] + chunk(b"IDAT", b"x\x9c") + chunk(b"IEND")},
        "invalid-image",
        "truncated",
        "/mask",
    ),
}


@pytest.mark.parametrize("as_form", [False, True])
@pytest.mark.parametrize("name", BAD_PICTURES)
def test_bad_pictures(name, as_form):
    change, kind, code, at = BAD_PICTURES[name]
    files = {"image": IMAGE, "mask": MASK} | change
    sent = form({}, **files) if as_form else (body(**{k: text(v) for k, v in files.items()}), JSON)
    problem = refusal(*sent)
    assert problem.kind == kind
    assert problem.faults[0].pointer == at
    assert code in (None, problem.faults[0].code)


def test_no_transparency_to_go_by():
    for change in ({"mask": None}, {}):
        problem = refusal(body(mask_mode="alpha", **change))
        at = "/mask" if change == {} else "/image"
        assert (problem.faults[0].code, problem.faults[0].pointer) == ("no_alpha", at)


def test_large_json_is_asked_for_as_a_form():
    problem = refusal(body(note="x") + b" " * (5 << 20))
    assert problem.kind == "body-too-large"
    assert "multipart/form-data" in problem.detail


def test_json_that_is_none():
    assert refusal(b'{"image": ').kind == "invalid-json"
    assert refusal(b"[]").kind == "invalid-request"


FORM = "multipart/form-data; boundary=b"
GOOD = (named("image", IMAGE), named("mask", MASK))
BAD_FORMS = {
    "nothing": (b"", FORM),
    "no boundary": (parts(*GOOD), "multipart/form-data"),
    "other boundary": (parts(*GOOD), "multipart/form-data; boundary=c"),
    "long boundary": (parts(*GOOD, boundary="b" * 300), FORM.replace("=b", "=" + "b" * 300)),
    "no end": (parts(*GOOD, end=False), FORM),
    "cut": (parts(*GOOD)[:-8], FORM),
    "no name": (parts(*GOOD, ("Content-Disposition: form-data", b"1")), FORM),
    "no disposition": (parts(*GOOD, (f"X-{SECRET}: 1", b"1")), FORM),
    "an attachment": (parts(("Content-Disposition: attachment; name=image", IMAGE)), FORM),
    "a header of nothing": (parts((": 1", b"1")), FORM),
    "a long header": (parts((f"X: {'x' * 5000}", b"1")), FORM),
    "many headers": (parts(("\r\n".join(["X: 1"] * 9), b"1")), FORM),
    "many parts": (parts(*[named("model")] * 1000), FORM),
    "encoded": (parts((named("image")[0] + "\r\nContent-Transfer-Encoding: base64", b"1")), FORM),
    "no form": (body(), FORM),
    "blanks after a boundary": (parts(*GOOD, end=False) + b"--b" + b" " * (8 << 20), FORM),
    "a tab after a boundary": (parts(*GOOD).replace(b"\r\n--b\r\n", b"\r\n--b\t\r\n"), FORM),
    "boundaries and nothing else": (b"\r\n--bx" * 100_000, FORM),
}


@pytest.mark.parametrize("name", BAD_FORMS)
def test_bad_forms(name):
    problem = refusal(*BAD_FORMS[name])
    assert (problem.kind, problem.status) == ("invalid-multipart", 400)


BAD_PARTS = {
    "twice": ([*GOOD, named("mask", MASK)], "duplicate", "/mask"),
    "unknown": ([*GOOD, named("colour")], "unknown_field", "/colour"),
    "unknown, and not to be repeated": ([*GOOD, named(f"<{SECRET}>")], "unknown_field", ""),
    "not utf-8": ([*GOOD, named("model", b"\xff")], "wrong_type", "/model"),
    "no json": ([*GOOD, named("dynamics", SECRET.encode())], "wrong_type", "/dynamics"),
    "no number": ([*GOOD, named("num_samples", b'"3"')], "wrong_type", "/num_samples"),
    "long": ([*GOOD, named("dynamics", b" " * 70_000)], "too_long", "/dynamics"),
    "no image": ([named("mask", MASK)], "missing", "/image"),
}


@pytest.mark.parametrize("name", BAD_PARTS)
def test_bad_parts(name):
    found, code, at = BAD_PARTS[name]
    problem = refusal(parts(*found), FORM)
    assert problem.kind == "invalid-request"
    assert (problem.faults[0].code, problem.faults[0].pointer) == (code, at)


def test_a_file_may_hold_anything():
    for data in (b"\r\n--", b"\r\n--a\r\n", b"--b--", b"\r\r\n\n"):
        image = IMAGE[:-12] + chunk(b"tEXt", b"t\0" + data) + IMAGE[-12:]
        assert read(parts(named("image", image), named("mask", MASK)), FORM) == read(body())


@hypothesis_settings(max_examples=50, deadline=None)
@given(data=st.data())
def test_no_body_fails_but_as_a_problem(data):
    start = st.just(orjson.dumps({"image": "aa==", "mask": text(MASK), "dynamics": {"steps": 1}}))
    with pytest.raises(Problem):
        decode_request(read(changed_somewhere(data, start)))


@hypothesis_settings(max_examples=50, deadline=None)
@given(data=st.data())
def test_no_form_fails_but_as_a_problem(data):
    good = bytearray(parts(*GOOD))
    at = data.draw(st.integers(0, len(good) - 1))
    good[at : at + data.draw(st.integers(0, 9))] = data.draw(st.binary(max_size=20))
    try:
        decode_request(read(bytes(good), FORM))
    except Problem as problem:
        assert problem.status in (400, 415, 422)  # noqa: PT017
