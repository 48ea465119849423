"""Clients that ask one thing after the other, and what became of all they asked."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.service.endpoints.anomaly.test_bad_input import check
from tests.service.endpoints.jobs.test_api import LATER, over
from tests.service.endpoints.sample.test_api import body
from tests.support.server import Server


@dataclass
class Traffic:
    """What scores were answered, how long the longest waited, and the jobs that were promised."""

    statuses: Counter[int] = field(default_factory=Counter)
    longest_s: float = 0.0
    scores: set[float] = field(default_factory=set)  # of one graph, so there is one
    jobs: list[dict[str, Any]] = field(default_factory=list)
    refused: int = 0
    ended: httpx.TransportError | None = None  # why the server was asked no more


@contextmanager
def traffic(server: Server, asked: dict[str, Any]) -> Iterator[Traffic]:
    """Scores, and after every tenth a job, while the context lasts or the server does."""
    seen, stop = Traffic(), threading.Event()

    def send() -> None:
        with httpx.Client(base_url=server.url, timeout=30) as client:
            for i in range(40_000):
                if stop.is_set():
                    return
                began = time.monotonic()
                # Each is another, so that no cache has it.
                answer = client.post(f"/anomaly/score?timeout_ms={20_000 + i}", json=asked)
                seen.longest_s = max(seen.longest_s, time.monotonic() - began)
                seen.statuses[answer.status_code] += 1
                if answer.status_code == 200:
                    seen.scores.add(round(answer.json()["results"][0]["score"], 4))
                if i % 10 == 0:
                    job = client.post("/sample", json=body(seed=i), headers=LATER)
                    if job.status_code == 202:
                        seen.jobs.append(job.json())
                    else:
                        kind = job.json()["type"].rpartition(":")[2]
                        assert kind in ("jobs-unavailable", "memories-unavailable")
                        check(job, 503, kind)
                        seen.refused += 1

    def send_on() -> None:
        try:
            send()
        except httpx.TransportError as error:
            seen.ended = error

    thread = threading.Thread(target=send_on)
    thread.start()
    try:
        yield seen
    finally:
        stop.set()
        thread.join()


def kept(server: Server, seen: Traffic, wait: Callable[..., None]) -> None:
    """Every job that was promised is answered."""
    with server.client() as client:
        for job in seen.jobs:
            answer = client.get(over(client, wait, job)["result"])
            assert answer.status_code == 200
