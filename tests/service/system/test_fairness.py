"""One key, or one address without keys, that takes all it can: the others are served."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import numpy as np
import pytest

from tests.service.endpoints.anomaly.test_bad_input import check
from tests.support.api_keys import Ring
from tests.support.checkpoints import Sample
from tests.support.prometheus import families, value
from tests.support.server import Server, Start, answers_with, wait_until

BODY_BYTES = 1 << 20
BUFFERED_BYTES = 4 << 20
SETTINGS = {
    "default_anomaly_model": "et-small",
    "max_body_bytes": BODY_BYTES,
    "max_buffered_bytes": BUFFERED_BYTES,
    "body_timeout_s": 60,
    "queue_size": 7,
    "max_connections": 40,
    "max_steps": 100_000_000,
    "deadline_s": 1_000_000,  # none is refused because it would be late
    "max_memories": 3,
    "max_memory_bytes": 40_000,
}
ENDLESS = {"steps": 100_000_000}


@pytest.fixture(scope="module")
def ring(tmp_path_factory: pytest.TempPathFactory) -> Ring:
    ring = Ring(tmp_path_factory.mktemp("keys") / "keys.json")
    for name in ("alice", "bob"):
        ring.add(name)
    ring.add("operator", routes=["/metrics"])
    return ring


@pytest.fixture(scope="module")
def guarded(start: Start, checkpoints: Path, ring: Ring) -> Server:
    server = start(checkpoints=checkpoints, keys=ring.path, **SETTINGS)
    wait_until(lambda: answers_with(server, "/health/ready", 200))
    return server


@pytest.fixture(scope="module")
def unguarded(start: Start, checkpoints: Path) -> Server:
    server = start(checkpoints=checkpoints, **SETTINGS)
    wait_until(lambda: answers_with(server, "/health/ready", 200))
    return server


@pytest.fixture
def ask(guarded: Server, ring: Ring) -> Iterator[Callable[[str], httpx.Client]]:
    """A client with the key of a name."""
    with ExitStack() as clients:

        def make(name: str) -> httpx.Client:
            headers = {"authorization": f"Bearer {ring.secrets[name]}"}
            client = httpx.Client(base_url=guarded.url, timeout=60, headers=headers)
            return clients.enter_context(client)

        yield make


def begin_body(server: Server, address: str, secret: str = "", size: int = 0) -> socket.socket:
    """Send the head of a request and `size` bytes of a body that has one more."""
    line = socket.create_connection(("127.0.0.1", server.port), 20, (address, 0))
    lines = ["POST /anomaly/score HTTP/1.1", "Host: localhost", f"Content-Length: {size + 1}"]
    lines.append("Content-Type: application/vnd.safetensors")
    if secret:
        lines.append(f"Authorization: Bearer {secret}")
    line.sendall(("\r\n".join(lines) + "\r\n\r\n").encode() + b" " * size)
    return line


def is_refused(line: socket.socket, status: int) -> bool:
    """Whether a response of `status` comes, for a body that is not complete."""
    line.settimeout(1)
    try:
        return line.recv(1 << 12).startswith(b"HTTP/1.1 %d " % status)
    except TimeoutError:
        return False


def test_slow_bodies_of_one_address_leave_room(
    unguarded: Server, sample: Callable[..., Sample]
) -> None:
    small = sample(1).arrays()
    transports = [httpx.HTTPTransport(local_address=f"127.0.0.{n}") for n in (2, 3)]
    with ExitStack() as open_now:
        slow = [
            open_now.enter_context(begin_body(unguarded, "127.0.0.2", size=BODY_BYTES - 1))
            for _ in range(8)
        ]
        assert sum(is_refused(line, 429) for line in slow) >= 6  # two fit into half of 4 MiB
        same, other = (
            open_now.enter_context(httpx.Client(base_url=unguarded.url, transport=transport))
            for transport in transports
        )
        refused = same.post("/anomaly/score", content=json.dumps(small).ljust(BODY_BYTES // 2))
        check(refused, 415, "unsupported-media-type")
        headers = {"content-type": "application/json"}
        refused = same.post(
            "/anomaly/score", content=json.dumps(small).ljust(BODY_BYTES // 2), headers=headers
        )
        check(refused, 429, "queue-full")
        assert f"of {BUFFERED_BYTES} bytes (BASIN_MAX_BUFFERED_BYTES)" in refused.json()["detail"]
        assert refused.headers["retry-after"] == "1"
        for client in (same, other):
            assert client.post("/anomaly/score", json=small).status_code == 200
        large = json.dumps(small).ljust(BODY_BYTES // 2)
        answer = other.post("/anomaly/score", content=large, headers=headers)
        assert answer.status_code == 200


def test_slow_bodies_of_one_key_leave_room_behind_one_address(
    guarded: Server, ring: Ring, ask: Callable[[str], httpx.Client], sample: Callable[..., Sample]
) -> None:
    small = json.dumps(sample(1).arrays())
    large = small.ljust(BODY_BYTES // 2)
    headers = {"content-type": "application/json"}
    with ExitStack() as open_now:
        for _ in range(8):
            secret = ring.secrets["alice"]
            open_now.enter_context(begin_body(guarded, "127.0.0.1", secret, BODY_BYTES - 1))
        alice, bob = ask("alice"), ask("bob")
        time.sleep(0.5)
        check(alice.post("/anomaly/score", content=large, headers=headers), 429, "queue-full")
        for body in (small, large):
            answer = bob.post("/anomaly/score", content=body, headers=headers)
            assert answer.status_code == 200


def test_open_requests_of_one_key_leave_connections(
    guarded: Server, ring: Ring, ask: Callable[[str], httpx.Client], sample: Callable[..., Sample]
) -> None:
    with ExitStack() as open_now:
        slow = [
            open_now.enter_context(begin_body(guarded, "127.0.0.1", ring.secrets["alice"]))
            for _ in range(10)
        ]
        time.sleep(0.3)
        late = open_now.enter_context(begin_body(guarded, "127.0.0.1", ring.secrets["alice"]))
        assert is_refused(late, 503)
        refused = ask("alice").get("/models")
        check(refused, 503, "too-many-connections")
        assert "This API key has 10 requests open" in refused.json()["detail"]
        assert refused.headers["retry-after"] == "1"
        assert ask("bob").post("/anomaly/score", json=sample(1).arrays()).status_code == 200
        assert not any(is_refused(line, 503) for line in slow[:2])
    alice = ask("alice")
    wait_until(lambda: alice.get("/models").status_code == 200, 20)


def test_a_flood_of_one_key_leaves_places_and_turns(
    guarded: Server, ring: Ring, ask: Callable[[str], httpx.Client], sample: Callable[..., Sample]
) -> None:
    """Eight places: four for a key that comes alone."""
    body = json.dumps(sample(1).arrays(dynamics=ENDLESS)).encode()
    lines = ["POST /anomaly/score HTTP/1.1", "Host: localhost", "Content-Type: application/json"]
    lines.append(f"Authorization: Bearer {ring.secrets['alice']}")
    head = "\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""]).encode()
    watching = ask("operator")
    with ExitStack() as open_now:
        for _ in range(4):
            line = socket.create_connection(("127.0.0.1", guarded.port), 20)
            open_now.enter_context(line)
            line.sendall(head + body)
        wait_until(lambda: value(families(watching)["basin_queue_depth"]) == 4, 20)
        for _ in range(120):  # a flood, which is refused by its head
            refused = ask_once(guarded, ring.secrets["alice"])
            check(refused, 429, "queue-full")
            assert "This API key has 4 of 8 places" in refused.json()["detail"]
        for seed in range(5):
            answer = ask("bob").post("/anomaly/score", json=sample(seed).arrays())
            assert answer.status_code == 200
    wait_until(lambda: value(families(watching)["basin_queue_depth"]) == 0)


def ask_once(server: Server, secret: str) -> httpx.Response:
    headers = {"authorization": f"Bearer {secret}"}
    return httpx.post(f"{server.url}/anomaly/score", json={}, headers=headers)


def test_memories_of_one_key_leave_room(ask: Callable[[str], httpx.Client]) -> None:
    alice, bob = ask("alice"), ask("bob")
    small = {"patterns": [[1, 0], [0, 1]]}
    for number in range(3):
        assert alice.put(f"/memories/m{number}", json=small).status_code == 201
    refused = alice.put("/memories/m3", json=small)
    check(refused, 507, "store-full")
    assert "At most 3 memories (BASIN_MAX_MEMORIES)" in refused.json()["detail"]
    assert alice.put("/memories/m2", json=small).status_code == 200
    for number in range(3):
        assert bob.put(f"/memories/m{number}", json=small).status_code == 201
    for client in (alice, bob):
        for number in range(3):
            assert client.delete(f"/memories/m{number}").status_code == 204


def test_bytes_of_memories_of_one_key_leave_room(ask: Callable[[str], httpx.Client]) -> None:
    alice, bob = ask("alice"), ask("bob")
    patterns = np.random.default_rng(0).standard_normal((100, 30)).round(3)  # 12 kB
    assert alice.put("/memories/a", json={"patterns": patterns.tolist()}).status_code == 201
    refused = alice.put("/memories/b", json={"patterns": patterns.tolist()})
    check(refused, 507, "store-full")
    assert "share of the 40000 bytes (BASIN_MAX_MEMORY_BYTES)" in refused.json()["detail"]
    assert bob.put("/memories/b", json={"patterns": patterns.tolist()}).status_code == 201
    for client, name in ((alice, "a"), (bob, "b")):
        assert client.delete(f"/memories/{name}").status_code == 204
