"""What of a completed image comes back: all of it or the hole, blended or not, with its doubt."""

from __future__ import annotations

import base64
import io
import json

import numpy as np
import pytest
import safetensors.numpy
from PIL import Image

from tests.service.endpoints.anomaly.test_bad_input import check
from tests.support.completion import (
    HOLE,
    IMAGE,
    MASK,
    SHAPE,
    as_form,
    completed,
    hole,
    opened,
    pictures,
    send,
)
from tests.support.image_files import FILES, saved, smooth

PANE = {"model": "et-pane"}
BOX = {"left": 5, "top": 4, "width": 7, "height": 5}
INSIDE = np.s_[4:9, 5:12]


@pytest.mark.parametrize("name", ["png", "png grey", "png alpha", "png 16 bits"])
def test_the_hole_alone(client, name):
    whole, part = (
        completed(client, FILES[name], num_samples=2, **PANE, **{"return": region})
        for region in ("image", "hole")
    )
    assert "box" not in whole
    assert part["box"] == BOX
    for all_of_it, some in zip(pictures(whole), pictures(part), strict=True):
        np.testing.assert_array_equal(some, all_of_it[INSIDE])
    convergence = [image["convergence"] for image in part["images"]]
    assert convergence == [image["convergence"] for image in whole["images"]]


def test_the_hole_as_a_file(client):
    [after] = pictures(completed(client, **PANE))
    answer = as_form(client, **PANE, **{"return": "hole"}, headers={"accept": "image/png"})
    np.testing.assert_array_equal(opened(answer.content), after[INSIDE])
    text = Image.open(io.BytesIO(answer.content)).info["basin"]
    assert json.loads(text)["box"] == BOX
    tensors = "application/vnd.safetensors"
    answer = send(client, **PANE, **{"return": "hole"}, headers={"accept": tensors})
    arrays = safetensors.numpy.load(answer.content)
    np.testing.assert_array_equal(arrays["image_0"], after[INSIDE])
    refused = send(client, **{"return": "mask"}).json()
    assert [error["pointer"] for error in refused["errors"]] == ["/return"]
    assert "'image' or 'hole'" in refused["errors"][0]["detail"]


def test_a_hole_fits_where_its_image_would_not(narrow):
    large = saved(np.zeros((2200, 1800, 3), np.uint8))
    mask = saved(hole((2200, 1800), 700, 700, 708, 709).astype(np.uint8) * 255)
    with narrow.client() as client:
        refused = send(client, large, mask, num_samples=5)
        check(refused, 422, "invalid-request", "too_large", "/num_samples")
        answer = completed(client, large, mask, num_samples=5, **{"return": "hole"})
    assert answer["box"] == {"left": 700, "top": 700, "width": 9, "height": 8}


def test_a_soft_mask_blends(client):
    before, soft = smooth(*SHAPE), np.zeros(SHAPE, np.uint8)
    soft[4:9, 5:12] = 255
    soft[4:9, 5] = 64
    hard = saved((soft > 0).astype(np.uint8) * 255)
    [after] = pictures(completed(client, mask=hard, **PANE))
    [blended] = pictures(completed(client, mask=saved(soft), mask_mode="soft", **PANE))
    np.testing.assert_array_equal(blended[soft == 255], after[soft == 255])
    np.testing.assert_array_equal(blended[soft == 0], before[soft == 0])
    edge = before[4:9, 5] + 64 / 255 * (after[4:9, 5].astype(float) - before[4:9, 5])
    assert np.abs(blended[4:9, 5] - edge).max() <= 1
    # As weights, 0 and 1 are all or nothing.
    ones = saved((soft > 0).astype(np.uint8))
    [again] = pictures(completed(client, mask=ones, mask_mode="soft", **PANE))
    np.testing.assert_array_equal(again, after)
    empty = saved(np.zeros(SHAPE, np.uint8))
    check(send(client, mask=empty, mask_mode="soft"), 422, "invalid-image", "nothing_to_fill")
    full = saved(np.full(SHAPE, 9, np.uint8))
    check(send(client, mask=full, mask_mode="soft"), 422, "invalid-image", "nothing_known")


