"""What POST /complete answers."""

from __future__ import annotations

import io
import json
import socket
import time

import numpy as np
import pytest
from PIL import Image

from models.base import DynamicsParams
from models.inputs.inpainting.plan import Tiling, plan_windows
from models.inputs.patches import MaskedImage
from service.endpoints.complete.schemas import CompleteResponse
from tests.service.endpoints.anomaly.test_bad_input import check
from tests.service.endpoints.jobs.test_api import LATER, begin, over
from tests.support.completion import (
    HOLE,
    NOISY,
    SHAPE,
    as_form,
    body,
    completed,
    freely,
    opened,
    pictures,
    send,
    told,
)
from tests.support.image_files import FILES, exif, saved, smooth
from tests.support.server import depth


def test_json_and_a_form_give_the_same_picture(client):
    rest = {"dynamics": NOISY, "num_samples": 2, "include": ["trace"], "mask_mode": "white_fill"}
    one, other = completed(client, **rest), as_form(client, **rest, model="et-tile").json()
    assert one["images"] == other["images"]
    assert one["dynamics"] == other["dynamics"]


def test_the_answer_fits_its_schema(client):
    response = send(client, num_samples=2, include=["trace", "components"])
    CompleteResponse.model_validate_json(response.content, strict=True)
    answer = response.json()
    assert set(answer) == {"images", "model", "dynamics", "timings_ms", "request_id"}
    assert answer["request_id"] == response.headers["x-request-id"]
    phases = {"read", "parse", "decode", "queue", "compute", "encode", "total"}
    assert set(answer["timings_ms"]) == phases
    assert answer["model"]["name"] == "et-tile"
    assert "decode" in response.headers["server-timing"]
    assert "trace" not in told(completed(client))


@pytest.mark.parametrize("model", ["et-tile", "et-grey", "et-pane"])
@pytest.mark.parametrize("name", FILES)
def test_what_is_known_comes_back_as_it_was(client, name, model):
    before = opened(FILES[name])
    image = Image.open(io.BytesIO(FILES[name]))
    if image.mode == "P":
        before = np.asarray(image.convert("RGBA" if "transparency" in image.info else "RGB"))
    elif image.mode == "1":
        before = np.asarray(image.convert("L"))
    elif "transparency" in image.info:
        before = np.asarray(image.convert("RGBA"))
    [after] = pictures(completed(client, FILES[name], model=model))
    np.testing.assert_array_equal(after[~HOLE], before[~HOLE])
    assert (after[HOLE] != before[HOLE]).any()


def test_modes_of_masks(client):
    inverted = saved((~HOLE).astype(np.uint8) * 255)
    [white] = pictures(completed(client))
    [black] = pictures(completed(client, mask=inverted, mask_mode="black_fill"))
    np.testing.assert_array_equal(black, white)
    own = saved(np.dstack([smooth(*SHAPE), (~HOLE).astype(np.uint8) * 255]))
    [filled] = pictures(completed(client, own, None, mask_mode="alpha"))
    np.testing.assert_array_equal(filled[..., :3], white)
    assert (filled[..., 3] == 255).all()


def test_what_the_hole_held_has_no_part_in_the_answer(client):
    blank = smooth(*SHAPE)
    blank[HOLE] = 99
    assert completed(client, saved(blank))["images"] == completed(client)["images"]


def test_a_picture_is_upright(client):
    image = Image.fromarray(smooth(30, 20))
    turned = saved(image, "JPEG", exif=exif(6))
    [after] = pictures(completed(client, turned))
    before = np.rot90(opened(saved(image, "JPEG")), -1)
    np.testing.assert_array_equal(after[~HOLE], before[~HOLE])


def test_one_window_is_what_the_checkpoint_computes(client, tile):
    image, hole = smooth(16, 16), np.zeros((16, 16), bool)
    hole[5:7, 6:11] = True
    answer = completed(
        client, saved(image), saved(hole.astype(np.uint8) * 255), include=["components", "trace"]
    )
    assert answer["model"]["sha256"] == tile.sha256
    occluded = np.zeros((4, 4), bool)
    occluded[1, 1:3] = True
    network = tile.network
    batch = network.pack([MaskedImage(image, occluded)])
    output = network.infer(batch, [DynamicsParams()])
    expected = output.logits[0].permute(1, 2, 0).numpy().clip(0, 1)
    [after] = pictures(answer)
    np.testing.assert_allclose(after[hole] / 255, expected[hole], atol=0.6 / 255)
    found = told(answer)
    assert (found["windows"], found["steps"], found["stops"]) == (1, 6, {"step_limit": 1})
    final = sum(float(s.trace[-1].energy_R[0]) for s in output.solutions) / 16
    assert found["energy_final"] == pytest.approx(final, rel=1e-5)
    percentile = tile.manifest.energy.percentile(final, 2 / 16)
    assert found["energy_percentile"] == pytest.approx(percentile)
    assert percentile != tile.manifest.energy.percentile(final)
    assert found["out_of_distribution"] == float(not 0.5 <= percentile <= 99.5)
    assert found["energy_drop"] == pytest.approx(found["energy_initial"] - found["energy_final"])
    residual = max(float(s.residual_R[0]) for s in output.solutions)
    assert found["residual"] == pytest.approx(residual, rel=1e-4)
    assert set(found["components"]) == {"attention", "hopfield"}
    parts = sum(part["final"] for part in found["components"].values())
    assert found["energy_final"] == pytest.approx(parts, rel=1e-5)
    trace = found["trace"]
    assert [(e["block"], e["step"]) for e in trace] == [(b, s) for b in (0, 1) for s in range(4)]
    assert all(e["energy"] == pytest.approx(e["attention"] + e["hopfield"]) for e in trace)
    energies = [float(moment.energy_R[0]) / 16 for s in output.solutions for moment in s.trace]
    assert [entry["energy"] for entry in trace] == pytest.approx(energies, rel=1e-5)


