"""Jobs outlive the server: killed, told to end, or without a disk to write to."""

from __future__ import annotations

import signal

import httpx
import pytest

from tests.service.endpoints.anomaly.test_bad_input import check
from tests.service.endpoints.jobs.test_api import LATER, begin, events, over
from tests.service.endpoints.sample.test_api import ENDLESS, body
from tests.support.prometheus import families, value
from tests.support.server import Server, answers_with, depth, wait_until

OWN = ("timings_ms", "request_id")


@pytest.fixture(scope="module")
def serve(start, checkpoints, tmp_path_factory):
    """Start a server on the jobs that all servers of this module share."""
    store = tmp_path_factory.mktemp("jobs") / "jobs.sqlite"

    def one(*main: str, **settings: object) -> Server:
        return start(
            *main,
            **{
                "checkpoints": checkpoints,
                "default_anomaly_model": "et-small",
                "default_classify_model": "cdat-mol",
                "job_store": store,
                "queue_size": 2,  # two jobs at a time
                "shutdown_timeout_s": 1,
            }
            | settings,
        )

    return one


def ready(server: Server) -> None:
    wait_until(lambda: answers_with(server, "/health/ready", 200))


def told(server: Server, event: str) -> list[dict]:
    return [line for line in server.log_lines() if line["event"] == event]


def content(response: httpx.Response) -> dict:
    assert response.status_code == 200, response.text
    return {name: part for name, part in response.json().items() if name not in OWN}


def test_no_job_is_lost_and_none_is_done_twice(serve, sample, wait):
    first = serve()
    ready(first)
    asked = {
        "/anomaly/score": sample(1).arrays(),
        "/classify": {"smiles": ["CCO", "c1ccccc1"]},
        "/sample": body(seed=5),
    }
    with first.client() as client:
        done = over(client, wait, begin(client, "/sample", body()))
        kept = client.get(done["result"]).content
        endless = begin(client, "/sample", ENDLESS)
        at = f"/jobs/{endless['id']}"
        wait(lambda: client.get(at).json()["progress"]["step"] > 0)
        waiting = {path: begin(client, path, sent) for path, sent in asked.items()}
        gone = begin(client, "/sample", body())
        assert client.delete(f"/jobs/{gone['id']}").status_code == 204

    # Another server stands by: it answers, but one at a time has the jobs.
    second = serve()
    ready(second)
    assert "another process has it" in told(second, "job store refused")[0]["reason"]
    with second.client() as client:
        now = {path: content(client.post(path, json=sent)) for path, sent in asked.items()}
        check(client.post("/sample", json=body(), headers=LATER), 503, "jobs-unavailable")
        check(client.get(at), 503, "jobs-unavailable")

        first.process.send_signal(signal.SIGKILL)
        first.process.wait()
        wait(lambda: client.get(at).status_code == 200)
        assert client.get(done["result"]).content == kept
        check(client.get(f"/jobs/{gone['id']}"), 404, "unknown-job")
        wait(lambda: client.get(at).json()["progress"]["step"] > 0)
        with client.stream("GET", f"{at}/events") as response:
            assert next(response.iter_lines()) == "event: progress"

    # Told to end, it leaves what it cannot finish to the next.
    second.process.send_signal(signal.SIGTERM)
    assert second.process.wait(30) == 0
    assert not [line for line in second.log_lines() if line.get("level") == "error"][1:]
    third = serve("-m", "tests.support.server_with_full_disk")
    ready(third)
    with third.client() as client:
        wait(lambda: client.get(at).json()["progress"]["step"] > 0)
        assert client.delete(at).status_code == 204
        for path, job in waiting.items():
            ended = over(client, wait, job)
            assert (ended["status"], ended["request_id"]) == ("done", job["request_id"])
            assert content(client.get(ended["result"])) == now[path]
            assert client.get(ended["result"]).json()["request_id"] == job["request_id"]
            assert events(client, job) == [("progress", ended["progress"]), ("done", ended)]
        assert client.get(done["result"]).content == kept
        ends = families(client)["basin_jobs"]
        assert value(ends, "_total", status="cancelled") == 1
        wait(lambda: depth(third) == 0)

        # Where the disk is full no job is promised, and all else goes on.
        large = {**body(), "memory": {"patterns": [[1.0] * 300_000]}}
        check(client.post("/sample", json=large, headers=LATER), 503, "jobs-unavailable")
        assert content(client.post("/sample", json=asked["/sample"])) == now["/sample"]
        begin(client, "/sample", body())
    assert told(third, "job store failed")
    ends = [line["request_id"] for one in (first, second, third) for line in told(one, "job")]
    for job in (done, *waiting.values()):
        assert ends.count(job["request_id"]) == 1
    routes = {line["route"] for one in (first, second, third) for line in told(one, "job")}
    assert routes <= now.keys() | {"unmatched"}
    assert endless["request_id"] not in ends
