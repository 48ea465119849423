"""POST /complete: pictures that are none, masks that say nothing, too much of either."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import combinations

import numpy as np
import pytest

from tests.service.endpoints.anomaly.test_bad_input import check
from tests.support.bad_score_bodies import SECRET
from tests.support.completion import (
    IMAGE,
    MASK,
    SHAPE,
    as_form,
    body,
    completed,
    send,
    text,
)
from tests.support.image_files import NOT_READ, flat_png, saved, smooth
from tests.support.rounding import find_differences

BAD = {
    "no image": ({"mask": text(MASK)}, 422, "invalid-request", "missing", "/image"),
    "no mask": (body(mask=None), 422, "invalid-request", "missing", "/mask"),
    "unknown field": (body(colour=SECRET), 422, "invalid-request", "unknown_field", "/colour"),
    "not base64": (body() | {"image": SECRET}, 422, "invalid-request", "not_base64", "/image"),
    "no picture": (body(SECRET.encode()), 415, "unsupported-image", "not_read", "/image"),
    "a gif": (body(NOT_READ["gif"][0]), 415, "unsupported-image", "not_read", "/image"),
    "half a picture": (body(IMAGE[:99]), 422, "invalid-image", "truncated", "/image"),
    "too large": (body(flat_png(4001)), 422, "invalid-image", "too_large", "/image"),
    "a mask of another size": (
        body(mask=saved(np.full((9, 9), 255, np.uint8))),
        422,
        "invalid-image",
        "wrong_shape",
        "/mask",
    ),
    "nothing to fill": (
        body(mask=saved(np.zeros(SHAPE, np.uint8))),
        422,
        "invalid-image",
        "nothing_to_fill",
        "/mask",
    ),
    "nothing known": (
        body(mask=saved(np.full(SHAPE, 255, np.uint8))),
        422,
        "invalid-image",
        "nothing_known",
        "/mask",
    ),
    "no alpha": (
        body(mask=None, mask_mode="alpha"),
        422,
        "invalid-image",
        "no_alpha",
        "/image",
    ),
    "mode": (body(mask_mode=SECRET), 422, "invalid-request", "not_allowed", "/mask_mode"),
    "samples": (body(num_samples=17), 422, "invalid-request", "out_of_range", "/num_samples"),
    "steps": (
        body(dynamics={"steps": 65}),
        422,
        "invalid-request",
        "out_of_range",
        "/dynamics/steps",
    ),
    "a knob of no number": (
        body(dynamics={"beta": SECRET}),
        422,
        "invalid-request",
        "wrong_type",
        "/dynamics/beta",
    ),
    "no such model": (body(model=SECRET), 404, "unknown-model", "unknown_model", "/model"),
    "a model of graphs": (body(model="et-shape"), 422, "wrong-model", "wrong_task", "/model"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_requests(client, name):
    content, status, kind, code, at = BAD[name]
    check(client.post("/complete", json=content), status, kind, code, at)


def test_wrong_models_are_told(client):
    problem = check(send(client, model="cdat-mol"), 422, "wrong-model")
    assert "POST /complete. Models that do: et-grey, et-pane, et-tile." in problem.detail
    response = client.post("/classify", json={"smiles": "CCO", "model": "et-tile"})
    check(response, 422, "wrong-model", "wrong_task", "/model")


def test_bad_bodies(client):
    def post(content, content_type):
        return client.post("/complete", content=content, headers={"content-type": content_type})

    check(post(b"{", "application/json"), 400, "invalid-json")
    check(post(MASK, "image/png"), 415, "unsupported-media-type")
    check(post(b"--b", "multipart/form-data; boundary=b"), 400, "invalid-multipart")
    check(post(b"--b", "multipart/form-data"), 400, "invalid-multipart")
    check(as_form(client, dynamics=SECRET), 422, "invalid-request", "wrong_type", "/dynamics")
    check(as_form(client, mask=b""), 422, "invalid-image", "empty", "/mask")
    large = post(b"[" * (1 << 20) + b"[", "application/json")
    check(large, 413, "body-too-large")


def test_more_windows_than_are_allowed(narrow):
    hole = np.zeros((64, 64), np.uint8)
    hole[:, 30:34] = 255
    image, mask = saved(smooth(64, 64)), saved(hole)
    with narrow.client() as client:
        assert completed(client, image, mask)["images"][0]["convergence"]["windows"] == 6
        response = send(client, image, mask, num_samples=2)
        check(response, 422, "invalid-request", "too_much_work", "/mask")


def test_others_are_unharmed(server):
    good = [body(num_samples=2, dynamics={"noise": 0.3, "seed": i}) for i in range(4)]
    bad = [content for content, *_ in BAD.values()]
    with server.client() as client, ThreadPoolExecutor(8) as pool:

        def images(content):
            return client.post("/complete", json=content).json()["images"]

        molecule = client.post("/classify", json={"smiles": "CCO"}).json()["results"]
        alone = [images(content) for content in good]
        refused = [pool.submit(client.post, "/complete", json=content) for content in bad]
        together = list(pool.map(images, good))
        assert client.post("/classify", json={"smiles": "CCO"}).json()["results"] == molecule
        assert not find_differences(together, alone)
        assert all(find_differences(one, other) for one, other in combinations(alone, 2))
        assert all(400 <= future.result().status_code < 500 for future in refused)
