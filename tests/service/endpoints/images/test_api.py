"""What POST /images/classify and /images/answer say."""

from __future__ import annotations

import json
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from typing import get_args

import numpy as np
import pytest
from scipy.special import softmax

from models import checkpoint
from models.base import DynamicsParams
from models.inputs.images import ImageInput
from models.inputs.questions import ANSWERS, COLORS, QUESTIONS, Question
from service.endpoints.images.schemas import (
    AnswerImagesResponse,
    AskedQuestion,
    ClassifyImagesResponse,
    Colour,
    Kind,
)
from service.endpoints.models.schemas import RecogniserDetail
from tests.service.endpoints.jobs.test_api import begin, over
from tests.support.completion import text
from tests.support.image_files import exif, saved
from tests.support.image_models import (
    CLOSEST,
    GLYPHS,
    OTHER,
    SCENE,
    SEEN,
    SHAPE,
    SHAPES,
    TEMPERATURE,
    form,
    look,
    looked,
    only,
)
from tests.support.server import depth

RNG = np.random.default_rng(8)
GLYPH = saved(RNG.integers(0, 256, (8, 12, 3), np.uint8))
LARGE = saved(RNG.integers(0, 256, (240, 360, 3), np.uint8))


@pytest.fixture(scope="module")
def networks(checkpoints):
    return {name: checkpoint.load_checkpoint(checkpoints / name) for name in SHAPES}


def expected(loaded, pixels, question=None, knobs=None):
    """What the network makes of pixels (H, W, C) in [0, 1]."""
    network = loaded.network
    picture = ImageInput(pixels.transpose(2, 0, 1).astype(np.float32), question)
    network.check(picture)
    output = network.infer(network.pack([picture]), [knobs or DynamicsParams()])
    p = softmax(output.logits[0].double().numpy() / TEMPERATURE)
    final = sum(float(s.trace[-1].energy_R[0]) for s in output.solutions)
    return p, final


def test_a_class_is_what_the_checkpoint_computes(client, networks):
    answer = looked(client, saved(SEEN[:8, :12]), include=["trace", "components"])
    ClassifyImagesResponse.model_validate_json(json.dumps(answer), strict=True)
    result = only(answer)
    p, final = expected(networks["ait-glyph"], SEEN[:8, :12] / 255)
    assert list(result["probabilities"]) == list(GLYPHS)
    assert list(result["probabilities"].values()) == pytest.approx(p, rel=1e-6)
    assert result["label"] == GLYPHS[p.argmax()]
    assert result["probability"] == max(result["probabilities"].values())
    assert result["image"] == {"width": 12, "height": 8, "fit": "stretch", "size": [12, 8]}
    told = result["convergence"]
    assert told["energy_final"] == pytest.approx(final, rel=1e-6)
    assert told["out_of_distribution"] is not (0.5 <= told["energy_percentile"] <= 99.5)
    assert (told["steps"], told["stop_reason"]) == (6, "step_limit")
    assert set(told["components"]) == {"retrieval", "confinement"}
    assert [(e["block"], e["step"]) for e in told["trace"]] == [
        (b, s) for b in (0, 1) for s in range(4)
    ]
    assert told["energy_drop"] > 0
    assert answer["model"] == {
        "name": "ait-glyph",
        "version": "4.0",
        "sha256": networks["ait-glyph"].sha256,
    }
    assert answer["dynamics"]["beta"] == [[1.0], [1.0]]
    assert answer["convergence"]["rows"] == 1
    assert set(answer["timings_ms"]) == {
        *("read", "parse", "decode", "queue", "compute", "encode", "total")
    }


def test_an_answer_is_what_the_checkpoint_computes(client, networks):
    for question, same in (
        (SHAPE, Question("non-relational", "shape", "red")),
        (CLOSEST, Question("relational", "shape of the closest", "blue")),
    ):
        answer = looked(client, SCENE, question=question)
        AnswerImagesResponse.model_validate_json(json.dumps(answer), strict=True)
        result = only(answer)
        p, final = expected(networks["ait-scene"], SEEN / 255, same.encode())
        assert list(result["probabilities"]) == list(ANSWERS)
        assert list(result["probabilities"].values()) == pytest.approx(p, rel=1e-6)
        assert result["answer"] == ANSWERS[p.argmax()]
        assert result["convergence"]["energy_final"] == pytest.approx(final, rel=1e-6)
        assert result["question"] == {
            "text": same.text,
            "kind": same.kind,
            "asked": same.asked,
            "colour": same.colour,
        }


