"""A server that asks for keys, and keys for it."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest

from tests.support.api_keys import Ring, bearer
from tests.support.server import Server, Start, answers_with, wait_until

PAST = (datetime.now(UTC) - timedelta(seconds=1)).isoformat()


@pytest.fixture(scope="session")
def ring(tmp_path_factory: pytest.TempPathFactory) -> Ring:
    ring = Ring(tmp_path_factory.mktemp("keys") / "keys.json")
    ring.add("all")
    ring.add("other")
    ring.add("nothing", routes=[], models=[])
    ring.add("expired", expires=PAST)
    ring.add("operator", routes=["/admin"])
    ring.add("keeper", routes=["/admin/models"], models=["et-small"])
    ring.add("scorer", routes=["/anomaly", "GET /models"], models=["et-small"])
    ring.add("viewer", routes=["GET /openapi.json"], models=["et-small"])
    ring.add("protocol", routes=["/v2"], models=["et-small"])
    ring.add("prometheus", routes=["GET /metrics"])
    ring.add("slow", rate={"per_second": 0.5, "burst": 2})
    ring.add("poor", quota={"cost": 1000, "seconds": 1000})
    return ring


@pytest.fixture(scope="session")
def guarded(
    start: Start, checkpoints: Path, ring: Ring, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Server, int]:
    """A server that asks for keys, and the port of its operators."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    one = start(
        lasts=True,
        checkpoints=checkpoints,
        default_anomaly_model="et-small",
        default_classify_model="cdat-mol",
        memory_store=tmp_path_factory.mktemp("memories"),
        keys=ring.path,
        admin_port=port,
        cache_bytes=1 << 20,
        log_level="debug",
    )
    wait_until(lambda: answers_with(one, "/health/ready", 200))
    return one, port


@pytest.fixture(scope="session")
def server(guarded: tuple[Server, int]) -> Server:
    return guarded[0]


@pytest.fixture
def ask(server: Server, ring: Ring) -> Iterator[Callable[..., httpx.Client]]:
    """A client with the key of a name."""
    clients = []

    def one(name: str) -> httpx.Client:
        headers = bearer(ring.secrets[name])
        clients.append(httpx.Client(base_url=server.url, timeout=60, headers=headers))
        return clients[-1]

    yield one
    for client in clients:
        client.close()
