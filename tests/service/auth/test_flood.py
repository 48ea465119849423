"""A flood of those who have a key: whoever has none hears nothing of it."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from service.auth.keys import new_secret
from tests.service.endpoints.anomaly.test_bad_input import check
from tests.service.system.test_flood import FLOOD
from tests.support.api_keys import Ring
from tests.support.checkpoints import Sample
from tests.support.prometheus import families, value
from tests.support.server import Start, answers_with, wait_until


def test_a_stranger_is_told_nothing_in_a_flood(
    start: Start, checkpoints: Path, tmp_path: Path, sample: Callable[..., Sample]
) -> None:
    ring = Ring(tmp_path / "keys.json")
    known, other = ring.add("known"), ring.add("other", routes=["/classify"])
    watcher = ring.add("watcher", routes=["/metrics"])
    server = start(
        checkpoints=checkpoints,
        default_anomaly_model="et-small",
        keys=ring.path,
        max_steps=100_000_000,
        queue_size=0,
    )
    wait_until(lambda: answers_with(server, "/health/ready", 200))
    body = json.dumps(sample(1).arrays(dynamics={"steps": 100_000_000}))
    lines = (
        "POST /anomaly/score HTTP/1.1",
        "Host: localhost",
        f"Authorization: {known['authorization']}",
    )
    lines += ("Content-Type: application/json", f"Content-Length: {len(body)}")

    def asked(**headers: str) -> httpx.Response:
        return httpx.post(f"{server.url}/anomaly/score", json={}, headers=headers)

    with (
        socket.create_connection(("127.0.0.1", server.port), 20) as running,
        httpx.Client(base_url=server.url, headers=known) as client,
        httpx.Client(base_url=server.url, headers=watcher) as watching,
    ):
        running.sendall("\r\n".join((*lines, "", body)).encode())
        wait_until(lambda: value(families(watching)["basin_queue_depth"]) == 1)
        for _ in range(FLOOD):
            assert client.post("/anomaly/score", json={}).status_code == 429
        before = families(watching)
        check(asked(), 401, "unauthenticated")
        check(asked(authorization=f"Bearer {new_secret()}"), 401, "unauthenticated")
        check(asked(**other), 403, "forbidden")
        check(asked(**known), 429, "queue-full")
        after = families(watching)
    for status, count in (("401", 2), ("403", 1), ("429", 1)):
        label = {"route": "/anomaly/score", "status": status}
        each = [value(found["basin_requests"], "_total", **label) for found in (before, after)]
        assert each[1] - each[0] == count


def test_small_requests_of_a_key_are_answered_beside_those_of_another(
    start: Start, checkpoints: Path, tmp_path: Path, sample: Callable[..., Sample]
) -> None:
    """Those of one key have few places then, of which the ones that take long hold none."""
    ring = Ring(tmp_path / "keys.json")
    known, other = ring.add("known"), ring.add("other")
    server = start(
        checkpoints=checkpoints,
        default_anomaly_model="et-small",
        keys=ring.path,
        max_steps=100_000_000,
        queue_size=200,
    )
    wait_until(lambda: answers_with(server, "/health/ready", 200))
    url, small = f"{server.url}/anomaly/score", sample(1)
    with ThreadPoolExecutor(40) as threads, httpx.Client(timeout=20) as client:

        def score(headers: dict[str, str], **dynamics: float) -> httpx.Response:
            return client.post(url, json=small.arrays(dynamics=dynamics), headers=headers)

        def score_until(deadline_ms: int) -> httpx.Response:
            late = {"steps": 100_000_000}
            query = {"timeout_ms": deadline_ms}
            return client.post(url, json=small.arrays(dynamics=late), headers=known, params=query)

        def read_scores(reply: httpx.Response) -> list[float]:
            return [row["score"] for row in reply.raise_for_status().json()["results"]]

        right = read_scores(score(other, steps=3))
        long = [threads.submit(score_until, 6000) for _ in range(12)]
        short = list[Future[httpx.Response]]()
        for _ in range(4):
            assert read_scores(score(other, steps=3)) == pytest.approx(right, abs=1e-6)
            short += [threads.submit(score, known, steps=3) for _ in range(24)]
        for reply in short:
            assert read_scores(reply.result()) == pytest.approx(right, abs=1e-6)
        assert not any(reply.done() for reply in long)
        assert {reply.result().status_code for reply in long} == {504}
