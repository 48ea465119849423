"""`Prefer: respond-async`: jobs, their progress, their answers, their end."""

from __future__ import annotations

import json
import time

import httpx
import pytest

from service.endpoints.common.schemas import JobBody
from tests.service.endpoints.anomaly.test_bad_input import check
from tests.service.endpoints.sample.test_api import ENDLESS, body
from tests.support.server import depth, gauge

LATER = {"prefer": "respond-async, wait=1"}


def begin(client, path, content) -> dict:
    response = client.post(path, json=content, headers=LATER)
    assert response.status_code == 202, response.text
    told = response.json()
    JobBody.model_validate(told)
    assert response.headers["location"] == f"/jobs/{told['id']}"
    assert response.headers["preference-applied"] == "respond-async"
    return told


def over(client, wait, told) -> dict:
    wait(lambda: client.get(f"/jobs/{told['id']}").json()["status"] != "running")
    return client.get(f"/jobs/{told['id']}").json()


def events(client, told) -> list[tuple[str, dict]]:
    with client.stream("GET", f"/jobs/{told['id']}/events") as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        text = response.read().decode()
    lines = [part.split("\n") for part in text.split("\n\n") if part.startswith("event: ")]
    return [(a.removeprefix("event: "), json.loads(b.removeprefix("data: "))) for a, b in lines]


def test_a_job_has_the_answer_of_the_request(client, sample, wait):
    for path, content in (("/sample", body()), ("/anomaly/score", sample(1).arrays())):
        told = over(client, wait, begin(client, path, content))
        assert (told["status"], told["route"]) == ("done", path)
        later, now = client.get(told["result"]), client.post(path, json=content)
        assert later.status_code == now.status_code == 200
        assert later.headers["content-type"] == now.headers["content-type"]
        assert "compute" in later.headers["server-timing"]
        differ = {"timings_ms", "request_id"}
        assert {k: v for k, v in later.json().items() if k not in differ} == {
            k: v for k, v in now.json().items() if k not in differ
        }
        assert later.json()["request_id"] == told["request_id"]
        assert client.get(told["result"]).content == later.content  # as often as one likes
        assert client.delete(f"/jobs/{told['id']}").status_code == 204
        check(client.get(told["result"]), 404, "unknown-job")


def test_events_tell_step_and_energy(client):
    told = begin(client, "/sample", body(steps=60_000, thin=100, burn_in=100))
    (*progress, (last, job)) = events(client, told)
    assert {name for name, _ in progress} == {"progress"}
    steps = [data["step"] for _, data in progress]
    assert steps == sorted(steps)
    assert steps[-1] <= 60_000
    assert last == job["status"] == "done"
    assert job["progress"]["step"] == job["progress"]["steps"] == 60_000
    answer = client.get(job["result"]).json()
    assert abs(job["progress"]["energy"] - answer["diagnostics"]["energy"]) < 5
    assert events(client, told)[-1][0] == "done"  # also for who comes late


def test_a_job_that_cannot_be_done_has_a_problem_for_an_answer(client, wait):
    told = over(client, wait, begin(client, "/sample", body(beta=-1)))
    assert told["status"] == "failed"
    problem = client.get(told["result"])
    assert problem.status_code == 422
    assert problem.headers["content-type"] == "application/problem+json"
    assert problem.json()["request_id"] == told["request_id"]
    assert [name for name, _ in events(client, told)][-1] == "failed"


def test_deleting_a_job_stops_its_chains(narrow, wait):
    wait(lambda: depth(narrow) == 0)
    with narrow.client() as client:
        told = begin(client, "/sample", ENDLESS)
        at = f"/jobs/{told['id']}"
        wait(lambda: client.get(at).json()["progress"]["step"] > 10)
        check(client.get(f"{at}/result"), 409, "job-unfinished")
        start = time.monotonic()
        assert client.delete(at).status_code == 204
        assert client.post("/sample", json=body()).status_code == 200  # the thread is free
        assert time.monotonic() - start < 2
        check(client.get(at), 404, "unknown-job")
    wait(lambda: depth(narrow) == 0)


def test_whoever_watches_a_deleted_job_is_told(narrow, wait):
    with narrow.client() as client, narrow.client() as other:
        told = begin(client, "/sample", ENDLESS)
        with client.stream("GET", f"/jobs/{told['id']}/events") as response:
            lines = response.iter_lines()
            assert next(lines) == "event: progress"
            other.delete(f"/jobs/{told['id']}")
            assert "event: cancelled" in list(lines)
    wait(lambda: depth(narrow) == 0)


def test_jobs_take_half_of_the_places_and_wait_for_them(narrow, wait):
    wait(lambda: depth(narrow) == 0)
    with narrow.client() as client:
        first, second = (begin(client, "/sample", ENDLESS) for _ in range(2))
        wait(lambda: depth(narrow) == 1)
        assert gauge(narrow, "basin_jobs_unfinished") == 2
        check(client.get(f"/jobs/{second['id']}/result"), 409, "job-unfinished")
        at = f"/jobs/{second['id']}"
        assert client.get(at).json()["progress"]["step"] == 0
        client.delete(f"/jobs/{first['id']}")
        wait(lambda: client.get(at).json()["progress"]["step"] > 0)
        assert depth(narrow) == 1
        client.delete(at)
    wait(lambda: depth(narrow) == 0)


@pytest.mark.parametrize("method", ["GET", "DELETE"])
@pytest.mark.parametrize("path", ["/jobs/nothing", "/jobs/%00", "/jobs/" + "a" * 4000])
def test_there_is_no_such_job(client: httpx.Client, method, path):
    check(client.request(method, path), 404, "unknown-job")
