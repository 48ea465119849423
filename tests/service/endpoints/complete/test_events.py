"""POST /complete as server-sent events: the picture as it relaxes."""

from __future__ import annotations

import base64
import io
import json
import socket
from itertools import pairwise

import numpy as np
import pytest
from PIL import Image

from service.endpoints.common.schemas import ProblemDocument
from service.endpoints.complete.previews import Frames
from service.endpoints.complete.schemas import CompleteResponse, FrameEvent
from tests.service.endpoints.anomaly.test_bad_input import check
from tests.service.endpoints.jobs.test_api import LATER, over
from tests.support.completion import (
    HOLE,
    IMAGE,
    MASK,
    NOISY,
    as_form,
    body,
    completed,
    freely,
    opened,
    pictures,
    send,
)
from tests.support.image_files import FILES, saved, smooth
from tests.support.server import depth

EVENTS = {"accept": "text/event-stream"}


def told(response):
    """The events of an answer: name and data."""
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.headers["cache-control"] == "no-store"
    lines = [part.split("\n") for part in response.text.split("\n\n") if part[:1] == "e"]
    return [(a.removeprefix("event: "), json.loads(b.removeprefix("data: "))) for a, b in lines]


def streamed(client, *args, **rest):
    *frames, (last, answer) = told(send(client, *args, headers=EVENTS, **rest))
    assert last == "done", answer
    assert {name for name, _ in frames} <= {"progress"}
    return [frame for _, frame in frames], answer


def shown(frame):
    return opened(base64.b64decode(frame["b64_png"]))


