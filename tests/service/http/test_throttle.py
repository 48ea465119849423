"""Who is refused too often is heard again later; nobody else is."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing

import httpx
import pytest
import uvicorn
from hypothesis import given
from hypothesis import strategies as st

from service.http.throttle import RefusalThrottle, ThrottleMiddleware
from service.observability.request_state import RequestState, get_state, set_state


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_none_waits_up_to_the_rate():
    clock = Clock()
    pace = RefusalThrottle(100, clock)
    for _ in range(500):
        clock.now += 0.0101
        assert pace.refuse() == 0


def test_a_burst_is_let_pass_and_what_follows_stands_in_line():
    clock = Clock()
    pace = RefusalThrottle(100, clock)  # there are no answers
    waits = [pace.refuse() for _ in range(60)]
    assert waits[:50] == pytest.approx([0] * 50, abs=1e-9)
    assert waits == sorted(waits)
    assert 0 < waits[51] <= 0.1 <= waits[-1] < 0.2  # some of them together
    clock.now += 0.11
    assert pace.refuse() == pytest.approx(0, abs=1e-9)


def test_who_answers_much_may_refuse_much():
    clock = Clock()
    pace = RefusalThrottle(100, clock)
    for i in range(8000):  # twenty seconds, of the last half of which as many are refused
        clock.now += 0.0025
        pace.answer()
        assert i < 4000 or pace.refuse() == 0
    waits = [pace.refuse() for _ in range(1500)]
    assert 0.9 < waits[-1] <= 1
    clock.now += 60  # nothing is answered, as it takes long
    waits = [pace.refuse() for _ in range(60)]
    assert waits[48] == 0 < waits[51] <= 0.1 <= waits[-1] < 0.2


def test_a_flood_is_many_a_second():
    clock = Clock()
    pace = RefusalThrottle(clock=clock)
    for _ in range(200):
        clock.now += 1 / 40
        pace.refuse()
        assert not pace.is_flooded
    for _ in range(200):
        clock.now += 1 / 80
        pace.refuse()
    assert pace.is_flooded
    clock.now += 2
    assert not pace.is_flooded


@given(st.lists(st.floats(0, 0.1), min_size=1, max_size=300), st.floats(1, 1000))
def test_no_wait_is_longer_than_a_second_and_the_rate_holds(pauses: list[float], rate: float):
    """Those that wait come out as the rate says, but for those who waited longest."""
    clock = Clock()
    pace = RefusalThrottle(rate, clock)
    heard: Counter[int] = Counter()
    for pause in pauses:
        clock.now += pause
        wait_s = pace.refuse()
        assert 0 <= wait_s <= 1 + 1e-9
        if 0 < wait_s < 0.9:
            heard[round((clock.now + wait_s) / 0.05)] += 1
    assert all(count <= rate * 0.05 + 1 for count in heard.values())


@pytest.fixture
def refusing() -> Iterator[tuple[str, list[int]]]:
    """A server with room for nobody, that refuses one a second; and whom it has held."""
    held: list[int] = []

    async def refuse(scope, receive, send):
        kind = scope["path"].strip("/")
        set_state(scope, RequestState("r", problem=kind))
        body = kind.encode()
        length = [(b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 429, "headers": length})
        await send({"type": "http.response.body", "body": body})

    app = ThrottleMiddleware(refuse, RefusalThrottle(1), lambda: held.append(1))
    config = uvicorn.Config(app, log_config=None, lifespan="off", http="httptools")
    with closing(socket.create_server(("127.0.0.1", 0))) as listening:
        server = uvicorn.Server(config)
        thread = threading.Thread(target=asyncio.run, args=[server.serve([listening])])
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}", held
        finally:
            server.should_exit = True
            thread.join()


def test_a_refusal_is_whole_at_once_and_its_connection_heard_later(refusing):
    url, held = refusing
    with httpx.Client(base_url=url) as one, httpx.Client(base_url=url) as other:
        began = time.monotonic()
        assert one.get("/queue-full").text == "queue-full"
        refused_s = time.monotonic() - began
        assert other.get("/rate-exceeded").text == "rate-exceeded"
        other_s = time.monotonic() - began
        assert one.get("/rate-exceeded").text == "rate-exceeded"
        again_s = time.monotonic() - began
    assert refused_s < other_s < 0.4 < again_s
    assert held == [1]


def test_what_is_refused_for_another_reason_is_heard_at_once(refusing):
    url, held = refusing
    with httpx.Client(base_url=url) as client:
        for _ in range(50):
            assert client.get("/rate-exceeded").status_code == 429
    assert held == []


def test_whoever_leaves_meanwhile_is_missed_by_nobody(refusing):
    url, held = refusing
    for _ in range(3):
        with httpx.Client(base_url=url) as client:
            assert client.get("/queue-full").status_code == 429
    with httpx.Client(base_url=url) as client:
        assert client.get("/other").status_code == 429
    assert len(held) == 3


@pytest.mark.parametrize(
    ("path", "counts"), [("/computed", True), ("/metrics", False), ("/failed", False)]
)
def test_an_answer_is_what_was_computed(path: str, counts: bool):
    async def answer(scope, receive, send):
        status = 500 if scope["path"] == "/failed" else 200
        if scope["path"] != "/metrics":
            get_state(scope).cost = 1.0
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def ignore(message):
        pass

    clock = Clock()
    pace = RefusalThrottle(0.5, clock)
    app = ThrottleMiddleware(answer, pace, lambda: None)
    for _ in range(5):
        scope = {"type": "http", "path": path}
        set_state(scope, RequestState("r"))
        asyncio.run(app(scope, None, ignore))  # type: ignore[arg-type]
    # Five of late are 2.5 a second, and for each two may be refused.
    wait_s = pace.refuse()
    assert wait_s < 0.3 if counts else wait_s > 0.9
