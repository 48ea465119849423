"""PUT, GET and DELETE /memories/{id}."""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from models.memories import MEMORY_FILE_SUFFIX, Memory, MemoryCard, dump_memory
from service.endpoints.memories.schemas import MemoryBody, MemoryList
from tests.service.endpoints.anomaly.test_bad_input import check
from tests.service.endpoints.sample.test_api import PATTERNS, QUICK, answer, post, tensors
from tests.support.bad_score_bodies import SECRET
from tests.support.bad_tensor_bodies import SAFETENSORS
from tests.support.memory_peers import flip

VECTORS = {"patterns": PATTERNS.tolist(), "licence": "MIT", "note": "random"}


@pytest.fixture(scope="module")
def store(start, tmp_path_factory, checkpoints, wait, answers):
    """A server with room for three memories of 4 KB, and its folder."""
    folder: Path = tmp_path_factory.mktemp("store") / "memories"
    folder.mkdir()
    (folder / ".partial-abc").write_bytes(b"left by a writer that was killed")
    os.utime(folder / ".partial-abc", (0, 0))
    one = start(checkpoints=checkpoints, memory_store=folder, max_memories=3, max_memory_bytes=4096)
    wait(lambda: answers(one, "/health/ready", 200))
    with one.client() as client:
        yield client, folder
    assert not list(folder.glob(".partial-*"))


@pytest.fixture
def client(store):
    client, _ = store
    yield client
    for memory in client.get("/memories").json()["memories"]:
        if memory["id"] not in ("mnist-3", "rrm"):
            assert client.delete(f"/memories/{memory['id']}").status_code == 204


def put(client, name, content, content_type="application/json"):
    raw = content if isinstance(content, bytes) else json.dumps(content).encode()
    headers = {"content-type": content_type}
    return client.put(f"/memories/{name}", content=raw, headers=headers)


def test_what_ships(client):
    listed = MemoryList.model_validate_json(client.get("/memories").content).memories
    assert {m.id: (m.kind, m.patterns, m.dim) for m in listed} == {
        "mnist-3": ("images", 100, 784),
        "rrm": ("sequences", 68, 59),
    }
    assert all(memory.licence and memory.note for memory in listed)
    for name in ("mnist-3", "rrm"):
        check(put(client, name, VECTORS), 409, "memory-ships")
        check(put(client, name, b"{"), 409, "memory-ships")  # before there is a body to read
        check(client.delete(f"/memories/{name}"), 409, "memory-ships")


def test_a_memory_is_stored_replaced_sampled_and_forgotten(client):
    created = put(client, "my.own_1", VECTORS)
    assert created.status_code == 201
    body = MemoryBody.model_validate_json(created.content)
    assert (body.id, body.kind, body.licence, body.note) == ("my.own_1", "vectors", "MIT", "random")
    assert client.get("/memories/my.own_1").json() == created.json()
    by_id = answer(post(client, {**QUICK, "memory": "my.own_1"}))
    inline = answer(post(client, {**QUICK, "memory": {"patterns": PATTERNS.tolist()}}))
    assert by_id["samples"] == inline["samples"]
    assert by_id["memory"] == inline["memory"] | {"id": "my.own_1"}
    replaced = put(client, "my.own_1", {"patterns": (2 * PATTERNS[:4]).tolist()})
    assert replaced.status_code == 200
    assert replaced.json()["patterns"] == 4
    after = answer(post(client, {**QUICK, "memory": "my.own_1"}))
    assert after["memory"]["sha256"] == replaced.json()["sha256"]
    assert client.delete("/memories/my.own_1").status_code == 204
    check(client.get("/memories/my.own_1"), 404, "unknown-memory")
    check(client.delete("/memories/my.own_1"), 404, "unknown-memory")
    check(post(client, {**QUICK, "memory": "my.own_1"}), 404, "unknown-memory")


def test_the_items_come_back_as_they_were(client):
    images = np.random.default_rng(0).integers(0, 256, (5, 3, 4, 3)).astype(np.uint8)
    request = {"kind": "images", "licence": "CC0"}
    created = put(client, "images", tensors(request, patterns=images), SAFETENSORS)
    assert created.status_code == 201, created.text
    assert created.json()["shape"] == [3, 4, 3]
    raw = client.get("/memories/images", headers={"accept": SAFETENSORS})
    assert raw.headers["content-type"] == SAFETENSORS
    assert np.array_equal(safetensors.numpy.load(raw.content)["items"], images)
    cold = {**QUICK, "memory": "images", "beta": 1e6, "num_samples": 5, "chains": 5}
    samples = np.array(answer(post(client, cold))["samples"])
    gaps = np.abs(samples[:, None] - images / 255).max((2, 3, 4))
    assert gaps.min(1).max() < 0.1
    check(client.get("/memories/images", headers={"accept": "image/png"}), 406, "not-acceptable")


def test_sequences_are_stored(client):
    created = put(client, "family", {"sequences": ["ACD-", "AWDE", "MCDE"], "note": "made up"})
    assert created.status_code == 201
    assert created.json()["kind"] == "sequences"


def test_a_stored_memory_outlives_the_server(client, store, start, checkpoints, wait, answers):
    put(client, "durable", VECTORS)
    other = start(checkpoints=checkpoints, memory_store=store[1])
    wait(lambda: answers(other, "/memories/durable", 200))
    with other.client() as reader:
        assert reader.get("/memories/durable").json() == client.get("/memories/durable").json()


