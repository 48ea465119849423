"""POST /complete from a memory of images in place of a model."""

from __future__ import annotations

import json

import numpy as np
import pytest
import safetensors.numpy

from service.endpoints.complete.schemas import CompleteResponse
from tests.service.endpoints.anomaly.test_bad_input import check
from tests.service.endpoints.jobs.test_api import begin, over
from tests.service.endpoints.memories.test_api import put
from tests.service.endpoints.sample.test_api import tensors
from tests.support.bad_score_bodies import SAFETENSORS
from tests.support.completion import as_form, body, completed, opened, pictures, send, told
from tests.support.image_files import saved

RNG = np.random.default_rng(8)
FACES = RNG.integers(0, 256, (9, 12, 10, 3)).astype(np.uint8)
GREYS = RNG.integers(0, 256, (7, 12, 10)).astype(np.uint8)
HALF = np.zeros((12, 10), bool)
HALF[6:] = True
MASK = saved(HALF.astype(np.uint8) * 255)
FROM_FACES = {"memory": "faces"}


@pytest.fixture(scope="module")
def client(start, tmp_path_factory, checkpoints, wait, answers):
    folder = tmp_path_factory.mktemp("memories")
    server = start(checkpoints=checkpoints, memory_store=folder, cache_bytes=1 << 20)
    wait(lambda: answers(server, "/health/ready", 200))
    with server.client() as client:
        for name, images in (("faces", FACES), ("greys", GREYS)):
            file = tensors({"kind": "images"}, patterns=images)
            assert put(client, name, file, SAFETENSORS).status_code == 201
        assert put(client, "vectors", {"patterns": [[1, 0], [0, 1]]}).status_code == 201
        yield client


def blank(image: np.ndarray) -> bytes:
    """The image with nothing left where it is to be filled."""
    return saved(np.where(HALF if image.ndim == 2 else HALF[..., None], np.uint8(77), image))


@pytest.mark.parametrize("stored", [0, 4, 8])
def test_a_half_hidden_stored_image_comes_back(client, stored):
    response = send(client, blank(FACES[stored]), MASK, **FROM_FACES, include=["memories"])
    CompleteResponse.model_validate_json(response.content, strict=True)
    answer = response.json()
    [after] = pictures(answer)
    np.testing.assert_array_equal(after, FACES[stored])
    assert "model" not in answer
    about = answer["memory"]
    assert (about["id"], about["patterns"], about["shape"]) == ("faces", 9, [12, 10, 3])
    assert about["sha256"] == client.get("/memories/faces").json()["sha256"]
    assert answer["dynamics"]["steps"] == 1
    [memories] = answer["images"][0]["reasons"]["memories"]
    assert memories["top"] == [{"memory": stored, "share": 1.0}]
    found = told(answer)
    assert (found["windows"], found["steps"], found["energy_percentile"]) == (1, 1, None)
    assert found["energy_final"] < found["energy_initial"]


def test_from_the_nearest_image_to_a_blend(client):
    image = RNG.integers(0, 256, (12, 10, 3)).astype(np.uint8)

    def ask(**dynamics):
        answer = completed(
            client, saved(image), MASK, **FROM_FACES, dynamics=dynamics, include=["memories"]
        )
        [after] = pictures(answer)
        np.testing.assert_array_equal(after[~HALF], image[~HALF])
        return after, answer["images"][0]["reasons"]["memories"][0]["top"]

    distance = np.square(FACES / 255 - image / 255)[:, ~HALF].sum((1, 2))
    nearest = int(distance.argmin())
    sharp, top = ask(beta=1e4)
    np.testing.assert_array_equal(sharp[HALF], FACES[nearest][HALF])
    assert top == [{"memory": nearest, "share": 1.0}]
    even, top = ask(beta=1e-6)
    np.testing.assert_allclose(even[HALF], FACES.mean(0)[HALF], atol=0.6)
    assert [each["share"] for each in top] == pytest.approx([1 / 9] * 5, rel=1e-4)
    weight = np.exp(-0.5 / 2 * distance)
    blend = np.tensordot(weight / weight.sum(), FACES.astype(np.float64), 1)
    np.testing.assert_allclose(ask(beta=0.5)[0][HALF], blend[HALF], atol=0.6)
    np.testing.assert_allclose(ask(beta=0.5, steps=0)[0][HALF], FACES.mean(0)[HALF], atol=0.6)


def test_what_the_hole_held_has_no_part_in_the_answer(client):
    [one] = pictures(completed(client, blank(FACES[1]), MASK, **FROM_FACES))
    [two] = pictures(completed(client, saved(FACES[1]), MASK, **FROM_FACES))
    np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize(
    ("image", "memory"),
    [(FACES[2], "greys"), (GREYS[2], "faces"), (np.dstack([FACES[2], GREYS[0]]), "faces")],
    ids=["rgb from grey", "grey from rgb", "transparent"],
)
def test_other_channels_than_those_stored(client, image, memory):
    answer = completed(client, saved(image), MASK, memory=memory)
    [after] = pictures(answer)
    np.testing.assert_array_equal(after[~HALF], image[~HALF])
    assert after.shape == image.shape
    assert told(answer)["windows"] == (3 if memory == "greys" else 1)