def test_a_free_form_hole_in_a_large_picture(client):
    before, hole = smooth(480, 640), freely(480, 640)
    mask = saved(hole.astype(np.uint8) * 255)
    answer = completed(client, saved(before), mask, include=["trace", "components"])
    [after] = pictures(answer)
    np.testing.assert_array_equal(after[~hole], before[~hole])
    assert (after[hole] != before[hole]).any()
    found, plan = told(answer), plan_windows(hole, Tiling.from_size(16), 10_000)
    assert len(plan.levels) > 2
    assert found["windows"] == plan.num_windows == found["stops"]["step_limit"]
    assert found["steps"] == 6 * plan.num_windows
    assert len(found["trace"]) == 2 * 4  # however many windows there are
    starts, ends = ([e["energy"] for e in found["trace"] if e["step"] == t] for t in (0, 3))
    assert sum(starts) == pytest.approx(found["energy_initial"], rel=1e-5)
    assert sum(ends) == pytest.approx(found["energy_final"], rel=1e-5)
    response = as_form(client, saved(before), mask, headers={"accept": "image/png"})
    np.testing.assert_array_equal(opened(response.content), after)


def test_as_png(client):
    answer = completed(client, num_samples=3, dynamics=NOISY)
    for ask in (send, as_form):
        response = ask(
            client, num_samples=3, dynamics=NOISY, headers={"accept": "image/png, */*;q=0.1"}
        )
        assert response.headers["content-type"] == "image/png"
        image = Image.open(io.BytesIO(response.content))
        rest = json.loads(image.text["basin"])  # type: ignore[attr-defined]
        assert rest.keys() == answer.keys()
        assert rest["images"] == [{"convergence": i["convergence"]} for i in answer["images"]]
        whole = np.asarray(image)
        for i, one in enumerate(pictures(answer)):
            top, left = i // 2 * 22, i % 2 * 32
            np.testing.assert_array_equal(whole[top : top + 20, left : left + 30], one)
    alone = send(client, headers={"accept": "image/png"})
    np.testing.assert_array_equal(opened(alone.content), pictures(completed(client))[0])
    assert send(client, headers={"accept": "*/*"}).headers["content-type"] == "application/json"
    check(send(client, headers={"accept": "image/webp"}), 406, "not-acceptable")


def test_samples_differ_where_there_is_noise_and_repeat_with_the_seed(client):
    answer = completed(client, num_samples=3, dynamics=NOISY)
    first, second, third = answer["images"]
    assert len({image["b64_png"] for image in answer["images"]}) == 3
    assert completed(client, num_samples=3, dynamics=NOISY)["images"] == answer["images"]
    assert completed(client, dynamics=NOISY)["images"] == [first]
    later = completed(client, num_samples=2, dynamics=NOISY | {"seed": 8})
    assert later["images"] == [second, third]
    assert later["dynamics"]["seed"] == 8
    one, other = completed(client, num_samples=2)["images"]
    assert one == other


def test_knobs_change_what_they_should(client):
    def ask(**dynamics):
        return completed(client, dynamics=dynamics, include=["trace"])

    def energies(answer):
        return [entry["energy"] for entry in told(answer)["trace"] if entry["block"] == 0]

    plain = ask()
    assert plain["dynamics"]["steps"] == 3
    for knob, given in (("steps", 9), ("beta", 30.0), ("beta_scale", 9.0), ("step_size", 0.5)):
        turned = ask(**{knob: given})
        assert energies(turned) != energies(plain)
        assert turned["images"][0]["b64_png"] != plain["images"][0]["b64_png"]
        assert (energies(turned)[0] == energies(plain)[0]) == (knob in ("steps", "step_size"))
    assert energies(ask(steps=9))[:4] == energies(plain)
    assert told(ask(steps=9))["steps"] == 18
    assert told(ask(steps=0))["residual"] is None
    tolerant = ask(steps=64, tolerance=0.5)
    assert told(tolerant)["stops"] == {"converged": 1}
    assert 2 < told(tolerant)["steps"] < 2 * 64
    assert told(tolerant)["residual"] < 0.5 == tolerant["dynamics"]["tolerance"]


def test_a_job_has_the_answer_of_the_request(client, wait):
    job = over(client, wait, begin(client, "/complete", body(num_samples=2)))
    assert (job["status"], job["route"]) == ("done", "/complete")
    assert job["progress"]["step"] == job["progress"]["steps"] == 2
    assert job["progress"]["energy"] is not None
    assert client.get(job["result"]).json()["images"] == completed(client, num_samples=2)["images"]
    started = as_form(client, headers=LATER | {"accept": "image/png"})
    job = over(client, wait, started.json())
    later = client.get(job["result"])
    assert later.headers["content-type"] == "image/png"
    np.testing.assert_array_equal(opened(later.content), pictures(completed(client))[0])


def test_whoever_hangs_up_frees_the_machine(idle, wait):
    endless = json.dumps(body(dynamics={"steps": 100_000_000})).encode()
    head = b"POST /complete HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"

    def statuses():
        return [x.get("status") for x in idle.log_lines() if x.get("route") == "/complete"]

    before = statuses()
    with socket.create_connection(("127.0.0.1", idle.port), 10) as connection:
        connection.sendall(head + b"Content-Length: %d\r\n\r\n" % len(endless) + endless)
        wait(lambda: depth(idle) == 1)
        time.sleep(0.3)  # by now it computes
    with idle.client() as client:
        assert send(client).status_code == 200
    # 504 would tell of the deadline, which is what ends it otherwise.
    wait(lambda: statuses() == [*before, 499, 200])