@pytest.mark.parametrize(
    "name", ["UPPER", "a b", ".hidden", "-x", "a..b", "a%2Fb", "a" * 65, "%2e%2e", "a%00", "ü"]
)
def test_ids_that_are_none(client, store, name):
    response = put(client, name, VECTORS)
    assert response.status_code in (404, 422), response.text
    assert response.headers["content-type"] == "application/problem+json"
    assert SECRET not in response.text
    assert {p.name for p in store[1].iterdir()} <= {f"durable{MEMORY_FILE_SUFFIX}"}
    check(client.get(f"/memories/{name}"), 404, client.get(f"/memories/{name}").json()["type"][18:])


def test_memories_that_are_none(client, store):
    for content, status, kind in (
        ({"patterns": [[0.0, 0.0]]}, 422, "invalid-memory"),
        ({"patterns": [[1.0], [2.0]]}, 422, "invalid-memory"),
        ({"note": "x"}, 422, "invalid-memory"),
        ({**VECTORS, "note": 7}, 422, "invalid-request"),
        ({**VECTORS, "note": "x" * 2001}, 422, "invalid-request"),
        ({**VECTORS, "colour": SECRET}, 422, "invalid-request"),
        (b"{", 400, "invalid-json"),
    ):
        check(put(client, "bad", content), status, kind)
    check(put(client, "bad", b"{}", "text/plain"), 415, "unsupported-media-type")
    check(put(client, "bad", b"xx", SAFETENSORS), 400, "invalid-safetensors")
    check(put(client, "bad", tensors({"note": "x"}), SAFETENSORS), 422, "invalid-memory")
    assert not list(store[1].glob("bad*"))


def test_quotas(client):
    for name in "abc":
        assert put(client, name, VECTORS).status_code == 201
    check(put(client, "d", VECTORS), 507, "store-full")
    assert put(client, "a", VECTORS).status_code == 200  # replacing takes no room
    big = {"patterns": np.random.default_rng(0).standard_normal((20, 60)).tolist()}
    check(put(client, "a", big), 507, "store-full")
    assert client.get("/memories/a").json()["patterns"] == 8


def test_readers_never_see_half_a_memory(client):
    """Two versions written in turn while others read."""
    versions = [{"patterns": PATTERNS.tolist()}, {"patterns": PATTERNS[:3].tolist()}]
    hashes = {put(client, "turn", version).json()["sha256"] for version in versions}

    def write(i):
        return put(client, "turn", versions[i % 2]).status_code

    def read(_):
        return answer(post(client, {**QUICK, "memory": "turn"}))["memory"]["sha256"]

    with ThreadPoolExecutor(4) as pool:
        writing, reading = pool.map(write, range(20)), pool.map(read, range(20))
        assert set(writing) == {200}
        assert set(reading) <= hashes


def test_an_altered_file_is_not_sampled(client, store):
    put(client, "altered", VECTORS)
    path = store[1] / f"altered{MEMORY_FILE_SUFFIX}"
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)
    check(post(client, {**QUICK, "memory": "altered"}), 503, "memory-damaged")


@pytest.fixture(scope="module")
def hasty(start, tmp_path_factory, checkpoints, wait, answers):
    """A server with little patience, and its folder."""
    folder: Path = tmp_path_factory.mktemp("hasty")
    one = start(checkpoints=checkpoints, memory_store=folder, deadline_s=0.1)
    wait(lambda: answers(one, "/health/ready", 200))
    with one.client() as client:
        yield client, folder


def test_a_memory_that_takes_too_long_is_not_stored(hasty, wait):
    client, folder = hasty
    letters = np.random.default_rng(0).choice(list("ACDEFGHIKLMNPQRSTVWY"), (800, 200))
    check(put(client, "slow", {"sequences": ["".join(row) for row in letters]}), 504, "deadline")
    check(client.get("/memories/slow"), 404, "unknown-memory")
    wait(lambda: put(client, "quick", VECTORS).status_code < 300)  # others are, again
    assert not (folder / f"slow{MEMORY_FILE_SUFFIX}").exists()
    told = client.get("/openapi.json").json()["paths"]["/memories/{id}"]["put"]["responses"]
    assert {"429", "504"} <= told.keys()


def test_a_memory_that_is_replaced_while_it_is_sent(hasty, wait):
    client, folder = hasty
    items = np.random.default_rng(0).standard_normal((1000, 4000)).astype(np.float32)
    raw = dump_memory(items, MemoryCard.from_memory(Memory.from_items("vectors", items), items))
    path = folder / f"large{MEMORY_FILE_SUFFIX}"
    path.write_bytes(raw)
    with client.stream("GET", "/memories/large", headers={"accept": SAFETENSORS}) as response:
        assert response.headers["content-type"] == SAFETENSORS
        assert int(response.headers["content-length"]) == len(raw)
        parts = response.iter_bytes()
        first = next(parts)
        wait(lambda: put(client, "large", VECTORS).status_code == 200)
        assert first + b"".join(parts) == raw
    assert client.get("/memories/large").json()["patterns"] == len(PATTERNS)


def test_a_damaged_file_is_not_sent(store, client):
    assert put(client, "damaged", VECTORS).status_code == 201
    flip(store[1] / "damaged.safetensors")
    for accept in ("application/json", SAFETENSORS):
        assert client.get("/memories/damaged", headers={"accept": accept}).status_code == 503
    assert put(client, "damaged", VECTORS).status_code == 200
    assert client.get("/memories/damaged").status_code == 200
