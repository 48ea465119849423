"""What two servers share in Redis, and what each does while it is away, full or slow."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest

from models.memories import Memory, MemoryCard, dump_memory, load_memory
from service.errors import Problem
from service.payload import ResponsePayload
from service.storage.cache import LocalCache
from service.storage.cache_redis import RedisCache
from service.storage.limiter import TokenBucket
from service.storage.limiter_redis import RedisLimiter
from service.storage.memories import MemoryStore
from service.storage.memories_redis import RedisMemoryStore
from service.storage.redis_client import RedisClient, RedisUnavailableError
from tests.support.redis_server import RedisServer

RedisStart = Callable[..., RedisServer]
ANSWER = ResponsePayload("image/png", b'{"a":1}', b"\x89PNG\x00", phases=("read", "compute"))
KEY, OTHER = b"\x00\xffk", b"o"


@asynccontextmanager
async def linked(server: RedisServer, timeout_s: float = 0.3) -> AsyncIterator[RedisClient]:
    link = RedisClient(server.url, timeout_s)
    try:
        yield link
    finally:
        await link.close()


async def in_redis(server: RedisServer, pattern: str, count: int) -> None:
    async with asyncio.timeout(10):
        while len(server.client.keys(pattern)) < count:
            await asyncio.sleep(0.005)


def test_what_one_server_answered_another_knows(redis_server: RedisStart) -> None:
    async def play() -> None:
        server = redis_server()
        async with linked(server) as one, linked(server) as two:
            first = RedisCache(one, LocalCache(1 << 20))
            second = RedisCache(two, LocalCache(1 << 20))
            assert await second.get(KEY) is None
            await first.put(KEY, ANSWER)
            await in_redis(server, "basin:answer:*", 1)
            assert await second.get(KEY) == ANSWER
            assert await second.get(OTHER) is None
            server.kill()  # now it has an answer of its own
            assert await second.get(KEY) == ANSWER

    asyncio.run(play())


def test_an_answer_that_is_not_of_the_key_is_none(redis_server: RedisStart) -> None:
    async def play() -> None:
        server = redis_server()
        async with linked(server) as link:
            await RedisCache(link, LocalCache(1 << 20)).put(KEY, ANSWER)
            await in_redis(server, "basin:answer:*", 1)
            [name] = server.client.keys("basin:answer:*")
            kept = server.client.get(name)
            assert isinstance(kept, bytes)
            other = b"basin:answer:" + hashlib.sha256(OTHER).digest()
            for wrong in (kept, b"", b"\x00\x00\x00\x02{}", b"\xff" * 9, kept[:-12], b"\x80\x04."):
                server.client.set(other, wrong)
                assert await RedisCache(link, LocalCache(1 << 20)).get(OTHER) is None

    asyncio.run(play())


def test_without_redis_a_server_remembers_by_itself(redis_server: RedisStart) -> None:
    async def play() -> None:
        server = redis_server()
        async with linked(server) as link:
            cache = RedisCache(link, LocalCache(1 << 20))
            server.kill()
            await cache.put(KEY, ANSWER)
            assert await cache.get(KEY) == ANSWER
            assert await cache.get(OTHER) is None
            assert not link.is_available
            await link.probe()
            assert not link.is_available
            server.start()
            await link.probe()
            assert link.is_available
            await cache.put(OTHER, ANSWER)
            await in_redis(server, "basin:answer:*", 1)

    asyncio.run(play())


def test_nobody_waits_for_a_redis_that_hangs_but_the_first(redis_server: RedisStart) -> None:
    async def play() -> None:
        server = redis_server()
        failed: list[str] = []
        link = RedisClient(server.url, 0.2, lambda event, part, number: failed.append(part))
        cache = RedisCache(link, LocalCache(1 << 20))
        assert await cache.get(KEY) is None
        server.pause()
        began = time.monotonic()
        assert await cache.get(KEY) is None
        assert 0.15 < time.monotonic() - began < 2
        began = time.monotonic()
        for _ in range(100):
            assert await cache.get(KEY) is None
        assert time.monotonic() - began < 0.15
        assert failed == ["cache"]
        server.resume()
        await link.probe()
        assert link.is_available
        await link.close()

    asyncio.run(play())


def test_many_that_ask_at_once_are_no_failure_of_redis(redis_server: RedisStart) -> None:
    async def play() -> None:
        server = redis_server()
        async with linked(server, 5.0) as link:
            cache = RedisCache(link, LocalCache(1 << 20))
            await asyncio.gather(*[cache.get(bytes([i % 256, i // 256])) for i in range(500)])
            assert link.is_available
            assert server.client.info("clients")["connected_clients"] < 100  # type: ignore[index]
        async with linked(server, 1e-4) as link:  # and where there is no time, nobody is blamed
            limiter = RedisLimiter(link)
            await asyncio.gather(*[limiter.take("k", 1, TokenBucket(9, 1)) for _ in range(500)])

    asyncio.run(play())


def test_one_slow_answer_is_doubted_at_once(redis_server: RedisStart) -> None:
    async def play() -> None:
        server = redis_server()
        async with linked(server, 0.5) as link:
            watching = asyncio.create_task(link.watch())
            await asyncio.sleep(0.1)
            server.pause()
            with pytest.raises(RedisUnavailableError), link.guard("cache"):
                await link.async_client.get("x")
            server.resume()
            assert not link.is_available
            async with asyncio.timeout(0.9):  # sooner than the next second
                while not link.is_available:
                    await asyncio.sleep(0.005)
            server.kill()
            async with asyncio.timeout(5):  # though nobody asks
                while link.is_available:
                    await asyncio.sleep(0.005)
            await asyncio.sleep(1.5)
            server.start()
            async with asyncio.timeout(5):
                while not link.is_available:
                    await asyncio.sleep(0.005)
            watching.cancel()

    asyncio.run(play())


def test_servers_that_answer_otherwise_share_nothing(redis_server: RedisStart) -> None:
    async def play() -> None:
        server = redis_server()
        async with linked(server) as link:
            await RedisCache(link, LocalCache(1 << 20), b"one").put(KEY, ANSWER)
            await in_redis(server, "basin:answer:*", 1)
            assert await RedisCache(link, LocalCache(1 << 20), b"one").get(KEY) == ANSWER
            assert await RedisCache(link, LocalCache(1 << 20), b"two").get(KEY) is None

    asyncio.run(play())


def test_a_redis_that_is_full_takes_no_answers_and_is_not_away(redis_server: RedisStart) -> None:
    async def play() -> None:
        server = redis_server()
        server.client.config_set("maxmemory", 1)
        failed: list[str] = []
        link = RedisClient(server.url, 1.0, lambda event, part, number: failed.append(part))
        cache = RedisCache(link, LocalCache(1 << 20))
        await cache.put(KEY, ANSWER)
        async with asyncio.timeout(10):
            while not failed:
                await asyncio.sleep(0.005)
        assert link.is_available
        assert await cache.get(KEY) == ANSWER
        assert await RedisLimiter(link).take("k", 1, TokenBucket(2, 1)) == 0  # counted here
        assert set(failed) == {"cache", "limits"}
        await link.close()

    asyncio.run(play())


def test_buckets_that_all_servers_take_from(redis_server: RedisStart) -> None:
    async def play() -> None:
        server = redis_server()
        limit = TokenBucket(capacity=5, refill_per_s=0.01)
        async with linked(server) as one, linked(server) as two:
            first, second = RedisLimiter(one), RedisLimiter(two)
            assert await first.take("k", 3, limit) == 0
            assert await second.take("k", 2, limit) == 0
            late = await first.take("k", 1, limit)
            assert 99 < late <= 100  # seconds until one is back
            assert await first.take("other", 5, limit) == 0
            assert await first.take("k", 6, limit) == float("inf")
            await second.refund("k", 2, limit)
            assert await first.take("k", 2, limit) == 0
            assert await second.take("k", 0.5, limit) > 49
            assert server.client.pttl("basin:k") == -1  # answers make room, not what was used up
            server.client.script_flush()
            assert await first.take("k", 1, limit) > 90

    asyncio.run(play())


def test_many_at_once_take_no_more_than_there_is(redis_server: RedisStart) -> None:
    async def play() -> None:
        async with linked(redis_server(), 5) as link:
            limiter, limit = RedisLimiter(link), TokenBucket(capacity=10, refill_per_s=1e-3)
            late = await asyncio.gather(*[limiter.take("k", 1, limit) for _ in range(50)])
            assert late.count(0) == 10

    asyncio.run(play())


def file_of(seed: int) -> bytes:
    items = np.random.default_rng(seed).standard_normal((20, 6)).astype(np.float32)
    return dump_memory(items, MemoryCard.from_memory(Memory.from_items("vectors", items), items))


@pytest.fixture
def store_on(tmp_path: Path) -> Callable[..., RedisMemoryStore]:
    """The store of a server by this name."""

    def one(link: RedisClient, name: str, most: int = 3) -> RedisMemoryStore:
        store = RedisMemoryStore(tmp_path / "ships", tmp_path / name / "own", most, 1 << 20, link)
        store.prepare()
        return store

    return one


def test_a_memory_stored_on_one_server_is_on_all(
    redis_server: RedisStart, store_on: Callable[..., RedisMemoryStore]
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
    redis_server: RedisStart, store_on: Callable[..., RedisMemoryStore]
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
    redis_server: RedisStart, store_on: Callable[..., RedisMemoryStore]
) -> None:
    async def play() -> None:
        server = redis_server()
        async with linked(server) as link, linked(server) as other:
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
    redis_server: RedisStart, store_on: Callable[..., RedisMemoryStore]
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
    store_on: Callable[..., RedisMemoryStore],
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
    assert store.get("m")[0] == load_memory(file_of(1))[0]


def test_what_others_write_into_redis_is_no_path_and_no_memory(
    redis_server: RedisStart, store_on: Callable[..., RedisMemoryStore], tmp_path: Path
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


def test_what_redis_refuses_is_told(redis_server: RedisStart) -> None:
    server = redis_server()
    server.client.config_set("requirepass", "secret-word")
    link = RedisClient(server.url, 1.0)
    with pytest.raises(RedisUnavailableError), link.guard("cache"):
        link.blocking_client.ping()
    assert not link.is_available
