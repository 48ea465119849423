"""Answers that are given again, and keys of requests that come again."""

from __future__ import annotations

import asyncio
import io
import json
import secrets
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import httpx
import numpy as np
import pytest
import safetensors.numpy
from PIL import Image

from service.payload import ResponsePayload, make_tensors_payload
from service.storage.cache import LocalCache
from service.storage.jobs.request import StoredRequest
from tests.service.endpoints.anomaly.test_bad_input import check
from tests.service.endpoints.complete.test_api import as_form
from tests.service.endpoints.complete.test_api import body as picture
from tests.service.endpoints.jobs.test_api import begin, over
from tests.service.endpoints.sample.test_api import ENDLESS, PATTERNS, body
from tests.support.bad_tensor_bodies import SAFETENSORS
from tests.support.prometheus import families, value
from tests.support.server import answers_with, depth, wait_until

OWN = ("timings_ms", "request_id")


@pytest.fixture(scope="module")
def caching(start, checkpoints, tmp_path_factory):
    server = start(
        checkpoints=checkpoints,
        default_anomaly_model="et-small",
        default_classify_model="cdat-mol",
        default_completion_model="et-tile",
        cache_bytes=1 << 20,
        queue_size=0,
        memory_store=tmp_path_factory.mktemp("memories"),
    )
    wait_until(lambda: answers_with(server, "/health/ready", 200))
    return server


@pytest.fixture
def client(caching):
    with caching.client() as client:
        yield client


def is_hit(response: httpx.Response) -> bool:
    assert response.status_code == 200, response.text
    return response.headers.get("x-cache") == "hit"


def split(told: dict) -> tuple[dict, dict]:
    """What an answer shares with all that are the same, and what is its own."""
    return (
        {name: part for name, part in told.items() if name not in OWN},
        {name: told[name] for name in OWN},
    )


def in_json(response):
    return split(response.json())


def in_tensors(response):
    size = int.from_bytes(response.content[:8], "little")
    metadata = json.loads(response.content[8 : 8 + size])["__metadata__"]
    told, own = split(json.loads(metadata["response"]))
    arrays = safetensors.numpy.load(response.content)
    return told | {name: array.tolist() for name, array in arrays.items()}, own


def in_png(response):
    with Image.open(io.BytesIO(response.content)) as image:
        told, own = split(json.loads(image.text["basin"]))
        return told | {"pixels": np.array(image).tolist()}, own


def test_an_answer_is_given_again_and_signed_anew(client, sample):
    tensors, png = {"accept": SAFETENSORS}, {"accept": "image/png"}
    asked = [
        ("/anomaly/score", sample(1).arrays(), {}, in_json),
        ("/anomaly/score", sample(1).arrays(include=["attention"]), tensors, in_tensors),
        ("/classify", {"smiles": ["CCO", "?"], "include": ["trace"]}, {}, in_json),
        ("/complete", picture(), {}, in_json),
        ("/complete", picture(), png, in_png),
        ("/sample", body(), {}, in_json),
        ("/sample", body(), tensors, in_tensors),
    ]
    before = families(client)["basin_cache"]
    for path, content, headers, read in asked:
        ids = [{"x-request-id": name} for name in ("first", "second")]
        first, second = (client.post(path, json=content, headers=headers | id) for id in ids)
        assert (is_hit(first), is_hit(second)) == (False, True)
        assert first.headers["content-type"] == second.headers["content-type"]
        (told, own), (told_again, own_again) = read(first), read(second)
        assert told_again == told
        assert (own["request_id"], own_again["request_id"]) == ("first", "second")
        assert own_again["timings_ms"].keys() == own["timings_ms"].keys()
        assert own_again["timings_ms"]["compute"] == 0 < own["timings_ms"]["compute"]
        assert "compute" not in second.headers["server-timing"]
    after = families(client)["basin_cache"]
    for outcome in ("hit", "miss"):
        grown = [value(f, "_total", outcome=outcome) for f in (before, after)]
        assert grown[1] - grown[0] == len(asked)
    assert value(after, "_total", outcome="hit", route="/sample") == 2
    assert 0 < value(families(client)["basin_cache_bytes"]) <= 1 << 20