def test_a_window_step_by_step(client):
    frames, answer = streamed(client, include=["trace"])
    for frame in frames:
        FrameEvent.model_validate(frame)
    assert [(f["step"], f["block"]) for f in frames] == [(s, (s - 1) // 3) for s in range(1, 7)]
    assert {(f["steps"], f["sample"]) for f in frames} == {(6, 0)}
    [image] = answer["images"]
    trace = [entry for entry in image["convergence"]["trace"] if entry["step"]]
    for frame, entry in zip(frames, trace, strict=True):
        for part in ("energy", "attention", "hopfield"):
            assert frame[part] == pytest.approx(entry[part], rel=1e-6)
        np.testing.assert_array_equal(shown(frame)[~HOLE], opened(IMAGE)[~HOLE])
        assert frame["windows"] == [0]
    falls = [a["energy"] - b["energy"] for a, b in pairwise(image["convergence"]["trace"])]
    of_steps = [falls[place] for place in (0, 1, 2, 4, 5, 6)]  # not from block to block
    drops = [frame["energy_drop"] for frame in frames]
    assert drops == pytest.approx(np.cumsum(of_steps), rel=1e-5)
    assert len({frame["b64_png"] for frame in frames}) == 6
    assert frames[-1]["b64_png"] == image["b64_png"]


def test_each_frame_is_what_so_many_steps_would_answer(client):
    """As long as there is one block, which the next would start from."""
    frames, _ = streamed(client)
    for steps in (1, 2):
        one, _ = streamed(client, dynamics={"steps": steps})
        assert one[steps - 1]["b64_png"] == frames[steps - 1]["b64_png"]


def test_the_last_event_is_the_whole_answer(client):
    frames, answer = streamed(client, num_samples=2, dynamics=NOISY, include=["components"])
    CompleteResponse.model_validate_json(json.dumps(answer), strict=True)
    plain = completed(client, num_samples=2, dynamics=NOISY, include=["components"])
    for part in ("images", "model", "dynamics"):
        assert answer[part] == plain[part]
    assert answer["timings_ms"].keys() == plain["timings_ms"].keys()
    assert [frame["sample"] for frame in frames] == [0] * 6 + [1] * 6
    for frame, entry in zip(frames[5::6], answer["images"], strict=True):
        assert frame["energy_drop"] == pytest.approx(entry["convergence"]["energy_drop"], rel=1e-6)
        assert entry["convergence"]["energy_rose"] is None  # there is noise
    assert frames[5]["b64_png"] == answer["images"][0]["b64_png"]
    response = as_form(client, headers=EVENTS)
    assert told(response)[-1][1]["images"] == completed(client)["images"]
    assert answer["request_id"] != response.headers["x-request-id"]
    assert told(response)[-1][1]["request_id"] == response.headers["x-request-id"]


@pytest.mark.parametrize("name", ["png", "png grey", "png alpha", "png 16 bits"])
@pytest.mark.parametrize("model", ["et-tile", "et-grey", "et-pane"])
def test_frames_are_of_the_pictures_kind(client, model, name):
    frames, answer = streamed(client, FILES[name], model=model)
    [after] = pictures(answer)
    convergence = answer["images"][0]["convergence"]
    assert frames[-1]["energy_drop"] == pytest.approx(convergence["energy_drop"], rel=1e-5)
    assert frames[-1]["windows"][-1] == convergence["windows"] - 1
    assert shown(frames[0]).shape == after.shape
    assert shown(frames[0]).dtype == after.dtype
    assert (shown(frames[0])[HOLE] != after[HOLE]).any()
    assert frames[-1]["b64_png"] == answer["images"][0]["b64_png"]


def test_many_windows_are_blended_and_frames_are_few(client):
    before, hole = smooth(120, 160), freely(120, 160)
    frames, answer = streamed(client, saved(before), saved(hole.astype(np.uint8) * 255))
    [image] = answer["images"]
    windows = image["convergence"]["windows"]
    assert windows > 32
    assert len(frames) <= 16  # BASIN_MAX_FRAMES
    assert len(frames) > 8
    steps = [frame["step"] for frame in frames]
    assert steps == sorted(set(steps))
    assert frames[-1]["step"] == frames[-1]["steps"] == windows * 6
    apart = np.diff([0, *steps])
    assert apart.max() <= frames[0]["steps"] / 16 + 2 * 16  # a batch of windows at a time
    drops = np.array([frame["energy_drop"] for frame in frames])
    assert image["convergence"]["energy_rose"] == 0
    assert (np.diff(drops, prepend=0) > 0).all()
    assert drops[-1] == pytest.approx(image["convergence"]["energy_drop"], rel=1e-6)
    assert frames[0]["windows"][0] == 0
    assert frames[-1]["windows"][-1] == windows - 1
    for frame in frames:
        numbers = frame["windows"]
        assert numbers == list(range(numbers[0], numbers[-1] + 1))
        done = numbers[0] * 6
        assert done < frame["step"] <= done + len(numbers) * 6
    for frame in frames:
        np.testing.assert_array_equal(shown(frame)[~hole], before[~hole])
    assert shown(frames[0])[hole].any()  # already guessed where no window of full size has been
    assert frames[-1]["b64_png"] == image["b64_png"]


def test_frames_are_chosen_evenly():
    def chosen(most, steps, every=1):
        frames = Frames(most, print)
        return [s for s in range(0, steps + 1, every) if frames.due(s, steps)]

    assert chosen(4, 12) == [3, 6, 9, 12]
    assert chosen(5, 12) == [3, 5, 8, 10, 12]
    assert chosen(16, 3) == [1, 2, 3]
    assert chosen(1, 9) == [9]
    assert chosen(0, 9) == []
    assert chosen(4, 12, every=5) == [5, 10]
    assert chosen(4, 0) == []


def test_no_more_is_told_than_an_answer_may_have(start, checkpoints, wait, answers):
    server = start(
        checkpoints=checkpoints, default_completion_model="et-tile", max_response_bytes=9000
    )
    wait(lambda: answers(server, "/health/ready", 200))
    with server.client() as client:
        frames, _ = streamed(client)
    assert 1 <= len(frames) < 3  # of 2,400 bytes each, as many as the answer itself


def test_what_is_refused_is_refused_with_a_status(client):
    check(send(client, mask=None, headers=EVENTS), 422, "invalid-request", "missing", "/mask")
    check(send(client, IMAGE[:99], headers=EVENTS), 422, "invalid-image", "truncated", "/image")
    check(send(client, model="none", headers=EVENTS), 404, "unknown-model")


def test_what_fails_on_the_way_is_an_event(idle, wait):
    with idle.client() as client:
        *_, (name, problem) = told(send(client, headers=EVENTS, dynamics={"steps": 100_000_000}))
        deadline = 'basin_problems_total{type="deadline"}'
        wait(lambda: deadline in client.get("/metrics").text)  # counted once all has been sent
    assert name == "failed"
    document = ProblemDocument.model_validate(problem)
    assert (document.type, document.status) == ("urn:basin:problem:deadline", 504)


def test_events_come_while_it_computes(idle):
    content = body(dynamics={"steps": 100_000_000})
    with (
        idle.client() as client,
        client.stream("POST", "/complete", json=content, headers=EVENTS) as response,
    ):
        assert response.status_code == 200
        # An answer that waited for its end would be the problem that it ended in.
        assert response.headers["content-type"].startswith("text/event-stream")


def _statuses(server):
    return [x.get("status") for x in server.log_lines() if x.get("route") == "/complete"]


def test_whoever_hangs_up_frees_the_machine(idle, wait):
    endless = json.dumps(body(dynamics={"steps": 100_000_000})).encode()
    head = (
        b"POST /complete HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Accept: text/event-stream\r\n"
    )
    with socket.create_connection(("127.0.0.1", idle.port), 10) as connection:
        connection.sendall(head + b"Content-Length: %d\r\n\r\n" % len(endless) + endless)
        assert b" 200 OK" in connection.recv(4096)
        assert depth(idle) == 1
    with idle.client() as client:
        assert send(client).status_code == 200
    # 504 would tell of the deadline, which is what ends it otherwise.
    wait(lambda: _statuses(idle)[-2:] == [499, 200])


def test_whoever_hangs_up_before_it_begins_is_not_waited_for(idle, wait):
    endless = {"steps": 100_000_000}
    first = json.dumps(body(dynamics=endless)).encode()
    # Of another model: of the same, it is refused already because it would be late.
    second = json.dumps(body(dynamics=endless, model="et-grey")).encode()
    head = b"POST /complete HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    with socket.create_connection(("127.0.0.1", idle.port), 10) as one:
        one.sendall(head + b"Content-Length: %d\r\n\r\n" % len(first) + first)
        wait(lambda: depth(idle) == 1)
        with socket.create_connection(("127.0.0.1", idle.port), 10) as other:
            other.sendall(head + b"Accept: text/event-stream\r\n")
            other.sendall(b"Content-Length: %d\r\n\r\n" % len(second) + second)
            wait(lambda: depth(idle) == 2)
        wait(lambda: depth(idle) == 1)


def test_a_job_comes_before_events(client, wait):
    response = send(client, headers=EVENTS | LATER)
    assert response.status_code == 202
    job = over(client, wait, response.json())
    assert client.get(job["result"]).json()["images"] == completed(client)["images"]


def test_a_picture_is_a_png(client):
    frames, _ = streamed(client, mask=MASK)
    image = Image.open(io.BytesIO(base64.b64decode(frames[0]["b64_png"])))
    assert image.format == "PNG"