def test_a_soft_mask_on_what_was_transparent(client):
    """No colour of a pixel that was transparent is left in it."""
    clear = np.dstack([smooth(*SHAPE), np.full(SHAPE, 255, np.uint8)])
    clear[4:9, 5:12] = 0
    half, full = (np.where(HOLE, level, 0).astype(np.uint8) for level in (128, 255))
    [after], [blended] = (
        pictures(completed(client, saved(clear), saved(mask), mask_mode="soft", **PANE))
        for mask in (full, half)
    )
    np.testing.assert_array_equal(blended[HOLE][:, :3], after[HOLE][:, :3])
    assert (blended[HOLE][:, 3] == 128).all()
    assert (after[..., 3] == 255).all()
    deep = saved(Image.fromarray(np.where(HOLE, 128 * 257, 0).astype(np.uint16)))
    [again] = pictures(completed(client, saved(clear), deep, mask_mode="soft", **PANE))
    np.testing.assert_array_equal(again, blended)


def test_reasons_take_the_room_of_one_window(narrow):
    """They are the mean over all windows."""
    mask = np.zeros((64, 64), np.uint8)
    mask[:, 30:34] = 255
    tensors = {"accept": "application/vnd.safetensors"}
    fields = {"model": "et-pane", "include": ["attention"], "headers": tensors}
    with narrow.client() as client:
        several = send(client, saved(smooth(64, 64)), saved(mask), **fields)
        one = send(client, **fields)
    sizes = [len(safetensors.numpy.load(answer.content)) for answer in (several, one)]
    assert sizes[0] == sizes[1] > 1


def test_what_error_to_expect(client):
    answer = completed(client, include=["uncertainty"], num_samples=2, **PANE)
    plain = completed(client, num_samples=2, **PANE)
    for image, other in zip(answer["images"], plain["images"], strict=True):
        grey = opened(base64.b64decode(image["b64_uncertainty_png"]))
        assert grey.shape == SHAPE
        assert (grey[~HOLE] == 0).all()
        assert (grey[HOLE] > 0).all()
        assert image["b64_png"] == other["b64_png"]
        assert "b64_uncertainty_png" not in other
    tensors = {"accept": "application/vnd.safetensors"}
    answer = send(client, include=["uncertainty"], **PANE, **{"return": "hole"}, headers=tensors)
    arrays = safetensors.numpy.load(answer.content)
    assert arrays["uncertainty_0"].dtype == np.float32
    np.testing.assert_allclose(arrays["uncertainty_0"], grey[INSIDE] / 255, atol=0.5001 / 255)


@pytest.mark.parametrize("model", ["et-tile", "et-grey"])
def test_what_does_not_tell_it(client, model):
    refused = send(client, include=["uncertainty"], model=model)
    check(refused, 422, "invalid-request", "not_told", "/include")


def test_other_routes_have_none(client):
    refused = client.post("/classify", json={"smiles": "CCO", "include": ["uncertainty"]})
    check(refused, 422, "invalid-request", "not_told", "/include")


def _known_pixels_stay(client, requests: int) -> None:
    rng = np.random.default_rng(0)
    for _ in range(requests):
        height, width = rng.integers(2, 40, 2)
        channels = int(rng.choice([1, 3, 4]))
        image = rng.integers(0, 256, (height, width, channels), np.uint8)
        hidden = rng.random((height, width)) < rng.random()
        if hidden.all() or not hidden.any():
            continue
        shown = image[..., 0] if channels == 1 else image
        mask = saved(hidden.astype(np.uint8) * 255)
        answer = as_form(client, saved(shown), mask, **PANE, headers={"accept": "image/png"})
        after = opened(answer.content)
        np.testing.assert_array_equal(after[~hidden], shown[~hidden])


def test_known_pixels_stay(client):
    _known_pixels_stay(client, 60)


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_known_pixels_stay_ten_thousand_times(client):
    _known_pixels_stay(client, 10_000)


def test_the_same_image_and_mask_in_a_form(client):
    form = as_form(client, IMAGE, MASK, **PANE, include=["uncertainty"]).json()
    assert form["images"] == completed(client, include=["uncertainty"], **PANE)["images"]