def test_a_grey_image_as_rgb_is_filled_from_grey_ones(client):
    image = np.repeat(GREYS[3][..., None], 3, 2)
    [after] = pictures(completed(client, blank(image), MASK, memory="greys"))
    np.testing.assert_array_equal(after, image)


def test_samples_are_those_of_their_seeds(client):
    noisy = {"noise": 0.2, "seed": 3}
    several = completed(client, blank(FACES[0]), MASK, **FROM_FACES, num_samples=3, dynamics=noisy)
    assert len({image["b64_png"] for image in several["images"]}) == 3
    for index, image in enumerate(several["images"]):
        dynamics = noisy | {"seed": 3 + index}
        alone = completed(client, blank(FACES[0]), MASK, **FROM_FACES, dynamics=dynamics)
        assert alone["images"] == [image]


def test_the_same_code_answers_as_of_models(client, wait):
    image = blank(FACES[5])
    [after] = pictures(completed(client, image, MASK, **FROM_FACES))
    png = as_form(client, image, MASK, **FROM_FACES, headers={"accept": "image/png"})
    np.testing.assert_array_equal(opened(png.content), after)
    part = completed(client, image, MASK, **FROM_FACES, **{"return": "hole"})
    assert part["box"] == {"left": 0, "top": 6, "width": 10, "height": 6}
    np.testing.assert_array_equal(pictures(part)[0], after[6:])
    inverted = saved((~HALF).astype(np.uint8) * 255)
    black = completed(client, image, inverted, **FROM_FACES, mask_mode="black_fill")
    np.testing.assert_array_equal(pictures(black)[0], after)
    headers = {"accept": SAFETENSORS}
    file = send(client, image, MASK, headers=headers, **FROM_FACES, include=["memories"])
    arrays = safetensors.numpy.load(file.content)
    np.testing.assert_array_equal(arrays["image_0"], after)
    assert arrays["memories_0.share"].shape == (1, 9)
    job = over(client, wait, begin(client, "/complete", body(image, MASK, **FROM_FACES)))
    np.testing.assert_array_equal(pictures(client.get(job["result"]).json())[0], after)
    with client.stream(
        "POST",
        "/complete",
        json=body(image, MASK, **FROM_FACES, dynamics={"steps": 4, "step_size": 0.5}),
        headers={"accept": "text/event-stream"},
    ) as response:
        lines = [json.loads(x[6:]) for x in response.iter_lines() if x.startswith("data: ")]
    assert lines[-1]["memory"]["id"] == "faces"
    assert [line["step"] for line in lines[:-1]] == [1, 2, 3, 4]


def test_a_soft_mask_blends(client):
    soft = np.where(HALF, 255, 0).astype(np.uint8)
    soft[6] = 102
    image = saved(np.full((12, 10, 3), 40, np.uint8))
    hard = saved((soft > 0).astype(np.uint8) * 255)
    [after] = pictures(completed(client, image, hard, **FROM_FACES))
    [mixed] = pictures(completed(client, image, saved(soft), **FROM_FACES, mask_mode="soft"))
    np.testing.assert_array_equal(mixed[7:], after[7:])
    np.testing.assert_allclose(mixed[6], 40 + 0.4 * (after[6] - 40.0), atol=1)


@pytest.mark.parametrize(
    ("fields", "status", "kind", "code", "at"),
    [
        ({"memory": "faces", "model": "et-tile"}, 422, "invalid-request", "conflict", "/memory"),
        ({"memory": "mnist-3"}, 422, "invalid-image", "wrong_shape", "/image"),
        ({"memory": "vectors"}, 422, "invalid-request", "wrong_kind", "/memory"),
        ({"memory": 3}, 422, "invalid-request", "wrong_type", "/memory"),
        (
            {**FROM_FACES, "include": ["uncertainty"]},
            422,
            "invalid-request",
            "not_told",
            "/include",
        ),
        ({**FROM_FACES, "include": ["attention"]}, 422, "invalid-request", "not_told", "/include"),
        (
            {**FROM_FACES, "dynamics": {"resonance": {"strength": 1.0}}},
            422,
            "invalid-request",
            "not_read",
            "/dynamics/resonance",
        ),
    ],
    ids=["model too", "size", "kind", "type", "uncertainty", "attention", "resonance"],
)
def test_what_is_refused(client, fields, status, kind, code, at):
    check(send(client, saved(FACES[0]), MASK, **fields), status, kind, code, at)


def test_no_such_memory(client):
    for name in ("nothing", "", "../faces"):
        response = send(client, saved(FACES[0]), MASK, memory=name)
        check(response, 404, "unknown-memory")


def test_a_replaced_memory_is_not_answered_from_the_cache(client):
    def ask():
        return send(client, blank(FACES[3]), MASK, memory="new")

    file = tensors({"kind": "images"}, patterns=FACES[3:5])
    assert put(client, "new", file, SAFETENSORS).status_code == 201
    first = ask()
    assert ask().headers.get("x-cache") == "hit"
    put(client, "new", tensors({"kind": "images"}, patterns=FACES[4:6]), SAFETENSORS)
    second = ask()
    assert "x-cache" not in second.headers
    assert pictures(first.json())[0][HALF].tolist() == FACES[3][HALF].tolist()
    assert pictures(second.json())[0][HALF].tolist() != FACES[3][HALF].tolist()
