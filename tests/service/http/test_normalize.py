"""HEAD, trailing slashes, compressed responses and idle connections."""

from __future__ import annotations

import gzip
import json
import time
from http.client import HTTPConnection

import httpx
import pytest

from tests.service.endpoints.sample.test_api import ENDLESS
from tests.support.server import Server


def test_head_is_get_without_a_body_on_every_route(server: Server) -> None:
    with server.client() as client:
        document = client.get("/openapi.json").json()
        paths = [path for path, methods in document["paths"].items() if "get" in methods]
        assert len(paths) > 10
        for path in ["/openapi.json", "/docs", *paths]:
            url = path.replace("{name}", "et-small").replace("{id}", "mnist-3")
            if "{" in url:
                continue
            got, head = client.get(url), client.head(url)
            assert head.status_code == got.status_code, url
            assert head.content == b""
            assert head.headers["content-type"] == got.headers["content-type"]
            if "metrics" not in url and not url.startswith("/health"):
                assert head.headers["content-length"] == got.headers["content-length"]
        assert client.head("/anomaly/score").status_code == 405


def test_head_of_a_stream_of_events_ends(server: Server) -> None:
    with server.client() as client:
        job = client.post("/sample", json=ENDLESS, headers={"prefer": "respond-async"}).json()
        path = f"/jobs/{job['id']}/events"
        start = time.monotonic()
        head = client.head(path, timeout=10)
        assert time.monotonic() - start < 5
        assert (head.status_code, head.content) == (200, b"")
        client.delete(f"/jobs/{job['id']}")


def test_a_trailing_slash_is_none(server: Server) -> None:
    with server.client() as client:
        assert client.get("/models/").json() == client.get("/models").json()
        assert client.post("/classify/", json={"smiles": "CCO"}).status_code == 200


def test_large_json_is_compressed_where_the_client_reads_that(server: Server) -> None:
    body = {"smiles": ["CCO"] * 100, "model": "cdat-mol"}
    with httpx.Client(base_url=server.url, headers={"accept-encoding": "identity"}) as client:
        plain = client.post("/classify", json=body)
        assert "content-encoding" not in plain.headers
        small = client.get("/health/live", headers={"accept-encoding": "gzip"})
        assert "content-encoding" not in small.headers
        headers = {"accept-encoding": "gzip"}
        with client.stream("POST", "/classify", json=body, headers=headers) as answer:
            raw = b"".join(answer.iter_raw())
        assert answer.headers["content-encoding"] == "gzip"
        assert len(raw) < len(plain.content) / 2
        results = json.loads(gzip.decompress(raw))["results"]
        assert [r["predictions"] for r in results] == [
            r["predictions"] for r in plain.json()["results"]
        ]
        tensors = {"accept": "application/vnd.safetensors", **headers}
        answer = client.post("/classify", json=body, headers=tensors)
        assert "content-encoding" not in answer.headers


@pytest.mark.parametrize("seconds", [1, 5.2])
def test_an_idle_connection_stays_open(server: Server, seconds: float) -> None:
    """Longer than uvicorn's five seconds, which proxies before it do not expect."""
    line = HTTPConnection("127.0.0.1", server.port, timeout=5)
    line.connect()
    socket = line.sock
    for wait in (seconds, 0):
        line.request("GET", "/health/live")
        assert line.getresponse().read() == b'{"status":"ok"}'
        assert line.sock is socket
        time.sleep(wait)
    line.close()
