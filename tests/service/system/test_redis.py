"""Servers and a worker on one Redis; which is killed, paused and filled while they work."""

from __future__ import annotations

import json
import signal
import socket
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.service.endpoints.anomaly.test_bad_input import check
from tests.service.endpoints.jobs.test_api import LATER, begin, over
from tests.service.endpoints.sample.test_api import ENDLESS, body
from tests.support.redis_server import RedisServer
from tests.support.server import Server, answers_with, gauge, wait_until
from tests.support.traffic import kept, traffic

LONG = ENDLESS | {"steps": 10_000, "thin": 100, "seed": 9}  # seconds


@pytest.fixture
def on_redis(start, checkpoints, redis_server) -> Callable[..., tuple[RedisServer, list[Server]]]:
    """One Redis, and processes on it that are ready: of each its arguments and settings."""

    def begun(*each: tuple[tuple[str, ...], dict[str, Any]]) -> tuple[RedisServer, list[Server]]:
        store = redis_server()
        servers = [
            start(
                *arguments,
                **{
                    "checkpoints": checkpoints,
                    "default_anomaly_model": "et-small",
                    "default_classify_model": "cdat-mol",
                    "redis_url": store.url,
                    "cache_bytes": 1 << 20,
                    "job_lease_s": 2,
                    "shutdown_timeout_s": 1,
                    "memory_store": store.folder / f"memories-{i}",
                }
                | settings,
            )
            for i, (arguments, settings) in enumerate(each)
        ]
        for server in servers:
            wait_until(lambda server=server: answers_with(server, "/health/ready", 200))
        return store, servers

    return begun


SERVER: tuple[tuple[str, ...], dict[str, Any]] = ((), {})
IDLE: tuple[tuple[str, ...], dict[str, Any]] = ((), {"run_jobs": False})
# As in compose, where servers and workers have the same environment.
WORKER: tuple[tuple[str, ...], dict[str, Any]] = (
    ("-m", "service", "worker"),
    {"run_jobs": False},
)
# A new process, whose hashes differ from those of the forked ones.
APART: tuple[tuple[str, ...], dict[str, Any]] = (("-m", "service"), {"run_jobs": False})


def test_servers_and_a_worker_are_one(on_redis, sample, wait):
    store, (one, two, worker) = on_redis(IDLE, APART, WORKER)
    with one.client() as first, two.client() as second, worker.client() as third:
        assert first.get("/health/ready").json() == {"status": "ok", "redis": "up"}
        assert gauge(one, "basin_redis_up") == 1

        asked = sample(3).arrays()
        told = first.post("/anomaly/score", json=asked)
        wait(lambda: store.client.keys("basin:answer:*"))
        again = second.post("/anomaly/score", json=asked)
        assert (told.headers.get("x-cache"), again.headers["x-cache"]) == (None, "hit")
        assert again.json()["results"] == told.json()["results"]

        patterns = {"patterns": [[1.0, 0.0], [0.0, 1.0]]}
        assert first.put("/memories/mine", json=patterns).status_code == 201
        assert second.put("/memories/mine", json=patterns).status_code == 200
        assert second.get("/memories/mine").json() == first.get("/memories/mine").json()
        drawn = second.post("/sample", json=body(memory="mine"))
        assert drawn.status_code == 200, drawn.text

        job = over(second, wait, begin(first, "/sample", body(seed=5)))
        result = second.get(job["result"])
        now = first.post("/sample", json=body(seed=5))
        assert result.json()["samples"] == now.json()["samples"]
        ran = [line for line in worker.log_lines() if line["event"] == "job"]
        assert [line["status"] for line in ran] == [200]

        endless = begin(first, "/sample", ENDLESS)
        at = f"/jobs/{endless['id']}"
        wait(lambda: second.get(at).json()["progress"]["step"] > 0)
        with first.stream("GET", f"{at}/events") as events:
            lines = events.iter_lines()
            assert next(lines) == "event: progress"
            assert json.loads(next(lines).removeprefix("data: "))["step"] > 0
            assert second.delete(at).status_code == 204
        wait(lambda: gauge(worker, "basin_queue_depth") == 0)
        assert gauge(one, "basin_jobs_unfinished") in (0, 1)
        wait(lambda: gauge(one, "basin_jobs_unfinished") == 0)

        assert third.get("/health/ready").json()["redis"] == "up"
        assert third.post("/anomaly/score", json=asked).status_code == 404
        assert third.get("/openapi.json").status_code == 200


@pytest.mark.slow
def test_a_job_whose_worker_is_killed_is_done_by_another(on_redis, start, wait):
    store, (server, killed) = on_redis(IDLE, WORKER)
    with server.client() as client:
        job = begin(client, "/sample", LONG)
        at = f"/jobs/{job['id']}"
        wait(lambda: client.get(at).json()["progress"]["step"] > 0)
        killed.process.kill()
        killed.process.wait()
        assert client.get(at).json()["status"] == "running"
        start(*("-m", "service", "worker"), redis_url=store.url, job_lease_s=2)
        done = over(client, wait, job)
        assert done["status"] == "done"
        assert store.client.hget(f"basin:job:{job['id']}", "starts") == b"2"
        assert client.get(done["result"]).status_code == 200


