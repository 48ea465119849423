"""What POST /complete answers."""

from __future__ import annotations

import base64
import io
import json
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from models import checkpoint
from models.architectures.et import ETImage
from models.checkpoint import CheckpointError
from models.contract import Knobs, Output
from models.dynamics import StopReason
from models.patches import MaskedImage
from models.sampling import Interrupted
from service.complete_schemas import CompleteResponse
from service.engine import CompleteTask, complete_picture
from service.engine.convergence import MeanCourse
from service.errors import Problem
from service.jobs import Progress
from service.pictures.picture import Picture
from service.pictures.windows import plan_windows
from service.routes.complete import require_answerable
from service.served import Completer, served
from service.settings import Settings
from tests.service.bad_bodies import SECRET
from tests.service.picture_files import FILES, NOT_READ, exif, flat_png, saved, smooth
from tests.service.test_service_bad_input import check
from tests.service.test_service_jobs import LATER, begin, over
from tests.service.test_service_load import depth

SHAPE = (20, 30)
HOLE = np.zeros(SHAPE, bool)
HOLE[4:9, 5:12] = True  # of one window
IMAGE, MASK = FILES["png"], saved(HOLE.astype(np.uint8) * 255)
NOISY = {"noise": 0.5, "seed": 7}


def text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def body(image: bytes = IMAGE, mask: bytes | None = MASK, **rest):
    return {"image": text(image), **({} if mask is None else {"mask": text(mask)}), **rest}


def send(client, image=IMAGE, mask=MASK, headers=None, **rest):
    return client.post("/complete", json=body(image, mask, **rest), headers=headers)


def completed(client, image=IMAGE, mask=MASK, **rest):
    response = send(client, image, mask, **rest)
    assert response.status_code == 200, response.text
    return response.json()


def as_form(client, image=IMAGE, mask=MASK, headers=None, **rest):
    fields = {k: v if isinstance(v, str) else json.dumps(v) for k, v in rest.items()}
    files = {"image": ("a.png", image), "mask": ("b.png", mask)}
    return client.post("/complete", data=fields, files=files, headers=headers)


def opened(png: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(png)))


def pictures(answer) -> list[np.ndarray]:
    return [opened(base64.b64decode(image["b64_png"])) for image in answer["images"]]


def told(answer):
    """How the only completion came to rest."""
    [image] = answer["images"]
    return image["convergence"]


def freely(height: int, width: int) -> np.ndarray:
    """A hole drawn by hand, as wide as it goes."""
    rows, columns = np.mgrid[:height, :width]
    around = np.hypot(rows - height / 2, columns - width / 3)
    stroke = np.abs(rows - height / 2 - 40 * np.sin(columns / 50)) < 6
    return (around < height / 8 + 10 * np.sin(columns / 7)) | stroke


@pytest.fixture
def idle(narrow, wait):
    """The narrow server, with nothing to do before and after."""
    wait(lambda: depth(narrow) == 0)
    yield narrow
    wait(lambda: depth(narrow) == 0)


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


@pytest.mark.parametrize("model", ["et-tile", "et-grey"])
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


@pytest.fixture(scope="module")
def tile(checkpoints) -> Completer:
    model = served(checkpoint.load(checkpoints / "et-tile"))
    assert isinstance(model, Completer)
    return model


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
    output = network.infer(batch, [Knobs()])
    expected = output.logits[0].permute(1, 2, 0).numpy().clip(0, 1)
    [after] = pictures(answer)
    np.testing.assert_allclose(after[hole] / 255, expected[hole], atol=0.6 / 255)
    found = told(answer)
    assert (found["windows"], found["steps"], found["stops"]) == (1, 6, {"step_limit": 1})
    final = sum(float(s.trace[-1].energy_R[0]) for s in output.solutions) / 16
    assert found["energy_final"] == pytest.approx(final, rel=1e-5)
    assert found["energy_percentile"] == pytest.approx(tile.manifest.energy.percentile(final))
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


def test_a_network_whose_images_are_no_windows_is_refused(checkpoints):
    network, _ = ETImage.example(0)
    assert network.config.size % 4  # type: ignore[attr-defined]
    with pytest.raises(CheckpointError, match="four quarters"):
        served(replace(checkpoint.load(checkpoints / "et-tile"), network=network))


def test_a_free_form_hole_in_a_large_picture(client):
    before, hole = smooth(480, 640), freely(480, 640)
    mask = saved(hole.astype(np.uint8) * 255)
    answer = completed(client, saved(before), mask, include=["trace", "components"])
    [after] = pictures(answer)
    np.testing.assert_array_equal(after[~hole], before[~hole])
    assert (after[hole] != before[hole]).any()
    found, plan = told(answer), plan_windows(hole, 16, 4, 10_000)
    assert len(plan.levels) > 2
    assert found["windows"] == plan.windows == found["stops"]["step_limit"]
    assert found["steps"] == 6 * plan.windows
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