def test_whatever_differs_is_another_request(client):
    def asked(path="/sample", content=None, **headers):
        raw = json.dumps(content or body(seed=9)).encode()
        headers = {"content-type": "application/json"} | headers
        return is_hit(client.post(path, content=raw, headers=headers))

    assert not asked()
    for other in (
        {"content": body(seed=10)},
        {"path": "/sample?a=1"},
        {"accept": SAFETENSORS},
        {"content-type": "application/json; charset=utf-8"},
    ):
        assert not asked(**other)
        assert asked(**other)
    assert asked()


def test_features_of_edges_are_part_of_the_request(client, sample):
    one = sample(1, 2, edge_features=2)
    other = replace(one, edge_attr=2 * one.edge_attr)
    for shape in ("arrays", "rows"):
        bodies = [getattr(each, shape)(model="et-edges") for each in (one, other)]
        first, second = (client.post("/anomaly/score", json=body) for body in bodies)
        assert (is_hit(first), is_hit(second)) == (False, False)
        assert first.json()["results"] != second.json()["results"]
        assert is_hit(client.post("/anomaly/score", json=bodies[1]))


def test_a_form_is_known_by_its_parts(client):
    assert not is_hit(as_form(client))
    assert is_hit(as_form(client))  # with a boundary of its own
    assert not is_hit(as_form(client, num_samples="2"))


def test_an_answer_stands_on_the_memory_it_is_of(client):
    content, found = body() | {"memory": "mine"}, []
    for scale in (1, 2):
        put = client.put("/memories/mine", json={"patterns": (scale * PATTERNS).tolist()})
        assert put.status_code in (200, 201)
        first, second = (client.post("/sample", json=content) for _ in range(2))
        assert (is_hit(first), is_hit(second)) == (False, True)
        assert first.json()["samples"] == second.json()["samples"]
        found.append(np.array(first.json()["samples"]))
    np.testing.assert_allclose(found[1], 2 * found[0], rtol=1e-4)
    client.delete("/memories/mine")
    check(client.post("/sample", json=content), 404, "unknown-memory")


def test_what_was_refused_or_is_streamed_is_not_kept(client):
    for _ in range(2):
        check(client.post("/sample", json=body(beta=-1)), 422, "invalid-request")
    for _ in range(2):
        response = client.post("/complete", json=picture(), headers={"accept": "text/event-stream"})
        assert not is_hit(response)
        assert "event: done" in response.text


def test_an_answer_needs_no_place(client, caching, wait):
    client.post("/sample", json=body(seed=3))
    job = begin(client, "/sample", ENDLESS)
    wait(lambda: depth(caching) == 1)
    assert is_hit(client.post("/sample", json=body(seed=3)))
    check(client.post("/sample", json=body(seed=4)), 429, "queue-full")
    client.delete(f"/jobs/{job['id']}")
    wait(lambda: depth(caching) == 0)


def test_a_job_is_answered_from_it_too(client, wait):
    first = client.post("/sample", json=body(seed=6))
    result = client.get(over(client, wait, begin(client, "/sample", body(seed=6)))["result"])
    assert is_hit(result)
    assert in_json(result)[0] == in_json(first)[0]


def test_a_key_is_of_one_request(client, wait):
    for headers in ({}, {"prefer": "respond-async"}):
        headers |= {"idempotency-key": f'"{secrets.token_hex(8)}"'}
        first, again = (client.post("/sample", json=body(), headers=headers) for _ in range(2))
        assert first.status_code == again.status_code == (202 if "prefer" in headers else 200)
        if "prefer" in headers:
            assert first.headers["location"] == again.headers["location"]
            over(client, wait, first.json())
            late = client.post("/sample", json=body(), headers=headers)
            assert (late.status_code, late.json()["id"]) == (202, first.json()["id"])
            assert late.json()["status"] == "done"
        check(client.post("/sample", json=body(seed=8), headers=headers), 422, "key-reused")


