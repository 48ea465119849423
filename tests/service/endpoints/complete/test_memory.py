"""POST /complete from a memory of images in place of a model."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from models.base import DynamicsParams
from models.dynamics import StopReason
from models.inputs.image_files.data import ImageData
from models.inputs.inpainting.plan import WholeImage
from models.memories import Memory, MemoryCard
from models.sampling import RunInterruptedError
from service.endpoints.complete.decoding import DecodedRequest
from service.endpoints.complete.infer import CompleteInputs, complete_image
from service.endpoints.complete.masks import Hole
from service.endpoints.complete.recall import (
    COMPARISON_STEPS,
    RecalledMemory,
    recall_memory,
)
from service.endpoints.complete.routes import CompleteTask
from service.endpoints.complete.schemas import CompleteResponse
from service.observability.progress import Progress
from tests.service.endpoints.anomaly.test_bad_input import check
from tests.service.endpoints.complete.test_events import streamed
from tests.service.endpoints.jobs.test_api import begin, over
from tests.service.endpoints.memories.test_api import put
from tests.service.endpoints.sample.test_api import tensors
from tests.support.bad_tensor_bodies import SAFETENSORS
from tests.support.completion import as_form, body, completed, opened, pictures, send, told
from tests.support.image_files import chunk, png, saved
from tests.support.stop_when import StopWhen

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


def test_events_tell_the_fall_of_all_channels_together(client):
    frames, answer = streamed(client, blank(FACES[0]), MASK, memory="greys")
    convergence = answer["images"][0]["convergence"]
    assert frames[-1]["windows"] == [0, 1, 2]
    assert frames[-1]["energy_drop"] == pytest.approx(convergence["energy_drop"], rel=1e-5)
    assert (convergence["energy_drop"] > 0, convergence["energy_rose"]) == (True, 0.0)


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
    report = told(answer)
    assert (report["windows"], report["steps"], report["energy_percentile"]) == (1, 1, None)
    assert report["energy_final"] < report["energy_initial"]


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


def test_each_channel_as_if_it_came_alone(client):
    """Whatever the other channels are, one is filled as the same grey image is."""
    image = np.dstack([GREYS[1], *RNG.integers(0, 256, (2, 12, 10)).astype(np.uint8)])
    answer = completed(client, saved(image), MASK, memory="greys")
    alone = [completed(client, saved(image[..., c].copy()), MASK, memory="greys") for c in range(3)]
    for c in range(3):
        [channel] = pictures(alone[c])
        np.testing.assert_array_equal(pictures(answer)[0][..., c], channel)
    [betas] = answer["dynamics"]["beta"]
    assert betas == [one["dynamics"]["beta"][0][0] for one in alone]
    assert betas[0] == 1e4 > max(betas[1:])


def test_a_grey_image_is_filled_with_the_luma_of_stored_ones(client):
    luma = np.rint(FACES @ [0.299, 0.587, 0.114]).astype(np.uint8)
    for stored in (0, 5):
        answer = completed(client, blank(luma[stored]), MASK, **FROM_FACES, include=["memories"])
        np.testing.assert_allclose(pictures(answer)[0].astype(int), luma[stored], atol=1)
        [memories] = answer["images"][0]["reasons"]["memories"]
        assert memories["top"][0]["memory"] == stored


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


@pytest.mark.parametrize(
    ("fields", "code", "says"),
    [
        (
            {"include": ["uncertainty"]},
            "not_told",
            "This memory has no uncertainty: choose a model that has it",
        ),
        ({"dynamics": {"resonance": {"strength": 1.0}}}, "not_read", "A memory has no attention"),
        ({"memory": "vectors"}, "wrong_kind", "`vectors`"),
        ({"memory": "mnist-3"}, "wrong_shape", "10 x 12 pixels"),
    ],
    ids=["include", "resonance", "kind", "size"],
)
def test_refused_before_the_image_is_decoded(client, fields, code, says):
    damaged = png(10, 12, 8, 0, b"", chunk(b"IDAT", b"zlib?"))
    unread = send(client, damaged, MASK, **FROM_FACES)
    check(unread, 422, "invalid-image", None, "/image")
    response = send(client, damaged, MASK, **FROM_FACES | fields)
    [error] = response.json()["errors"]
    assert error["code"] == code
    assert says in error["detail"]
    check(send(client, damaged, MASK, memory="nothing"), 404, "unknown-memory")


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


def test_a_key_written_with_escapes_is_not_answered_from_the_cache(client):
    content = json.dumps(body(blank(FACES[3]), MASK, memory="escaped"))
    content = content.replace('"memory"', '"\\u006demory"')
    after = []
    for images in (FACES[3:5], FACES[4:6]):
        put(client, "escaped", tensors({"kind": "images"}, patterns=images), SAFETENSORS)
        headers = {"content-type": "application/json"}
        response = client.post("/complete", content=content, headers=headers)
        assert response.status_code == 200
        assert "x-cache" not in response.headers
        after.append(pictures(response.json())[0][HALF].tolist())
    assert after[0] == FACES[3][HALF].tolist() != after[1]


def test_an_answer_of_a_model_outlives_a_stored_memory(client):
    def ask():
        response = send(client, saved(FACES[7]), MASK, model="et-tile")
        assert response.status_code == 200, response.text
        return response

    ask()
    assert ask().headers.get("x-cache") == "hit"
    put(client, "other", tensors({"kind": "images"}, patterns=FACES[:2]), SAFETENSORS)
    assert ask().headers.get("x-cache") == "hit"


def test_memories_are_not_looked_at_where_a_model_completes():
    async def memories_fingerprint():
        nonlocal looked
        looked += 1
        return b"memories"

    looked = 0
    task = CompleteTask.__new__(CompleteTask)
    registry = SimpleNamespace(fingerprint=b"models")
    context: Any = SimpleNamespace(registry=registry, memories_fingerprint=memories_fingerprint)
    task.context = context
    assert asyncio.run(task.fingerprint(b'{"include": ["memories"]}')) == b"models"
    assert not looked
    assert asyncio.run(task.fingerprint(b'{"memory": "faces"}')) == b"modelsmemories"
    assert looked == 1


def recalled(image: np.ndarray, stored: np.ndarray = FACES) -> RecalledMemory:
    items = stored / np.float32(255)
    memory = Memory.from_items("images", items)
    store: Any = SimpleNamespace(get=lambda name: (MemoryCard.from_memory(memory, items), memory))
    opened = DecodedRequest(ImageData(image), Hole(HALF, None))
    return recall_memory("faces", store, opened)


def task_of(model: RecalledMemory, image: np.ndarray, count: int = 1, **params) -> CompleteInputs:
    dynamics = DynamicsParams(**params)
    return CompleteInputs(model, ImageData(image), WholeImage(HALF), count, dynamics, frozenset())


def test_images_are_compared_where_they_are_completed():
    model = recalled(FACES[0])
    task = task_of(model, FACES[0], count=2)
    assert not model.network.is_compared
    with pytest.raises(RunInterruptedError):
        complete_image(task, Progress(), StopWhen(lambda: StopReason.CANCELLED))
    assert not model.network.is_compared
    assert len(complete_image(task, Progress(), StopWhen(lambda: None)).completions) == 2
    assert model.network.is_compared


@pytest.mark.parametrize(("stored", "planes"), [(FACES, 1), (GREYS, 3)], ids=["rgb", "grey"])
def test_the_cost_counts_the_comparison_once(stored, planes):
    model = recalled(FACES[0], stored)
    numbers = stored.size
    for count, steps in ((1, 1), (4, 1), (4, 9)):
        task = task_of(model, FACES[0], count, steps=steps)
        assert task.memory_work == planes * (count * (steps + 1) + COMPARISON_STEPS) * numbers
        assert task.cost == task.memory_work / 10_000


def test_too_much_work_is_refused(start, wait, answers, tmp_path, checkpoints):
    allowed = (3 + 1 + COMPARISON_STEPS) * FACES.size
    limits = {"max_sample_work": allowed, "memory_store": tmp_path, "checkpoints": checkpoints}
    server = start(**limits)
    wait(lambda: answers(server, "/health/ready", 200))
    with server.client() as client:
        put(client, "faces", tensors({"kind": "images"}, patterns=FACES), SAFETENSORS)
        completed(client, saved(FACES[0]), MASK, **FROM_FACES, dynamics={"steps": 3})
        for more in ({"dynamics": {"steps": 4}}, {"dynamics": {"steps": 3}, "num_samples": 2}):
            response = send(client, saved(FACES[0]), MASK, **FROM_FACES, **more)
            check(response, 422, "invalid-request", "too_much_work", "/dynamics/steps")
            [error] = response.json()["errors"]
            limit = f"at most {allowed} (BASIN_MAX_SAMPLE_WORK) are allowed. Lower `steps`"
            assert limit in error["detail"]


def test_no_checkpoint_has_the_name_of_memories_in_metrics(client):
    completed(client, blank(FACES[0]), MASK, **FROM_FACES)
    assert 'model="complete:memory"' in client.get("/metrics").text