def test_json_a_data_uri_and_a_form_give_the_same_answer(client):
    one = looked(client, SCENE, question=SHAPE, dynamics={"steps": 2}, include=["trace"])
    uri = {"image": "data:image/png;base64," + text(SCENE), "question": SHAPE}
    rest = {"dynamics": {"steps": 2}, "include": ["trace"]}
    assert client.post("/images/answer", json=uri | rest).json()["results"] == one["results"]
    for question in (SHAPE, {"asked": "shape", "colour": "red"}):
        answer = form(client, SCENE, question=question, model="ait-scene", **rest)
        assert answer.json()["results"] == one["results"]


def test_a_picture_is_what_it_would_be_alone(client):
    """Bit for bit: the workspace pools the patches of one picture, and keeps nothing."""
    images = [SCENE, saved(OTHER), LARGE, saved(OTHER)]
    alone = [only(looked(client, image)) for image in images]
    together = looked(client, *images)["results"]
    assert [result["index"] for result in together] == [0, 1, 2, 3]
    assert [result | {"index": 0} for result in together] == alone
    assert form(client, *images).json()["results"] == together
    assert looked(client, *images[::-1])["results"][0] == alone[3]
    assert only(looked(client, SCENE)) == alone[0]  # whatever was asked in between


def test_requests_at_once_do_not_meet(client, server):
    images = [saved(RNG.integers(0, 256, (15, 15, 3), np.uint8)) for _ in range(6)]
    alone = [looked(client, image, question=SHAPE)["results"] for image in images]
    with server.client() as other, ThreadPoolExecutor(6) as pool:
        asked = [pool.submit(looked, other, image, question=SHAPE) for image in images * 3]
        assert [future.result()["results"] for future in asked] == alone * 3


def test_several_questions_about_one_picture_and_one_about_several(client):
    def ask(images, question):
        found = looked(client, *images, question=question)["results"]
        return [{k: v for k, v in result.items() if k != "index"} for result in found]

    [shape], [closest] = ask([SCENE], SHAPE), ask([SCENE], CLOSEST)
    assert ask([SCENE], [SHAPE, CLOSEST]) == [shape, closest]
    other = ask([saved(OTHER)], SHAPE)
    assert ask([SCENE, saved(OTHER)], SHAPE) == [shape, *other]
    assert ask([saved(OTHER), SCENE], [SHAPE, CLOSEST]) == [*other, closest]
    assert form(client, SCENE, question=[SHAPE, CLOSEST]).json()["results"][1]["index"] == 1


def test_a_large_picture_is_averaged_over_areas(client, networks):
    blocks = RNG.integers(0, 256, (8, 12, 3), np.uint8)
    p, _ = expected(networks["ait-glyph"], blocks / 255)
    found = only(looked(client, saved(blocks.repeat(30, 0).repeat(30, 1))))
    assert list(found["probabilities"].values()) == pytest.approx(p, rel=1e-5)
    assert found["image"]["width"] == 360


def test_crop_shows_the_middle(client):
    image = RNG.integers(0, 256, (40, 24, 3), np.uint8)
    cropped = only(looked(client, saved(image), fit="crop"))
    assert cropped["image"] == {"width": 24, "height": 40, "fit": "crop", "size": [12, 8]}
    middle = only(looked(client, saved(image[12:28])))
    assert cropped["probabilities"] == middle["probabilities"]
    assert only(looked(client, saved(image)))["probabilities"] != middle["probabilities"]


def test_grey_alpha_sixteen_bits_and_exif(client, networks):
    grey = RNG.integers(0, 256, (8, 8), np.uint8)
    found = only(looked(client, saved(grey), model="ait-grey"))
    assert only(looked(client, saved(grey.astype(np.uint16) * 257), model="ait-grey")) == found
    luma = only(looked(client, saved(np.dstack([grey] * 3)), model="ait-grey"))
    assert list(luma["probabilities"].values()) == pytest.approx(
        list(found["probabilities"].values()), rel=1e-5
    )
    wide = SEEN[:8, :12]
    clear = np.dstack([wide, np.full((8, 12), 0, np.uint8)])
    mean = networks["ait-glyph"].network.mean_C.numpy()
    p, _ = expected(networks["ait-glyph"], np.broadcast_to(mean, (8, 12, 3)))
    assert list(only(looked(client, saved(clear)))["probabilities"].values()) == pytest.approx(
        p, rel=1e-5
    )
    opaque = saved(np.dstack([wide, np.full((8, 12), 255, np.uint8)]))
    assert only(looked(client, opaque)) == only(looked(client, saved(wide)))
    turned = saved(np.rot90(wide), "WEBP", lossless=True, exif=exif(6))
    assert only(looked(client, turned)) == only(looked(client, saved(wide)))


