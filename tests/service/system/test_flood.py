"""Many who are refused and ask again at once: told in few words, and never for what they asked."""

from __future__ import annotations

import json
import re
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress

import httpx
import pytest

from service.endpoints.routers import INFERENCE
from service.http.request_log import security_headers
from tests.service.endpoints.anomaly.test_bad_input import check
from tests.service.system.test_load import send
from tests.support.checkpoints import Sample
from tests.support.prometheus import families, value
from tests.support.server import Server, answers_with, depth, gauge, wait_until

COMPUTING = {route.path for router in INFERENCE for route in router.routes}
FLOOD = 200  # two seconds remember enough of it


@pytest.fixture(scope="module")
def server(start, checkpoints) -> Server:
    """One place, and answers are kept."""
    one = start(
        checkpoints=checkpoints,
        default_anomaly_model="et-small",
        max_steps=100_000_000,
        queue_size=0,
        cache_bytes=1 << 20,
    )
    wait_until(lambda: answers_with(one, "/health/ready", 200))
    return one


@pytest.fixture
def full(server: Server, sample: Callable[..., Sample]) -> Iterator[socket.socket]:
    """What has the place, until it is closed; and a flood of those who want it."""
    running = send(server, sample(1).arrays(dynamics={"steps": 100_000_000}))
    wait_until(lambda: depth(server) == 1)
    try:
        with httpx.Client(base_url=server.url) as client:
            for seed in range(FLOOD):
                answer = client.post(f"/anomaly/score?timeout_ms={seed + 1}", json={})
                assert answer.status_code == 429
        yield running
    finally:
        running.close()
        wait_until(lambda: depth(server) == 0)


def head(path: str, length: int, *lines: str) -> bytes:
    fields = "\r\n".join(["Host: localhost", "Content-Type: application/json", *lines])
    return f"POST {path} HTTP/1.1\r\n{fields}\r\nContent-Length: {length}\r\n\r\n".encode()


def replies(line: socket.socket, count: int) -> list[bytes]:
    """The heads of so many answers with their bodies."""
    raw, found = b"", list[bytes]()
    while len(found) < count:
        parted = raw.partition(b"\r\n\r\n")
        if parted[1]:
            (length,) = (
                int(told.partition(b":")[2])
                for told in parted[0].split(b"\r\n")
                if told.lower().startswith(b"content-length:")
            )
            if len(parted[2]) >= length:
                found.append(raw[: len(parted[0]) + 4 + length])
                raw = parted[2][length:]
                continue
        got = line.recv(1 << 16)
        assert got, "it was closed"
        raw += got
    assert not raw
    return found


@pytest.mark.parametrize("path", sorted(COMPUTING))
def test_it_is_told_what_it_always_is(full, server, path):
    with server.client() as client:
        before = families(client)
        told = {"x-request-id": "mine"}
        answer = client.post(f"{path}?timeout_ms=7", content=b"no JSON", headers=told)
        after = families(client)
        problem = check(answer, 429, "queue-full")
    assert problem.request_id == answer.headers["x-request-id"] == "mine"
    assert int(answer.headers["retry-after"]) >= 1
    assert security_headers().items() <= answer.headers.items()
    assert "date" in answer.headers
    label = {"route": path, "status": "429"}
    counted = [value(each["basin_requests"], "_total", **label) for each in (before, after)]
    assert counted[1] - counted[0] == 1
    # By the wire: nothing but what is counted comes of it.
    assert not any(line.get("request_id") == "mine" for line in server.log_lines())


def test_they_are_all_routes_that_compute_in_one_way(server):
    with server.client() as client:
        paths = client.get("/openapi.json").json()["paths"]
    others = ("/v2/", "/graphs/", "/memories/")
    posts = {path for path, of in paths.items() if "post" in of and not path.startswith(others)}
    assert posts == COMPUTING


