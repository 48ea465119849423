"""Memories of two servers, whose Redis loses what it held, and whose copies are deleted."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.service.endpoints.sample.test_api import body
from tests.support.redis_server import RedisServer
from tests.support.server import Server, answers_with, wait_until

PATTERNS = {"patterns": [[1, 0, 0], [0, 1, 0], [0, 0, 1.0]]}


@pytest.fixture
def on_redis(
    start: Callable[..., Server], checkpoints: Path, redis_server: Callable[..., RedisServer]
) -> tuple[RedisServer, list[Server]]:
    redis = redis_server()
    servers = [
        start(
            checkpoints=checkpoints,
            default_anomaly_model="et-small",
            default_classify_model="cdat-mol",
            redis_url=redis.url,
            memory_store=redis.folder / "memories",
        )
        for _ in range(2)
    ]
    for server in servers:
        wait_until(lambda server=server: answers_with(server, "/health/ready", 200))
    return redis, servers


def change(client: httpx.Client, method: str, path: str, patterns: Any = None) -> int:
    """Store or delete a memory as a client does that retries 503; return the last status."""
    deadline = time.monotonic() + 60
    while (answer := client.request(method, path, json=patterns)).status_code == 503:
        assert answer.json()["type"].endswith("memories-unavailable")
        assert answer.headers["retry-after"] == "1"
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return answer.status_code


def names(client: httpx.Client) -> list[str]:
    answer = client.get("/memories")
    assert answer.status_code == 200
    return [memory["id"] for memory in answer.json()["memories"] if len(memory["id"]) == 2]


def counted(client: httpx.Client, name: str) -> float:
    start = f'basin_redis_{name}_total{{part="memories"}} '
    lines = client.get("/metrics").text.splitlines()
    return sum(float(line.removeprefix(start)) for line in lines if line.startswith(start))


def test_memories_outlive_a_redis_that_lost_everything(
    on_redis: tuple[RedisServer, list[Server]],
) -> None:
    redis, (one, two) = on_redis
    with one.client() as first, two.client() as second:
        clients = (first, second)
        for i in range(3):
            assert first.put(f"/memories/m{i}", json=PATTERNS).status_code == 201
        assert names(second) == ["m0", "m1", "m2"]
        for lose in (RedisServer.restart_from, lambda redis: redis.client.flushall()):
            before = names(first)
            lose(redis)
            after = [*before, f"n{len(before)}"]
            assert (
                change(second, "PUT", f"/memories/{after[-1]}", PATTERNS) == 201
            )  # the first request
            assert names(second) == after
            assert names(first)[: len(before)] == before  # the new one once it has met Redis again
            wait_until(lambda after=after: names(first) == after)
            wait_until(lambda after=after: redis.client.hlen("basin:memories") == len(after))
        assert sum(counted(client, "restored") for client in clients) >= 7
        assert sum(counted(client, "lost") for client in clients) == 0
        assert change(first, "DELETE", "/memories/m0") == 204
        wait_until(lambda: "m0" not in names(second))  # so its copy is deleted too
    for server in (one, two):
        assert not [line for line in server.log_lines() if "exception" in line]


@pytest.mark.slow
def test_a_memory_of_which_there_is_no_copy_is_lost(
    on_redis: tuple[RedisServer, list[Server]],
) -> None:
    redis, (one, two) = on_redis
    with one.client() as first, two.client() as second:
        clients = (first, second)
        for i in range(1, 3):
            assert first.put(f"/memories/m{i}", json=PATTERNS).status_code == 201
        wait_until(lambda: names(second) == ["m1", "m2"])
        for folder in ("memories-of-redis", "memories-of-redis-2"):  # of each process its own
            copy = redis.folder / folder / "m1.safetensors"
            assert copy.is_file()
            copy.unlink()
        redis.restart_from()
        for client in clients:
            wait_until(lambda client=client: names(client) == ["m2"])
            assert client.get("/memories/m2").status_code == 200
            assert client.post("/sample", json=body(memory="m2")).status_code == 200
            wait_until(lambda client=client: client.get("/memories/m1").status_code == 404)
            assert counted(client, "lost") == 1
            shipped = client.get("/memories").json()["memories"]
            other = next(memory["id"] for memory in shipped if len(memory["id"]) != 2)
            assert client.get(f"/memories/{other}").status_code == 200
    for server in (one, two):
        assert not [line for line in server.log_lines() if "exception" in line]
