"""Servers say what the settings of Redis may lose; a full Redis refuses and deletes no graph."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from structlog.testing import capture_logs

from service.storage.redis_client import RedisClient
from tests.service.endpoints.anomaly.test_bad_input import check
from tests.support.checkpoints import make_sample
from tests.support.redis_server import RedisServer
from tests.support.server import Start, answers_with, wait_until

RedisStart = Callable[..., RedisServer]
GOOD = ("--maxmemory", "100mb", "--maxmemory-policy", "volatile-lru")


@pytest.mark.parametrize("policy", ["noeviction", "volatile-lru", "volatile-lfu", "volatile-ttl"])
@pytest.mark.parametrize("appendfsync", ["everysec", "always"])
def test_settings_that_keep_what_is_stored(
    redis_server: RedisStart, policy: str, appendfsync: str
) -> None:
    server = redis_server(*GOOD, "--maxmemory-policy", policy, "--appendfsync", appendfsync)
    assert server.list_warnings() == []


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--appendonly", "no"), "`appendonly no`: .* all of them. Set `appendonly yes`"),
        (
            ("--appendonly", "no", "--save", "60 1"),
            r"those accepted since its last snapshot \(`save 60 1`\). Set `appendonly yes`",
        ),
        (("--appendfsync", "no"), "`appendfsync no`: .* Set `everysec`.* or `always`"),
        (("--maxmemory-policy", "allkeys-lru"), "`maxmemory-policy allkeys-lru`: .*`volatile-lru`"),
        (("--maxmemory-policy", "allkeys-random"), "`maxmemory-policy allkeys-random`"),
        (("--maxmemory", "0"), "`maxmemory 0`, no limit"),
    ],
)
def test_a_setting_that_loses_something_has_a_warning(
    redis_server: RedisStart, options: tuple[str, ...], expected: str
) -> None:
    [warning] = redis_server(*GOOD, *options).list_warnings()
    with pytest.raises(RuntimeError, match=expected):
        raise RuntimeError(warning)


def test_replicas_and_the_replica_itself(redis_server: RedisStart) -> None:
    primary = redis_server(*GOOD)
    replica = redis_server(*GOOD, "--replicaof", f"127.0.0.1 {primary.port}")
    wait_until(lambda: primary.client.info("replication")["connected_slaves"] == 1)
    [of_primary] = primary.list_warnings()
    assert "has 1 replicas" in of_primary
    assert "WAIT is not used" in of_primary
    [of_replica] = replica.list_warnings()
    assert "is a replica, and refuses writes" in of_replica


def test_a_service_that_refuses_config_is_asked_for_what_info_says(
    redis_server: RedisStart,
) -> None:
    server = redis_server(*GOOD, "--maxmemory-policy", "allkeys-lru")
    for name, forbidden in (("a", "-config"), ("b", "-config -info")):
        server.client.acl_setuser(
            name, enabled=True, passwords="+p", keys="*", channels="*", categories=["+@all"]
        )
        server.client.execute_command("ACL", "SETUSER", name, *forbidden.split())
    policy, unknown = server.list_warnings("a:p@")
    assert "`maxmemory-policy allkeys-lru`" in policy
    assert "appendfsync could not be checked" in unknown
    [everything] = server.list_warnings("b:p@")
    assert "appendonly, appendfsync, maxmemory, maxmemory-policy could not be" in everything


def test_every_redis_that_is_met_is_checked(redis_server: RedisStart) -> None:
    async def play() -> None:
        server = redis_server(*GOOD)
        link = RedisClient(server.url, 1.0)

        async def probe() -> list[str]:
            with capture_logs() as logs:
                await link.probe()
            return [log["reason"] for log in logs if log["event"] == "redis settings"]

        assert await probe() == []
        server.kill()
        assert await probe() == []
        server.start()
        server.client.config_set("maxmemory-policy", "allkeys-lru")
        [warning] = await probe()  # another one, for all that this server knows
        assert "allkeys-lru" in warning
        assert await probe() == []
        assert link.is_available
        await link.close()

    asyncio.run(play())


def test_a_server_says_so_when_it_starts(
    redis_server: RedisStart, start: Start, checkpoints: Path
) -> None:
    store = redis_server(*GOOD, "--appendonly", "no")
    server = start(checkpoints=checkpoints, redis_url=store.url)
    wait_until(lambda: answers_with(server, "/health/ready", 200))
    [line] = [line for line in server.log_lines() if line["event"] == "redis settings"]
    assert line["level"] == "warning"
    assert "`appendonly no`" in line["reason"]


def test_a_redis_full_of_what_lasts_refuses_more_and_loses_nothing(
    redis_server: RedisStart, start: Start, checkpoints: Path
) -> None:
    store = redis_server(*GOOD)
    server = start(
        checkpoints=checkpoints,
        default_anomaly_model="et-small",
        redis_url=store.url,
        cache_bytes=1 << 20,
        run_jobs=False,  # it stays as it was stored
    )
    wait_until(lambda: answers_with(server, "/health/ready", 200))
    graph, memory = make_sample(3).arrays(), {"patterns": [[1.0, 0.0], [0.0, 1.0]]}
    later, job = {"prefer": "respond-async"}, make_sample(5).arrays()
    with server.client() as client:
        assert client.put("/graphs/first", json=graph).status_code == 201
        assert client.put("/memories/first", json=memory).status_code == 201
        first = client.post("/anomaly/score", json=job, headers=later)
        assert first.status_code == 202
        for seed in range(6, 9):  # cached responses, which make room
            answer = client.post("/anomaly/score", json=make_sample(seed).arrays())
            assert answer.status_code == 200
        wait_until(lambda: len(store.client.keys("basin:answer:*")) == 3)

        for number in range(8):  # of another application: as much as there is room for, for good
            store.client.set(f"other:{number}", b"x" * (1 << 20))
        store.client.config_set("maxmemory", store.client.info("memory")["used_memory"] - (4 << 20))

        check(client.put("/graphs/second", json=graph), 503, "graphs-unavailable")
        check(client.put("/memories/second", json=memory), 503, "memories-unavailable")
        check(client.post("/anomaly/score", json=job, headers=later), 503, "jobs-unavailable")
        assert store.client.keys("basin:answer:*") == []
        assert client.post("/anomaly/score", json=job).status_code == 200
        assert client.get("/health/ready").json()["redis"] == "up"

        store.client.delete(*store.client.keys("other:*"))
        assert [each["id"] for each in client.get("/graphs").json()["graphs"]] == ["first"]
        assert client.get("/memories/first").status_code == 200
        assert client.get(first.headers["location"]).json()["status"] == "running"
        assert client.put("/graphs/second", json=graph).status_code == 201
        assert client.put("/memories/second", json=memory).status_code == 201
        assert client.post("/anomaly/score", json=job, headers=later).status_code == 202
    metrics = httpx.get(f"{server.url}/metrics").text
    for part in ("graphs", "memories", "jobs"):
        assert f'basin_redis_failures_total{{part="{part}"}}' in metrics