def test_a_body_that_comes_late_is_no_request(full, server, sample):
    body = json.dumps(sample(2).arrays()).encode()
    with socket.create_connection(("127.0.0.1", server.port), 20) as line:
        line.sendall(head("/anomaly/score", len(body)))
        assert replies(line, 1)[0].startswith(b"HTTP/1.1 429 ")
        line.sendall(body[:100])
        line.sendall(body[100:] + head("/anomaly/score", 2))
        assert replies(line, 1)[0].startswith(b"HTTP/1.1 429 ")
        line.sendall(b"{}GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert replies(line, 1)[0].startswith(b"HTTP/1.1 200 ")


def test_requests_at_once_are_answered_in_their_order(full, server):
    asked = head("/anomaly/score", 2, "X-Request-ID: a") + b"{}"
    asked += b"GET /health/live HTTP/1.1\r\nHost: localhost\r\nX-Request-ID: b\r\n\r\n"
    asked += head("/anomaly/score", 2, "X-Request-ID: c") + b"{}"
    with socket.create_connection(("127.0.0.1", server.port), 20) as line:
        line.sendall(asked)
        told = replies(line, 3)
    assert [reply.split(b" ")[1] for reply in told] == [b"429", b"200", b"429"]
    for name, reply in zip("abc", told, strict=True):
        assert f"x-request-id: {name}\r\n".encode() in reply


def test_what_follows_a_refusal_that_is_held_keeps_its_order(full, server, sample):
    """All come in one piece: a job takes longer to promise than what stands behind it to answer."""
    later = json.dumps(sample(5).arrays()).encode()
    live = b"GET /health/live HTTP/1.1\r\nHost: localhost\r\nX-Request-ID: z\r\n\r\n"
    asked = b"".join(head("/anomaly/score", 2, f"X-Request-ID: {i}") + b"{}" for i in range(30))
    promised = head("/anomaly/score", len(later), "X-Request-ID: y", "Prefer: respond-async")
    with server.client() as client:
        before = value(families(client)["basin_refusals_held"], "_total")
        for _ in range(4):  # what may come at once is used up, however slow the flood was
            with socket.create_connection(("127.0.0.1", server.port), 60) as line:
                line.sendall(asked)
                replies(line, 30)
        with socket.create_connection(("127.0.0.1", server.port), 60) as line:
            line.sendall(asked + promised + later + live)
            told = replies(line, 32)
        after = value(families(client)["basin_refusals_held"], "_total")
        # Or it takes the place once that is free, and the next test wants it.
        (at,) = re.findall(rb"\r\nlocation: (\S+)\r\n", told[30])
        assert client.delete(at.decode()).status_code in (200, 204)
    names = [*map(str, range(30)), "y", "z"]
    for name, reply in zip(names, told, strict=True):
        assert f"x-request-id: {name}\r\n".encode() in reply
    assert [reply.split(b" ")[1] for reply in told] == [b"429"] * 30 + [b"202", b"200"]
    assert after > before


def test_whoever_wants_it_closed_has_it_closed(full, server):
    with socket.create_connection(("127.0.0.1", server.port), 20) as line:
        line.sendall(head("/anomaly/score", 2, "Connection: close") + b"{}")
        got = b"".join(iter(lambda: line.recv(1 << 16), b""))
    assert got.startswith(b"HTTP/1.1 429 ")
    assert b"connection: close" in got.lower()


def test_what_is_left_of_a_body_is_read_by_nobody(full, server):
    """Nor is it the next request, however long its sender takes and whatever it looks like."""
    body, live = head("/anomaly/score", 0), b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n"
    where = ("127.0.0.1", server.port)
    with ExitStack() as opened:
        lines = [opened.enter_context(socket.create_connection(where, 60)) for _ in range(60)]
        for line in lines:
            line.sendall(head("/anomaly/score", 3 * len(body)) + body)
        for line in lines:
            assert replies(line, 1)[0].startswith(b"HTTP/1.1 429 ")
            line.sendall(body)
        for line in lines:
            line.sendall(body + live)
            assert replies(line, 1)[0].startswith(b"HTTP/1.1 200 ")


def test_what_comes_with_a_refusal_has_all_its_time(full, server, sample):
    """The refusal is over at once; a connection without a request ends after five seconds."""
    with server.client() as client:
        later = client.post(
            "/anomaly/score", json=sample(6).arrays(), headers={"prefer": "respond-async"}
        )
        at = later.headers["location"]
        events = f"GET {at}/events HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n"
        with socket.create_connection(("127.0.0.1", server.port), 20) as line:
            line.sendall(head("/anomaly/score", 2) + b"{}" + events.encode())
            assert line.recv(1 << 16).startswith(b"HTTP/1.1 429 ")
            line.settimeout(7)
            got, began = b"", time.monotonic()
            with suppress(TimeoutError):
                while (some := line.recv(1 << 16)) and time.monotonic() - began < 7:
                    got += some
            assert time.monotonic() - began > 6, "it was cut off"
        assert client.delete(at).status_code in (200, 204)


def test_a_job_is_still_promised(full, server, sample):
    with server.client() as client:
        later = client.post(
            "/anomaly/score", json=sample(3).arrays(), headers={"prefer": "respond-async"}
        )
        assert later.status_code == 202
        assert client.delete(later.headers["location"]).status_code in (200, 204)


def test_what_computes_nothing_is_answered(full, server):
    with server.client() as client:
        assert client.get("/models").status_code == 200
        assert client.get("/anomaly/score").status_code == 405
        assert client.post("/no/such/path", json={}).status_code == 404


def test_once_there_is_room_the_next_is_answered_on_the_same_connection(full, server, sample):
    with server.client() as client:
        one = sample(4).arrays()
        assert client.post("/anomaly/score", json=one).status_code == 429
        full.close()
        wait_until(lambda: gauge(server, "basin_queue_depth") == 0)
        assert client.post("/anomaly/score", json=one).status_code == 200
        assert client.post("/anomaly/score", json=one).headers["x-cache"] == "hit"


@pytest.fixture
def crowd(server: Server) -> Iterator[list[socket.socket]]:
    """Connections that are accepted before there is a flood, which is soon forgotten."""
    with ExitStack() as opened:
        where = ("127.0.0.1", server.port)
        yield [opened.enter_context(socket.create_connection(where, 20)) for _ in range(40)]


def test_what_waits_behind_another_takes_no_place(crowd, full, server, sample):
    """Nor does what is told something else than that there is none: others have it meanwhile."""
    one, other = crowd[:2]
    body = json.dumps(sample(200).arrays()).encode()
    live = b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n"
    behind = head("/anomaly/score", 2) + b"{}"
    full.close()
    wait_until(lambda: gauge(server, "basin_queue_depth") == 0)
    server.process.send_signal(signal.SIGSTOP)
    one.sendall(live + 20 * behind)
    other.sendall(head("/anomaly/score", len(body)) + body)
    server.process.send_signal(signal.SIGCONT)
    assert replies(other, 1)[0].startswith(b"HTTP/1.1 200 ")
