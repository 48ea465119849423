"""Memories that servers share in Redis, and what each of them does while it is away."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from service.errors import Problem
from service.storage.memories import MemoryStore
from service.storage.memories_redis import RedisMemoryStore
from service.storage.redis_client import RedisClient
from tests.support.memory_peers import Peer, card_of, file_of, open_memory_store
from tests.support.redis_server import RedisServer, open_client
from tests.support.server import Server, answers_with, wait_until

RedisStart = Callable[..., RedisServer]
OpenStore = Callable[..., RedisMemoryStore]


@pytest.fixture
def store_on(tmp_path: Path) -> OpenStore:
    """The store of a server by this name, with room for three memories of each key."""

    def open_one(link: RedisClient, name: str) -> RedisMemoryStore:
        return open_memory_store(link, tmp_path / name, 3)

    return open_one


def test_a_memory_stored_on_one_server_is_on_all(
    redis_server: RedisStart, store_on: OpenStore
) -> None:
    server = redis_server()
    links = [RedisClient(server.url, 1.0) for _ in range(2)]
    one, two = (store_on(link, name) for link, name in zip(links, "ab", strict=True))
    empty = one.fingerprint()
    assert one.put("m", file_of(0))
    assert one.fingerprint() == two.fingerprint() != empty
    assert two.get("m")[0] == one.get("m")[0]
    assert not two.put("m", file_of(1))
    assert one.get("m")[0] == two.get("m")[0]
    assert one.scoped_to("alice").put("m", file_of(2))
    assert two.scoped_to("alice").get("m")[0].sha256 != two.get("m")[0].sha256
    assert list(two.scoped_to("alice").list_cards()) == ["m"]
    assert two.put("n", file_of(3))
    assert two.put("l", file_of(3))  # those of another key do not count
    two.delete("l")
    assert two.put("l", file_of(5))
    with pytest.raises(Problem) as error:
        two.put("o", file_of(4))
    assert (
        error.value.detail
        == "At most 3 memories (BASIN_MAX_MEMORIES) may be stored per API key. Delete one first."
    )
    two.delete("l")
    two.delete("m")
    for store in (one, two):
        with pytest.raises(Problem):
            store.get("m")
        with pytest.raises(Problem):
            store.delete("m")
    assert list(one.list_cards()) == ["n"]


@pytest.mark.parametrize("is_shared", [False, True])
def test_bytes_of_one_key_leave_as_many_to_others(
    redis_server: RedisStart, tmp_path: Path, is_shared: bool
) -> None:
    size = len(file_of(0))
    limits = tmp_path / "ships", tmp_path / "own", 10, 7 * size
    if is_shared:
        store: MemoryStore = RedisMemoryStore(*limits, RedisClient(redis_server().url, 1.0))
    else:
        store = MemoryStore(*limits)
    alice, bob = store.scoped_to("alice"), store.scoped_to("bob")
    assert [alice.put(name, file_of(0)) for name in "abc"] == [True] * 3
    with pytest.raises(Problem, match="store-full") as error:
        alice.put("d", file_of(0))
    assert "BASIN_MAX_MEMORY_BYTES" in error.value.detail
    assert not alice.put("c", file_of(1))  # in the place of another
    assert [bob.put(name, file_of(0)) for name in "ab"] == [True] * 2
    with pytest.raises(Problem, match="store-full"):
        bob.put("c", file_of(0))
    # Without keys there is one owner, of all that is free.
    assert [store.put(name, file_of(0)) for name in "ab"] == [True] * 2
    with pytest.raises(Problem, match="store-full") as error:
        store.put("c", file_of(0))
    assert "together" in error.value.detail


def test_what_a_writer_writes_now_is_not_cleaned_away(
    redis_server: RedisStart, store_on: OpenStore
) -> None:
    link = RedisClient(redis_server().url, 1.0)
    store = store_on(link, "a")
    store.put("m", file_of(0))
    [kept] = store._root.rglob("m*")
    old, new = (kept.with_name(f".partial-{name}") for name in ("old", "new"))
    for path in (old, new):
        path.write_bytes(b"half")
    os.utime(old, (0, 0))
    store.prepare()
    assert new.exists()
    assert not old.exists()


def test_while_redis_is_away_memories_are_read_and_not_stored(
    redis_server: RedisStart, store_on: OpenStore
) -> None:
    async def play() -> None:
        server = redis_server()
        async with open_client(server) as link, open_client(server) as other:
            store = store_on(link, "a")
            store.put("m", file_of(0))
            card = store.get("m")[0]
            server.kill()
            assert store.get("m")[0] == card
            for act in (lambda: store.put("n", file_of(1)), lambda: store.delete("m")):
                with pytest.raises(Problem) as error:
                    act()
                assert error.value.kind == "memories-unavailable"
            again = store_on(link, "a")  # a server that starts meanwhile
            assert again.get("m")[0] == card
            server.start()
            store_on(other, "b").delete("m")
            await link.probe()
            for found in (store, again):
                with pytest.raises(Problem):
                    found.get("m")

    asyncio.run(play())


def test_a_redis_that_lost_its_memories_gets_them_back(
    redis_server: RedisStart, store_on: OpenStore
) -> None:
    server = redis_server()
    links = [RedisClient(server.url, 1.0) for _ in range(2)]
    one, two = (store_on(link, name) for link, name in zip(links, "ab", strict=True))
    one.put("m", file_of(0))
    card = two.get("m")[0]
    server.client.flushall()
    assert one.get("m")[0] == card
    assert two.get("m")[0] == card
    assert server.client.hlen("basin:memories") == 1
    two.delete("m")
    assert one.list_cards() == two.list_cards() == {}


def test_a_server_whose_disk_is_full_tells_nothing_old(
    redis_server: RedisStart,
    store_on: OpenStore,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    server = redis_server()
    store = store_on(RedisClient(server.url, 1.0), "a")
    store.put("m", file_of(0))
    monkeypatch.setattr("service.storage.memory_sync._AGAIN_S", 0.0)
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        assert not store.put("m", file_of(1))  # Redis has it
        with pytest.raises(Problem) as error:
            store.get("m")
        assert error.value.kind == "memories-unavailable"
        assert store.list_cards() == {}
    assert store.get("m")[0] == card_of(1)


def test_what_others_write_into_redis_is_no_path_and_no_memory(
    redis_server: RedisStart, store_on: OpenStore, tmp_path: Path
) -> None:
    server = redis_server()
    store = store_on(RedisClient(server.url, 1.0), "a")
    for field in ("../../out", "/etc/x", "a/b/c", "..", "A", "a/../b", "x\x00y"):
        raw = file_of(0)
        server.client.hset("basin:memories", field, hashlib.sha256(raw).hexdigest())
        server.client.set(f"basin:memory:{field}", raw)
    server.client.hset("basin:memories", "altered", "0" * 64)
    server.client.set("basin:memory:altered", file_of(1))
    server.client.hset("basin:memories", "junk", hashlib.sha256(b"\x80\x04.").hexdigest())
    server.client.set("basin:memory:junk", b"\x80\x04.")
    assert store.list_cards() == {}
    assert not list(tmp_path.rglob("*.safetensors"))


def test_a_server_copies_what_no_request_asks_for(
    start: Callable[..., Server], checkpoints: Path, redis_server: RedisStart, tmp_path: Path
) -> None:
    redis = redis_server()
    server = start(checkpoints=checkpoints, redis_url=redis.url, memory_store=tmp_path / "own")
    wait_until(lambda: answers_with(server, "/health/ready", 200))
    other = Peer(redis, tmp_path / "peer")
    other.store.put("m", file_of(0))
    copy = tmp_path / "own-of-redis" / "m.safetensors"
    wait_until(copy.is_file, 30)
