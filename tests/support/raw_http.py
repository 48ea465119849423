"""HTTP as bytes on a socket: what a client may send that no library would."""

from __future__ import annotations

import json
import socket

from service.http.request_log import security_headers
from tests.support.server import Server

LIVE = b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n"


def connect(server: Server, address: str = "") -> socket.socket:
    """Connect to a server, from an address of its own where one is given."""
    source = (address, 0) if address else None
    return socket.create_connection(("127.0.0.1", server.port), 20, source)


def exchange(server: Server, *parts: bytes, half_closed: bool = False) -> bytes:
    """All that comes back until the server closes."""
    with connect(server) as line:
        try:
            for part in parts:
                line.sendall(part)
            if half_closed:
                line.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # it has closed, and perhaps said why
        got = b""
        try:
            while part := line.recv(1 << 16):
                got += part
        except ConnectionResetError:
            pass
        return got


def check_refused(raw: bytes, status: int, kind: str) -> None:
    head, _, body = raw.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    assert first.startswith(f"HTTP/1.1 {status} ")
    headers = dict(line.split(": ", 1) for line in lines)
    assert headers.items() >= security_headers().items()
    assert headers["content-type"] == "application/problem+json"
    assert int(headers["content-length"]) == len(body)
    problem = json.loads(body)
    assert problem["type"] == f"urn:basin:problem:{kind}"
    assert problem["request_id"] == headers["x-request-id"]


def build_score_body(sample) -> bytes:
    return json.dumps(sample(1).arrays()).encode()


def build_score_request(sample, *headers: str) -> tuple[bytes, bytes]:
    body = build_score_body(sample)
    lines = (
        "POST /anomaly/score HTTP/1.1",
        "Host: localhost",
        "Content-Type: application/json",
        *headers,
    )
    return "\r\n".join((*lines, "", "")).encode(), body


def encode_chunks(body: bytes, size: int, extension: bytes = b"") -> bytes:
    parts = (body[i : i + size] for i in range(0, len(body), size))
    return b"".join(b"%x%b\r\n%b\r\n" % (len(part), extension, part) for part in parts) + b"0\r\n"


def read_results(raw: bytes) -> object:
    assert raw.startswith(b"HTTP/1.1 200 ")
    return json.loads(raw.partition(b"\r\n\r\n")[2])["results"]
