"""A server whose Redis holds jobs that no server wrote, or loses those that it accepted."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.service.endpoints.anomaly.test_bad_input import check
from tests.service.endpoints.jobs.test_api import begin, events, over
from tests.service.endpoints.sample.test_api import ENDLESS, body
from tests.support.redis_server import RedisServer
from tests.support.server import REPO, Server, Start, answers_with, gauge, wait_until


@dataclass
class Site:
    """A server on a Redis, with clients of both of its ports."""

    redis: RedisServer
    server: Server
    client: httpx.Client
    operator: httpx.Client

    def run_command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run `python -m service dead-jobs`."""
        env = {**os.environ, "BASIN_REDIS_URL": self.redis.url}
        command = [sys.executable, "-m", "service", "dead-jobs", *arguments]
        return subprocess.run(command, cwd=REPO, env=env, capture_output=True, text=True)


@pytest.fixture
def site(
    start: Start, checkpoints: Path, redis_server: Callable[..., RedisServer]
) -> Iterator[Site]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    store = redis_server()
    server = start(
        checkpoints=checkpoints, redis_url=store.url, job_lease_s=2, admin_port=port, cache_bytes=0
    )
    wait_until(lambda: answers_with(server, "/health/ready", 200))
    with (
        server.client() as client,
        httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as operator,
    ):
        yield Site(store, server, client, operator)


def require_kind(result: httpx.Response, status: int, kind: str) -> None:
    """Check a problem that is the response of a job; its request_id is that of the job."""
    assert result.status_code == status
    assert result.json()["type"] == f"urn:basin:problem:{kind}"


def test_damaged_entries_stop_no_job_and_the_operator_removes_them(
    site: Site, wait: Callable[..., None]
) -> None:
    redis: Any = site.redis.client
    client = site.client
    for member in ("ghost", b"\xff\xfe"):
        redis.zadd("basin:jobs:waiting", {member: 0})
    redis.hset("basin:job:nearly", mapping={"status": "running", "starts": "x"})
    redis.zadd("basin:jobs:waiting", {"nearly": 0})
    jobs = [begin(client, "/sample", body(seed=i)) for i in range(3)]
    assert [over(client, wait, job)["status"] for job in jobs] == ["done"] * 3
    wait(lambda: gauge(site.server, "basin_jobs_dead") == 3)
    assert "basin_redis_damaged_total" in client.get("/metrics").text
    logged = {
        line["key"] for line in site.server.log_lines() if line["event"] == "redis value is damaged"
    }
    assert logged >= {"basin:job:ghost", "basin:job:\\xff\\xfe", "basin:job:nearly"}

    key = f"basin:job:{jobs[0]['id']}"
    redis.hset(key, "answer", redis.hget(key, "answer")[:-1] + b"?")
    require_kind(client.get(f"/jobs/{jobs[0]['id']}/result"), 410, "job-lost")
    failed = client.get(f"/jobs/{jobs[0]['id']}").json()
    assert failed["status"] == "failed"
    assert events(client, failed)[-1][0] == "failed"
    assert client.get(f"/jobs/{jobs[1]['id']}/result").status_code == 200

    listed = [json.loads(line) for line in site.run_command("list").stdout.splitlines()]
    assert {job["id"] for job in listed} == {"ghost", "\\xff\\xfe", "nearly", jobs[0]["id"]}
    assert listed == site.operator.get("/dead-jobs").json()["dead_jobs"]
    refused = site.run_command("requeue", "ghost")
    assert refused.returncode == 1
    assert "ghost" in refused.stderr
    check(site.operator.post("/dead-jobs/ghost/requeue"), 404, "unknown-job")
    assert site.operator.delete("/dead-jobs/ghost").status_code == 204
    check(site.operator.delete("/dead-jobs/ghost"), 404, "unknown-job")
    assert site.run_command("drop", "--all").returncode == 0
    assert site.operator.get("/dead-jobs").json() == {"dead_jobs": []}
    wait(lambda: gauge(site.server, "basin_jobs_dead") == 0)


def test_a_job_that_crashed_the_server_can_be_run_again(
    site: Site, wait: Callable[..., None]
) -> None:
    *others, job = (begin(site.client, "/sample", ENDLESS) for _ in range(5))
    at = f"/jobs/{job['id']}"
    wait(lambda: site.redis.client.zcard("basin:jobs:running") == 4)
    site.redis.client.hset(f"basin:job:{job['id']}", "starts", 3)  # as after so many crashes
    for other in others:
        assert site.client.delete(f"/jobs/{other['id']}").status_code == 204
    wait(lambda: site.client.get(at).json()["status"] == "failed")
    require_kind(site.client.get(f"{at}/result"), 500, "job-crashed")
    (dead,) = site.operator.get("/dead-jobs").json()["dead_jobs"]
    assert (dead["id"], dead["reason"], dead["has_request"]) == (job["id"], "job-crashed", True)
    assert site.operator.post(f"/dead-jobs/{job['id']}/requeue").status_code == 204
    wait(lambda: site.client.get(at).json()["progress"]["step"] > 0)
    assert site.client.get(at).json()["status"] == "running"
    assert site.client.delete(at).status_code == 204


def test_jobs_of_an_emptied_redis_are_lost_and_new_ones_run(
    site: Site, wait: Callable[..., None]
) -> None:
    client = site.client
    running = begin(client, "/sample", ENDLESS)
    done = over(client, wait, begin(client, "/sample", body()))
    at = f"/jobs/{running['id']}"
    wait(lambda: client.get(at).json()["progress"]["step"] > 0)
    with client.stream("GET", f"{at}/events") as stream:
        lines = stream.iter_lines()
        assert next(lines) == "event: progress"
        site.redis.client.flushall()
        rest = [line for line in lines if line.startswith("event: ")]
    assert rest[-1:] in (["event: failed"], ["event: progress"])  # or it ended without an end
    wait(lambda: client.get(f"{at}/result").status_code == 410)
    for job in (running, done):
        assert client.get(f"/jobs/{job['id']}").json()["status"] == "failed"
        answer = client.get(f"/jobs/{job['id']}/result")
        require_kind(answer, 410, "job-lost")
        assert "Redis lost this job" in answer.json()["detail"]
        assert events(client, job)[-1][0] == "failed"
    assert 'basin_redis_lost_total{part="jobs"} 2.0' in client.get("/metrics").text
    wait(lambda: gauge(site.server, "basin_queue_depth") == 0)  # it no longer runs
    assert over(client, wait, begin(client, "/sample", body()))["status"] == "done"
    wait(lambda: gauge(site.server, "basin_jobs_unfinished") == 0)