@pytest.mark.parametrize("key", ["", '""', '"', 'a"b', '"é"', "x" * 256, "a b"])
@pytest.mark.parametrize("prefer", [{}, {"prefer": "respond-async"}])
def test_a_key_that_is_none(client, key, prefer):
    headers = {"idempotency-key": key.encode("latin-1"), **prefer}
    check(client.post("/sample", json=body(), headers=headers), 400, "bad-request")


def test_at_once_a_key_is_in_use(idle, wait):
    headers = {"idempotency-key": "one-at-a-time"}
    with idle.client() as client, idle.client() as other, ThreadPoolExecutor(1) as pool:
        first = pool.submit(client.post, "/sample", json=ENDLESS, headers=headers)
        wait(lambda: depth(idle) == 1)
        check(other.post("/sample", json=ENDLESS, headers=headers), 409, "key-in-use")
        check(other.post("/sample", json=body(), headers=headers), 422, "key-reused")
        assert first.result().status_code == 504


def test_keys_of_one_job_sent_at_once_have_one_job(client):
    headers = {"idempotency-key": secrets.token_hex(8), "prefer": "respond-async"}
    with ThreadPoolExecutor(8) as pool:
        sent = [pool.submit(client.post, "/sample", json=body(), headers=headers) for _ in range(8)]
    assert len({each.result().json()["id"] for each in sent}) == 1


async def _held(cache: LocalCache, *keys: bytes) -> list[bool]:
    return [await cache.get(key) is not None for key in keys]


def test_what_was_not_asked_for_the_longest_goes_first():
    async def play() -> None:
        cache = LocalCache(10_000)
        for key in (b"a", b"b", b"c"):
            await cache.put(key, ResponsePayload("t", b"x" * 1900))
        assert await _held(cache, b"a", b"b", b"c") == [True] * 3
        await cache.get(b"a")
        for key in (b"d", b"e"):
            await cache.put(key, ResponsePayload("t", b"x" * 1900))
        assert await _held(cache, b"a", b"b", b"d", b"e") == [True, False, True, True]
        assert cache.size_bytes <= 10_000
        await cache.put(b"f", ResponsePayload("t", b"x" * 2000))  # more than its share
        assert await _held(cache, b"f") == [False]

    asyncio.run(play())


def test_a_signed_file_holds_the_same_tensors():
    arrays = {"a": np.arange(5, dtype=np.int8), "b": np.ones((2, 3)), "c": np.zeros((0, 2))}
    for told in ({"x": "é"}, {"x": "y" * 7}):
        raw = make_tensors_payload(arrays, told).render({"total": 1.0}, "id")
        assert (8 + int.from_bytes(raw[:8], "little")) % 8 == 0
        loaded = safetensors.numpy.load(raw)
        assert all(np.array_equal(loaded[name], array) for name, array in arrays.items())


def test_fingerprints():
    def fingerprint(body=b"", kind="application/json", **changes):
        sent = {"method": "POST", "path": "/", "query": b""} | changes
        return StoredRequest(**sent, headers=(("content-type", kind),)).fingerprint(body)

    def form(boundary: str, *parts: bytes, kind="multipart/form-data") -> bytes:
        line = b"--" + boundary.encode()
        return fingerprint(line + line.join(parts), f"{kind}; boundary={boundary}")

    assert form("a", b"1", b"2") == form("b", b"1", b"2")
    assert form("a", b"1", b"2") != form("b", b"12")
    assert form("a", b"1--b", b"2") != form("b", b"1", b"--a2")
    assert form("a", b"1") != form("b", b"1", kind="text/plain")
    assert len({form("a", *parts) for parts in ((b"1", b"2", b"3"), (b"12", b"3"), (b"123",))}) == 3
    every = [{}, {"body": b"x"}, {"kind": "x"}, {"method": "PUT"}, {"path": "/x"}, {"query": b"x"}]
    assert len({fingerprint(**changes) for changes in every}) == len(every)
