"""What two servers share in Redis, and what each does while it is away, full or slow."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable

import pytest

from service.payload import ResponsePayload
from service.storage.cache import LocalCache
from service.storage.cache_redis import RedisCache
from service.storage.limiter import TokenBucket
from service.storage.limiter_redis import RedisLimiter
from service.storage.redis_client import RedisClient, RedisUnavailableError
from tests.support.redis_server import RedisServer, open_client

RedisStart = Callable[..., RedisServer]
ANSWER = ResponsePayload("image/png", b'{"a":1}', b"\x89PNG\x00", phases=("read", "compute"))
KEY, OTHER = b"\x00\xffk", b"o"


async def in_redis(server: RedisServer, pattern: str, count: int) -> None:
    async with asyncio.timeout(10):
        while len(server.client.keys(pattern)) < count:
            await asyncio.sleep(0.005)


def test_what_one_server_answered_another_knows(redis_server: RedisStart) -> None:
    async def play() -> None:
        server = redis_server()
        async with open_client(server) as one, open_client(server) as two:
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
        async with open_client(server) as link:
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
        async with open_client(server) as link:
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
        async with open_client(server, 5.0) as link:
            cache = RedisCache(link, LocalCache(1 << 20))
            await asyncio.gather(*[cache.get(bytes([i % 256, i // 256])) for i in range(500)])
            assert link.is_available
            assert server.client.info("clients")["connected_clients"] < 100  # type: ignore[index]
        async with open_client(server, 1e-4) as link:  # too short for any: that is no failure
            limiter = RedisLimiter(link)
            await asyncio.gather(*[limiter.take("k", 1, TokenBucket(9, 1)) for _ in range(500)])

    asyncio.run(play())


def test_one_slow_answer_is_doubted_at_once(redis_server: RedisStart) -> None:
    async def play() -> None:
        server = redis_server()
        async with open_client(server, 0.5) as link:
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
        async with open_client(server) as link:
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
        async with open_client(server) as one, open_client(server) as two:
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
        async with open_client(redis_server(), 5) as link:
            limiter, limit = RedisLimiter(link), TokenBucket(capacity=10, refill_per_s=1e-3)
            late = await asyncio.gather(*[limiter.take("k", 1, limit) for _ in range(50)])
            assert late.count(0) == 10

    asyncio.run(play())


def test_a_redis_that_refuses_all_is_not_available(redis_server: RedisStart) -> None:
    server = redis_server()
    server.client.config_set("requirepass", "secret-word")
    link = RedisClient(server.url, 1.0)
    with pytest.raises(RedisUnavailableError), link.guard("cache"):
        link.blocking_client.ping()
    assert not link.is_available
