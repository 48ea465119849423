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
    for i in range(500):
        clock.now += 0.0101
        assert pace.refuse(str(i)) == (0, 0)


def test_a_burst_is_let_pass_and_what_follows_stands_in_line():
    clock = Clock()
    pace = RefusalThrottle(100, clock)  # there are no answers
    waits = [pace.refuse(str(i)).after_s for i in range(60)]
    assert waits[:50] == pytest.approx([0] * 50, abs=1e-9)
    assert waits == sorted(waits)
    assert 0 < waits[51] <= 0.1 <= waits[-1] < 0.2  # some of them together
    clock.now += 0.11
    assert pace.refuse("a").after_s == pytest.approx(0, abs=1e-9)


def test_a_client_waits_for_its_own_refusals():
    clock = Clock()
    pace = RefusalThrottle(50, clock)  # 25 of one client
    waits = [pace.refuse("a") for _ in range(200)]
    assert waits[11] == (0, 0) < waits[13]  # half a second's worth pass
    assert waits[-1] == pytest.approx((4, 0.95), abs=0.051)
    assert [sum(wait) for wait in waits] == sorted(sum(wait) for wait in waits)
    assert pace.refuse("b").before_s == 0  # nor does it wait longer than all together make it
    clock.now += 1
    assert pace.refuse("b") == pace.refuse("c") == (0, 0)
    assert sum(pace.refuse("a")) == pytest.approx(4, abs=0.1)


def test_clients_that_are_refused_no_more_are_forgotten():
    pace = RefusalThrottle(100, Clock())
    for i in range(5000):
        pace.refuse(str(i))
    assert len(pace._by_client) == 1024


def test_who_answers_much_may_refuse_much():
    clock = Clock()
    pace = RefusalThrottle(100, clock)
    for i in range(8000):  # twenty seconds, of the last half of which as many are refused
        clock.now += 0.0025
        pace.answer("a")
        assert i < 4000 or pace.refuse("a") == (0, 0)
    waits = [pace.refuse(str(i)).after_s for i in range(1500)]
    assert 0.9 < waits[-1] <= 1
    clock.now += 60  # nothing is answered, as it takes long
    waits = [pace.refuse(str(i)).after_s for i in range(60)]
    assert waits[48] == 0 < waits[51] <= 0.1 <= waits[-1] < 0.2


def test_a_flood_is_many_a_second():
    clock = Clock()
    pace = RefusalThrottle(clock=clock)
    for _ in range(200):
        clock.now += 1 / 40
        pace.refuse("a")
        assert not pace.is_flooded
    for _ in range(200):
        clock.now += 1 / 80
        pace.refuse("a")
    assert pace.is_flooded
    clock.now += 2
    assert not pace.is_flooded


@given(st.lists(st.floats(0, 0.1), min_size=1, max_size=300), st.floats(4, 1000))
def test_no_wait_is_longer_than_a_second_and_the_rate_holds(pauses: list[float], rate: float):
    """Those that wait come out as the rate says, but for those who waited longest."""
    clock = Clock()
    pace = RefusalThrottle(rate, clock)
    heard: Counter[int] = Counter()
    for i, pause in enumerate(pauses):
        clock.now += pause
        before_s, wait_s = pace.refuse(str(i))
        assert before_s == 0 <= wait_s <= 1 + 1e-9
        if 0 < wait_s < 0.9:
            heard[round((clock.now + wait_s) / 0.05)] += 1
    assert all(count <= rate * 0.05 + 1 for count in heard.values())


@pytest.fixture
def refusing() -> Iterator[tuple[str, list[int]]]:
    """A server that refuses everything, one a second of a client; and those it delayed."""
    delayed: list[int] = []

    async def refuse(scope, receive, send):
        kind = scope["path"].strip("/")
        set_state(scope, RequestState("r", problem=kind))
        body = kind.encode()
        length = [(b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 429, "headers": length})
        await send({"type": "http.response.body", "body": body})

    app = ThrottleMiddleware(refuse, RefusalThrottle(2), lambda: delayed.append(1))
    config = uvicorn.Config(app, log_config=None, lifespan="off", http="httptools")
    with closing(socket.create_server(("127.0.0.1", 0))) as listening:
        server = uvicorn.Server(config)
        thread = threading.Thread(target=asyncio.run, args=[server.serve([listening])])
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}", delayed
        finally:
            server.should_exit = True
            thread.join()


def test_a_refusal_is_whole_at_once_and_its_connection_heard_later(refusing):
    url, delayed = refusing
    with httpx.Client(base_url=url) as one, httpx.Client(base_url=url) as other:
        began = time.monotonic()
        assert one.get("/queue-full").text == "queue-full"
        refused_s = time.monotonic() - began
        assert other.get("/rate-exceeded").text == "rate-exceeded"
        other_s = time.monotonic() - began
        assert one.get("/rate-exceeded").text == "rate-exceeded"
        again_s = time.monotonic() - began
    assert refused_s < other_s < 0.4 < again_s
    assert delayed == [1]


def test_a_client_that_is_refused_again_and_again_waits_for_the_response(refusing):
    url, delayed = refusing
    began = time.monotonic()
    for _ in range(3):  # each on a connection of its own
        assert httpx.get(f"{url}/queue-full").text == "queue-full"
    assert 1 < time.monotonic() - began < 4  # the third one
    assert httpx.get(f"{url}/rate-exceeded").text == "rate-exceeded"
    assert delayed == [1] * 3


def test_what_is_refused_for_another_reason_is_heard_at_once(refusing):
    url, delayed = refusing
    with httpx.Client(base_url=url) as client:
        for _ in range(50):
            assert client.get("/rate-exceeded").status_code == 429
    assert delayed == []


def test_whoever_leaves_meanwhile_is_missed_by_nobody(refusing):
    url, delayed = refusing
    for _ in range(3):
        with httpx.Client(base_url=url) as client:
            assert client.get("/queue-full").status_code == 429
    with httpx.Client(base_url=url) as client:
        assert client.get("/other").status_code == 429
    assert len(delayed) == 3


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
        scope = {"type": "http", "path": path, "client": ("192.0.2.1", 1)}
        set_state(scope, RequestState("r"))
        asyncio.run(app(scope, None, ignore))  # type: ignore[arg-type]
    # Five of late are 2.5 a second, and for each one may be refused.
    wait_s = sum(pace.refuse("192.0.2.1"))
    assert wait_s < 0.3 if counts else wait_s > 0.9
