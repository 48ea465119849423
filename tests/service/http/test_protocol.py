"""Requests as bytes, valid, broken or cut: each is parsed or refused, and the server stays up."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.raw_http import (
    LIVE,
    build_score_body,
    build_score_request,
    check_refused,
    connect,
    encode_chunks,
    exchange,
    read_results,
)
from tests.support.server import Server, gauge, wait_until

pytestmark = pytest.mark.usefixtures("stays_up")


@pytest.fixture(scope="module")
def server(strict: Server) -> Server:
    return strict


def test_a_body_in_chunks_is_a_body(server, sample):
    plain, body = build_score_request(
        sample, "Connection: close", f"Content-Length: {len(build_score_body(sample))}"
    )
    whole = read_results(exchange(server, plain, body))
    head, _ = build_score_request(sample, "Connection: close", "Transfer-Encoding: chunked")
    padded = body + b" " * (65_536 - len(body))
    for raw in (
        encode_chunks(body, 1000) + b"\r\n",
        encode_chunks(body, 1000, b";name=value") + b"\r\n",
        encode_chunks(body, 1000) + b"Trailer: t\r\n\r\n",
        encode_chunks(padded, 1) + b"\r\n",  # 65,536 of them
    ):
        assert read_results(exchange(server, head, raw)) == whole


@pytest.mark.parametrize(
    "raw",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # TLS
        b"\x00" * 100,
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999999999999999\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked, gzip\r\n\r\n0\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost : h\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\n folded: x\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nx: \x00\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"NOSUCH / HTTP/1.1\r\n\r\n",
    ],
)
def test_what_is_no_http(server, raw):
    check_refused(exchange(server, raw), 400, "bad-request")


@pytest.mark.parametrize("size", [b"zz", b"-1", b"fffffffffffffffff", b"", b"0x5"])
def test_a_chunk_of_no_size(server, sample, size):
    head, _ = build_score_request(sample, "Transfer-Encoding: chunked")
    check_refused(exchange(server, head, size + b"\r\nhello\r\n0\r\n\r\n"), 400, "bad-request")


def test_the_head_of_what_has_no_body_comes_too(server):
    with connect(server) as line:
        for _ in range(2):
            line.sendall(LIVE.replace(b"GET", b"HEAD") + b"\r\n")
            answer = line.recv(1 << 16)
            assert answer.startswith(b"HTTP/1.1 200 ")
            assert answer.endswith(b"\r\n\r\n")


def test_a_request_to_go_on_is_answered(server, sample):
    size = f"Content-Length: {len(build_score_body(sample))}"
    head, body = build_score_request(sample, "Expect: 100-continue", "Connection: close", size)
    with connect(server) as line:
        line.sendall(head)
        assert line.recv(1 << 16) == b"HTTP/1.1 100 Continue\r\n\r\n"
        line.sendall(body)
        answer = b"".join(iter(lambda: line.recv(1 << 16), b""))
    assert read_results(answer)


def test_requests_one_behind_the_other(server):
    one = LIVE + b"\r\n"
    raw = exchange(server, one * 20 + LIVE + b"Connection: close\r\n\r\n")
    assert raw.count(b"HTTP/1.1 200 OK") == 21
    raw = exchange(server, one * 3 + b"nonsense\r\n\r\n")
    assert raw.count(b"HTTP/1.1 200 OK") == 3  # what came before is answered, and first
    check_refused(raw[raw.index(b"HTTP/1.1 400 ") :], 400, "bad-request")
    raw = exchange(server, one * 5000)
    assert raw.count(b"HTTP/1.1 200 OK") < 100


def test_a_broken_request_is_not_the_answer_of_the_one_before(server, sample):
    head, body = build_score_request(sample, f"Content-Length: {len(build_score_body(sample))}")
    raw = exchange(server, head + body + b"nonsense\r\n\r\n")
    first, _, rest = raw.partition(b"HTTP/1.1 400 ")
    assert read_results(first)
    check_refused(b"HTTP/1.1 400 " + rest, 400, "bad-request")


@pytest.mark.parametrize(
    "next_one", [b"CONNECT h:1 HTTP/1.1\r\n\r\n", b"GET http://h HTTP/1.1\r\n\r\n"]
)
def test_what_follows_does_not_answer_for_what_came_before(server, sample, next_one):
    head, body = build_score_request(sample, f"Content-Length: {len(build_score_body(sample))}")
    raw = exchange(server, head + body + next_one)
    assert read_results(raw.partition(b"HTTP/1.1 4")[0])


@pytest.mark.parametrize("in_chunks", [False, True])
@pytest.mark.parametrize("pieces", [1, 2, 50])
def test_whoever_asks_for_another_protocol_is_answered_in_this_one(
    server, sample, in_chunks, pieces
):
    """As Java's client asks, each time. Its body is a body, and what follows is the next."""
    asks = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAEAAEAA")
    body = build_score_body(sample)
    size = "Transfer-Encoding: chunked" if in_chunks else f"Content-Length: {len(body)}"
    head, _ = build_score_request(sample, *asks, size)
    sent = head + (encode_chunks(body, 1000) + b"\r\n" if in_chunks else body)
    plain, _ = build_score_request(sample, "Connection: close", f"Content-Length: {len(body)}")
    every = sent + LIVE + b"Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n" + plain + body
    cut = [every[len(every) * i // pieces : len(every) * (i + 1) // pieces] for i in range(pieces)]
    answers = exchange(server, *cut).split(b"HTTP/1.1 ")[1:]
    assert [answer[:6] for answer in answers] == [b"200 OK"] * 3
    whole = read_results(exchange(server, plain, body))
    assert (
        read_results(b"HTTP/1.1 " + answers[0]) == read_results(b"HTTP/1.1 " + answers[2]) == whole
    )


def test_a_body_is_not_the_request_that_it_looks_like(server):
    inner = LIVE + b"Connection: close\r\n\r\n"
    asks = b"Connection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: %d\r\n\r\n" % len(inner)
    raw = exchange(
        server, b"POST /health/live HTTP/1.1\r\nHost: localhost\r\n" + asks, inner, inner
    )
    assert [each[:3] for each in raw.split(b"HTTP/1.1 ")[1:]] == [b"405", b"200"]


def test_hanging_up_ends_what_is_answered_whatever_waits_behind(server):
    payload = (
        b'{"memory": "mnist-3", "steps": 100000, "burn_in": 0, "thin": 1000, "num_samples": 50}'
    )
    lines = ("POST /sample HTTP/1.1", "Host: localhost", "Content-Type: application/json")
    head = "\r\n".join((*lines, f"Content-Length: {len(payload)}", "", "")).encode()
    with connect(server) as line:
        line.sendall(head + payload + LIVE + b"\r\n")
        wait_until(lambda: gauge(server, "basin_queue_depth") == 1)
    began = time.monotonic()
    wait_until(lambda: gauge(server, "basin_queue_depth") == 0)
    assert time.monotonic() - began < 5


def test_the_last_that_may_wait_is_answered(server, sample):
    head, body = build_score_request(sample, f"Content-Length: {len(build_score_body(sample))}")
    raw = exchange(server, head + body + (LIVE + b"\r\n") * 40)
    assert raw.count(b"HTTP/1.1 200 OK") == 1 + 32
    check_refused(raw[raw.index(b"HTTP/1.1 400 ") :], 400, "bad-request")


def test_a_client_that_says_no_more_is_answered_or_left(server, sample):
    head, body = build_score_request(
        sample, f"Content-Length: {len(build_score_body(sample))}", "Connection: close"
    )
    for raw in (
        exchange(server, head, body, half_closed=True),
        exchange(server, head, body[:100], half_closed=True),
        exchange(server, LIVE, half_closed=True),
    ):
        assert raw == b"" or raw.startswith(b"HTTP/1.1 ")


@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.data())
def test_bytes_at_random(server, data):
    """A good request with bytes changed, cut out, doubled or put in."""
    body = b'{"graph": {"x": [[0, 0, 0, 0, 0]], "edge_index": [[], []]}}'
    good = (
        b"POST /anomaly/score HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\nConnection: close\r\n\r\n%b" % (len(body), body)
    )
    raw = bytearray(good)
    for _ in range(data.draw(st.integers(1, 6))):
        at = data.draw(st.integers(0, len(raw)))
        change = data.draw(st.sampled_from(("put", "cut", "double", "flip")))
        some = data.draw(st.binary(min_size=1, max_size=8))
        if change == "put":
            raw[at:at] = some
        elif change == "cut":
            del raw[at : at + len(some)]
        elif change == "double":
            raw[at:at] = raw[max(at - 20, 0) : at]
        else:
            raw[at : at + 1] = some[:1]
    got = exchange(server, bytes(raw), half_closed=True)
    assert got == b"" or re.match(rb"HTTP/1\.1 (200|4\d\d|5\d\d) ", got), got[:200]
    assert b" 500 " not in got[:20]