def test_windows_have_noise_of_their_own(tile):
    """Two windows that see the same would otherwise be filled the same."""
    flat = Picture(np.full((16, 64, 3), 100, np.uint8))
    hole = np.zeros((16, 64), bool)
    hole[6:9, 6:9] = hole[6:9, 54:57] = True
    plan = plan_windows(hole, 16, 4, 99)
    assert plan.levels[0].corners.tolist() == [[0, 0], [0, 48]]

    def both(noise):
        knobs = Knobs(noise=noise, seed=1)
        task = CompleteTask(tile, flat, plan, 1, knobs, frozenset())
        [done] = complete_picture(task, Progress(), lambda: None).completions
        return done.picture.pixels[6:9, 6:9], done.picture.pixels[6:9, 54:57]

    np.testing.assert_array_equal(*both(0.0))
    assert not np.array_equal(*both(0.5))


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


def test_the_mean_of_courses_of_different_length():
    class Some:
        def __init__(self, *energies):
            self.energies = np.array(energies)

        def totals(self):
            return [{"energy": self.energies}]

    mean = MeanCourse()
    for one in (Some(6.0, 4.0), Some(3.0, 2.0, 1.0), Some(9.0)):
        mean.add(one, 1)  # type: ignore[arg-type]
    energies = [entry["energy"] for entry in mean.trace(num_nodes=2)]
    assert energies == [18 / 6, 15 / 6, 14 / 6]


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


def test_progress_counts_what_the_network_sees(checkpoints):
    model = served(checkpoint.load(checkpoints / "et-grey"))
    assert isinstance(model, Completer)
    progress, picture = Progress(), Picture(smooth(*SHAPE))
    plan = plan_windows(HOLE, 16, 4, 99)
    task = CompleteTask(model, picture, plan, 2, Knobs(), frozenset())
    done = complete_picture(task, progress, lambda: None)
    assert progress.step == progress.steps == 2 * 3 * plan.windows
    assert [one.convergence["windows"] for one in done.completions] == [3, 3]


def test_no_finite_pixel_left(tile, monkeypatch):
    infer = tile.network.infer

    def broken(*args):
        output = infer(*args)
        return Output(output.logits * float("nan"), output.solutions)

    monkeypatch.setattr(tile.network, "infer", broken)
    plan = plan_windows(HOLE, 16, 4, 99)
    task = CompleteTask(tile, Picture(smooth(*SHAPE)), plan, 1, Knobs(), frozenset())
    with pytest.raises(Problem) as caught:
        complete_picture(task, Progress(), lambda: None)
    assert caught.value.kind == "diverged"


def test_an_interrupt_ends_it_within_a_step(tile):
    asked = 0

    def interrupt():
        nonlocal asked
        asked += 1
        return StopReason.CANCELLED if asked > 5 else None

    plan = plan_windows(HOLE, 16, 4, 99)
    task = CompleteTask(tile, Picture(smooth(*SHAPE)), plan, 16, Knobs(steps=64), frozenset())
    with pytest.raises(Interrupted):
        complete_picture(task, Progress(), interrupt)
    assert asked < 9  # the step at hand, the block after it, and the window


def test_whoever_hangs_up_frees_the_machine(idle, wait):
    endless = json.dumps(body(dynamics={"steps": 100_000_000})).encode()
    head = b"POST /complete HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\n"
    with socket.create_connection(("127.0.0.1", idle.port), 10) as connection:
        connection.sendall(head + b"Content-Length: %d\r\n\r\n" % len(endless) + endless)
        wait(lambda: depth(idle) == 1)
        time.sleep(0.3)  # by now it computes
    start = time.monotonic()
    with idle.client() as client:
        assert send(client).status_code == 200
    assert time.monotonic() - start < 3  # before the deadline of 4 s
    assert any(x.get("status") == 499 and x["route"] == "/complete" for x in idle.log_lines())


BAD = {
    "no image": ({"mask": text(MASK)}, 422, "invalid-request", "missing", "/image"),
    "no mask": (body(mask=None), 422, "invalid-request", "missing", "/mask"),
    "unknown field": (body(colour=SECRET), 422, "invalid-request", "unknown_field", "/colour"),
    "not base64": (body() | {"image": SECRET}, 422, "invalid-request", "not_base64", "/image"),
    "no picture": (body(SECRET.encode()), 415, "unsupported-image", "not_read", "/image"),
    "a gif": (body(NOT_READ["gif"][0]), 415, "unsupported-image", "not_read", "/image"),
    "half a picture": (body(IMAGE[:99]), 422, "invalid-image", "truncated", "/image"),
    "too large": (body(flat_png(2001)), 422, "invalid-image", "too_large", "/image"),
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
    assert problem.detail == "POST /complete is served by et-grey, et-tile"
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
        assert completed(client, image, mask)["images"][0]["convergence"]["windows"] == 8
        response = send(client, image, mask, num_samples=2)
        check(response, 422, "invalid-request", "too_much_work", "/mask")


def test_an_answer_larger_than_is_allowed(tile):
    picture, plan = Picture(smooth(*SHAPE)), plan_windows(HOLE, 16, 4, 99)
    settings = Settings(max_response_bytes=2 * 20 * 30 * 4)
    for count, include in ((2, ()), (3, ()), (2, ("trace",))):
        task = CompleteTask(tile, picture, plan, count, Knobs(), frozenset(include))
        if (count, include) == (2, ()):
            require_answerable(task, settings)
            continue
        with pytest.raises(Problem) as caught:
            require_answerable(task, settings)
        assert caught.value.faults[0].pointer == "/num_samples"


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
        assert together == alone
        assert all(400 <= future.result().status_code < 500 for future in refused)