def test_knobs_change_what_they_should(client, networks):
    def ask(**dynamics):
        return looked(client, GLYPH, dynamics=dynamics, include=["trace"])

    def energies(answer):
        trace = only(answer)["convergence"]["trace"]
        return [entry["energy"] for entry in trace if entry["block"] == 0]

    plain = ask()
    assert (plain["dynamics"]["steps"], plain["dynamics"]["step_size"]) == (3, 0.3)
    assert energies(plain) == sorted(energies(plain), reverse=True)
    for knob, given in (("steps", 9), ("beta", 30.0), ("beta_scale", 9.0), ("step_size", 0.5)):
        turned = ask(**{knob: given})
        assert energies(turned) != energies(plain)
        assert only(turned)["probabilities"] != only(plain)["probabilities"]
        assert (energies(turned)[0] == energies(plain)[0]) == (knob in ("steps", "step_size"))
    assert ask(beta=30.0)["dynamics"]["beta"] == [[30.0], [30.0]]
    assert energies(ask(steps=9))[:4] == energies(plain)
    assert only(ask(steps=0))["convergence"]["residual"] is None
    tolerant = ask(steps=64, tolerance=0.01)
    assert only(tolerant)["convergence"]["stop_reason"] == "converged"
    noisy = ask(noise=0.5, seed=3)
    assert only(noisy) == only(ask(noise=0.5, seed=3)) != only(ask(noise=0.5, seed=4))
    one, other = looked(client, GLYPH, GLYPH, dynamics={"noise": 0.5})["results"]
    assert one == other | {"index": 0}


def test_a_job_has_the_answer_of_the_request(client, wait):
    body = {"image": [text(GLYPH), text(SCENE)]}
    job = over(client, wait, begin(client, "/images/classify", body))
    assert (job["status"], job["progress"]["step"], job["progress"]["steps"]) == ("done", 2, 2)
    now = looked(client, GLYPH, SCENE)["results"]
    assert client.get(job["result"]).json()["results"] == now


def test_whoever_hangs_up_frees_the_machine(narrow, wait):
    wait(lambda: depth(narrow) == 0)
    body = {"image": text(GLYPH), "dynamics": {"steps": 100_000_000}}
    endless = json.dumps(body).encode()
    head = (
        b"POST /images/classify HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    )
    with socket.create_connection(("127.0.0.1", narrow.port), 10) as connection:
        connection.sendall(head + b"Content-Length: %d\r\n\r\n" % len(endless) + endless)
        wait(lambda: depth(narrow) == 1)
        time.sleep(0.3)  # by now it computes
    with narrow.client() as client:
        assert look(client, GLYPH).status_code == 200

    def statuses():
        return [x.get("status") for x in narrow.log_lines() if x.get("route") == "/images/classify"]

    # 504 would tell of the deadline, which is what ends it otherwise.
    wait(lambda: statuses()[-2:] == [499, 200])


def test_a_recogniser_is_described(client):
    def described(name):
        return RecogniserDetail.model_validate_json(client.get(f"/models/{name}").content)

    glyph, scene = described("ait-glyph"), described("ait-scene")
    assert (glyph.channels, glyph.height, glyph.width, glyph.patch) == (3, 8, 12, 4)
    assert (glyph.tasks[0].labels, glyph.tasks[0].temperature) == (list(GLYPHS), TEMPERATURE)
    assert (glyph.limits.max_images, glyph.limits.max_pixels) == (64, 16_000_000)
    assert glyph.questions is None
    assert scene.questions is not None
    assert list(scene.questions) == ["non-relational", "relational"]
    for kind, sentences in scene.questions.items():
        for asked, sentence in zip(QUESTIONS[kind], sentences, strict=True):
            found = only(looked(client, SCENE, question=sentence))["question"]
            assert (found["asked"], found["text"]) == (asked, sentence)


def test_the_schema_names_the_same_questions_and_colours():
    asked = AskedQuestion.model_fields["asked"].annotation
    assert get_args(asked) == tuple(a for every in QUESTIONS.values() for a in every)
    assert get_args(Colour) == COLORS
    assert get_args(Kind) == tuple(QUESTIONS)