def test_an_answer_is_kept_under_the_memory_that_it_is_of(on_redis):
    """A memory is replaced while the body comes, and later is what it was."""
    _, (server,) = on_redis(SERVER)
    first, second = ({"patterns": [[x, 1.0], [1.0, x]]} for x in (0.0, 5.0))
    asked = json.dumps({"memory": "mine", "steps": 50, "seed": 1}).encode()
    head = (
        b"POST /sample HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(asked)
    )

    def sampled(meanwhile: Callable[[], object] = lambda: None) -> bytes:
        with socket.create_connection(("127.0.0.1", server.port)) as line:
            line.sendall(head + asked[:5])
            time.sleep(0.3)
            meanwhile()
            line.sendall(asked[5:])
            return b"".join(iter(lambda: line.recv(1 << 16), b""))

    with server.client() as client:

        def store(memory: object) -> None:  # 503 where Redis was late, as beside other tests
            wait_until(lambda: client.put("/memories/mine", json=memory).status_code in (200, 201))

        store(first)
        sampled(lambda: store(second))
        of_second = sampled()
        store(first)
        of_first = sampled()
        again = sampled()
    raw = (of_second, of_first, again)
    # The first answer is of the second memory, which was there once its body was whole.
    assert [b"x-cache: hit" in each for each in raw] == [True, False, True]
    one, other, same = (json.loads(each.partition(b"\r\n\r\n")[2])["samples"] for each in raw)
    assert one != other == same


def trouble(store: RedisServer, kind: str, seconds: float) -> None:
    """Redis is away for so long, or takes nothing."""
    if kind == "killed":
        store.kill()
        time.sleep(seconds)
        store.start()
    elif kind == "restarted":
        store.stop()
        store.start()
    elif kind == "paused":
        store.pause()
        time.sleep(seconds)
        store.resume()
    else:
        store.client.config_set("maxmemory", 1)
        time.sleep(seconds)
        store.client.config_set("maxmemory", 0)


@pytest.mark.parametrize(
    "kind",
    ["killed", *(pytest.param(k, marks=pytest.mark.slow) for k in ("restarted", "paused", "full"))],
)
def test_while_redis_is_in_trouble_requests_go_on(on_redis, sample, wait, kind):
    store, (server,) = on_redis(SERVER)
    with traffic(server, sample(3).arrays()) as seen:
        wait(lambda: len(seen.jobs) >= 3)
        trouble(store, kind, 30 if kind == "paused" else 3)
        before = len(seen.jobs)
        wait(lambda: len(seen.jobs) >= before + 3)
    assert seen.statuses.keys() == {200}
    assert seen.longest_s < 2
    if kind in ("killed", "full"):  # a pause may pass while a job waits to be kept
        assert seen.refused
    kept(server, seen, wait)
    with server.client() as client:
        wait(lambda: client.get("/health/ready").json()["redis"] == "up")
        told = client.get("/metrics").text
    parts = [line for line in told.splitlines() if line.startswith("basin_redis_failures_total{")]
    assert parts or kind == "restarted"


@pytest.mark.slow
def test_what_runs_while_redis_is_away_is_kept_when_it_is_back(on_redis, wait):
    store, (server,) = on_redis(SERVER)
    with server.client() as client:
        job = begin(client, "/sample", LONG)
        at = f"/jobs/{job['id']}"
        wait(lambda: client.get(at).json()["progress"]["step"] > 0)
        store.kill()
        wait(lambda: client.get("/health/ready").json()["redis"] == "away")
        assert gauge(server, "basin_redis_up") == 0
        check(client.post("/sample", json=LONG, headers=LATER), 503, "jobs-unavailable")
        check(client.put("/memories/m", json={"patterns": [[1.0]]}), 503, "memories-unavailable")
        wait(lambda: gauge(server, "basin_queue_depth") == 0)  # it is computed, and not told yet
        store.start()
        done = over(client, wait, job)
        assert done["status"] == "done"
        assert gauge(server, "basin_redis_up") == 1


@pytest.mark.slow
def test_a_server_that_ends_leaves_its_jobs_to_others(on_redis, wait):
    store, (one, two) = on_redis(SERVER, IDLE)
    with two.client() as client:
        job = begin(client, "/sample", ENDLESS)
        at = f"/jobs/{job['id']}"
        wait(lambda: client.get(at).json()["progress"]["step"] > 0)
        one.process.send_signal(signal.SIGTERM)
        assert one.process.wait(30) == 0
        assert store.client.zcard("basin:jobs:waiting") == 1
        assert store.client.hget(f"basin:job:{job['id']}", "starts") == b"0"
        assert client.delete(at).status_code == 204


@pytest.mark.slow
def test_a_server_without_its_redis_starts_and_takes_jobs_once_it_is_there(
    redis_server, start, checkpoints, wait
):
    store = redis_server()
    store.kill()
    alone = start(checkpoints=checkpoints, redis_url=store.url)
    wait_until(lambda: answers_with(alone, "/health/ready", 200))
    with alone.client() as client:
        assert client.get("/health/ready").json()["redis"] == "away"
        check(client.post("/sample", json=body(), headers=LATER), 503, "jobs-unavailable")
        store.start()
        wait(lambda: client.post("/sample", json=body(), headers=LATER).status_code == 202)


def test_a_worker_needs_redis_and_a_server_its_address(start):
    for arguments, settings, reason in (
        (("worker",), {}, "a worker reads jobs from the Redis"),
        ((), {"redis_url": "http://secret-word"}, "BASIN_REDIS_URL"),
        ((), {"run_jobs": False}, "BASIN_RUN_JOBS"),
        (("nonsense",), {}, "usage"),
    ):
        failed = start("-m", "service", *arguments, **settings)
        assert failed.process.wait(60) == 1
        told = failed.log.read_text()
        assert reason in told
        assert "secret-word" not in told
