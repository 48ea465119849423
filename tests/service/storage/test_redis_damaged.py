"""What another program, a damaged disk or a wrong clock left in Redis is dropped and counted."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

import httpx
import pytest
from structlog.testing import capture_logs

from service.payload import ResponsePayload
from service.storage.cache import LocalCache
from service.storage.cache_redis import RedisCache
from service.storage.limiter import TokenBucket
from service.storage.limiter_redis import RedisLimiter
from service.storage.redis_client import RedisClient
from tests.support.checkpoints import make_sample
from tests.support.redis_server import RedisServer
from tests.support.server import Start, answers_with, wait_until

RedisStart = Callable[..., RedisServer]
ANSWER = ResponsePayload(
    "application/json", b'{"a":1}', b"\x00file", phases=("read",), headers=(("x-a", "b"),)
)
KEY, OTHER = b"\x00\xffk", b"o"
NAME = b"basin:answer:" + hashlib.sha256(KEY).digest()
RATE = TokenBucket(capacity=5, refill_per_s=5)
QUOTA = TokenBucket(capacity=1000, refill_per_s=10)


@asynccontextmanager
async def linked(server: RedisServer) -> AsyncIterator[tuple[RedisClient, list[str]]]:
    """A client, and the parts for which it counted a damaged value."""
    damaged: list[str] = []
    link = RedisClient(server.url, 1.0, count=lambda event, part, number: damaged.append(part))
    try:
        yield link, damaged
    finally:
        await link.close()


async def read_anew(link: RedisClient, key: bytes = KEY) -> ResponsePayload | None:
    """As a server does that has just started."""
    return await RedisCache(link, LocalCache(1 << 20)).get(key)


async def write_entry(server: RedisServer, link: RedisClient, answer: ResponsePayload) -> bytes:
    await RedisCache(link, LocalCache(1 << 20)).put(KEY, answer)
    async with asyncio.timeout(10):
        while (entry := server.client.get(NAME)) is None:
            await asyncio.sleep(0.005)
    assert isinstance(entry, bytes)
    return entry


def with_head(entry: bytes, **changes: object) -> bytes:
    end = 4 + int.from_bytes(entry[:4])
    head = json.dumps(json.loads(entry[4:end]) | changes, separators=(",", ":")).encode()
    return len(head).to_bytes(4) + head + entry[end:]


def with_digest(entry: bytes, key: bytes = KEY) -> bytes:
    """As a server of another version might write it: whole, but in another format."""
    content, key_hash = entry[:-32], hashlib.sha256(key).digest()
    return content + hashlib.blake2b(content, digest_size=32, key=key_hash).digest()


def test_every_flipped_bit_of_an_answer_is_noticed(redis_server: RedisStart) -> None:
    async def play() -> None:
        server = redis_server()
        async with linked(server) as (link, damaged):
            entry = await write_entry(server, link, ANSWER)
            assert await read_anew(link) == ANSWER
            for position in range(8 * len(entry)):
                flipped = bytearray(entry)
                flipped[position // 8] ^= 1 << position % 8
                server.client.set(NAME, bytes(flipped))
                assert await read_anew(link) is None, position
                assert not server.client.exists(NAME)
            assert damaged == ["cache"] * 8 * len(entry)
            server.client.set(NAME, entry)
            assert await read_anew(link) == ANSWER

    asyncio.run(play())


def test_values_that_no_server_wrote_are_dropped_and_replaced(redis_server: RedisStart) -> None:
    async def play() -> None:
        server = redis_server()
        async with linked(server) as (link, damaged):
            entry = await write_entry(server, link, ANSWER)
            end = 4 + int.from_bytes(entry[:4])
            values = [
                with_head(entry, headers=[["a", "b\r\nset-cookie: x=1"]]),
                with_head(entry, headers=[["content-length", "1"]]),
                with_head(entry, headers=[["x\u20ac", "1"]]),
                with_head(entry, headers=5),
                with_head(entry, type="text/html\u20ac"),
                with_head(entry, type=None),
                with_head(entry, phases=["\r\nx"]),
                with_head(entry, document_bytes=2),
                with_head(entry, document_bytes=-5),
                with_head(entry, document_bytes=10**30),
                *(entry[:length] for length in (1, 3, 4, end, len(entry) - 32, len(entry) - 1)),
                *(b"\x00\x00\x00\x02[]", b"\xff" * 9, b"\x80\x04.", b"x" * (2 << 20)),
                *(entry + b"x", os.urandom(100)),
                with_digest(entry, OTHER),  # whole, but of another key
                with_digest(with_head(entry, format=1)),  # whole, but of another version
                with_digest(entry[:-40] + entry[-32:]),  # shorter than it says
            ]
            for number, value in enumerate(values):
                server.client.set(NAME, value)
                assert await read_anew(link) is None, number
                assert not server.client.exists(NAME), number
            assert damaged == ["cache"] * len(values)
            for write in (server.client.lpush, server.client.sadd):
                write(NAME, b"x")
                assert await read_anew(link) is None
                assert not server.client.exists(NAME)
            assert damaged == ["cache"] * (len(values) + 2)
            assert link.is_available

            server.client.set(NAME, b"")  # no entry, and no obstacle to one
            assert await read_anew(link) is None
            await RedisCache(link, LocalCache(1 << 20)).put(KEY, ANSWER)
            async with asyncio.timeout(10):
                while server.client.get(NAME) != entry:
                    await asyncio.sleep(0.005)
            assert await read_anew(link) == ANSWER

    asyncio.run(play())


def test_answers_of_any_kind_are_read_as_they_were_written(redis_server: RedisStart) -> None:
    async def play() -> None:
        server, random_bytes = redis_server(), random.Random(0).randbytes
        kinds = (
            replace(ANSWER, document=b"", phases=(), headers=()),
            replace(ANSWER, file=b""),
            replace(ANSWER, document=b"", file=b""),
            replace(ANSWER, media_type="image/png", file=random_bytes(1 << 19)),
            replace(ANSWER, headers=(("a", "1"), ("a", "2"))),
        )
        async with linked(server) as (link, damaged):
            for answer in kinds:
                server.client.delete(NAME)
                await write_entry(server, link, answer)
                assert await read_anew(link) == answer
            assert damaged == []

    asyncio.run(play())


def test_a_damaged_value_is_logged_once_and_counted_each_time(redis_server: RedisStart) -> None:
    async def play() -> None:
        server = redis_server()
        async with linked(server) as (link, damaged):
            with capture_logs() as logs:
                for _ in range(3):
                    server.client.set(NAME, b"secret-word")
                    assert await read_anew(link) is None
                link.report_damaged("graphs", "g", "damaged")
            assert damaged == ["cache"] * 3 + ["graphs"]
            assert [(log["part"], log["key"]) for log in logs] == [
                ("cache", hashlib.sha256(KEY).hexdigest()),
                ("graphs", "g"),
            ]
            assert "secret-word" not in str(logs)

    asyncio.run(play())


@pytest.mark.parametrize(
    ("name", "limit", "amount"), [("rate:t", RATE, 1), ("quota:t", QUOTA, 400)]
)
def test_a_clock_that_was_ahead_leaves_an_empty_bucket(
    redis_server: RedisStart, name: str, limit: TokenBucket, amount: float
) -> None:
    async def play() -> None:
        server, key = redis_server(), f"basin:{name}"
        content_s = limit.capacity / limit.refill_per_s
        async with linked(server) as (link, damaged):
            limiter = RedisLimiter(link)
            for ahead_s in (content_s + 5, 3600.2, 1e9, 1e300):
                now = server.client.time()[0]
                server.client.set(key, f"{now + ahead_s:.6f}")
                late_s = await limiter.take(name, amount, limit)
                assert late_s == pytest.approx(amount / limit.refill_per_s, abs=0.01)
                # It fills from now on, although nothing was taken.
                await asyncio.sleep(0.05)
                assert await limiter.take(name, amount, limit) < late_s - 0.04
            assert damaged == ["limits"] * 4

    asyncio.run(play())


def test_a_rate_that_a_wrong_clock_emptied_is_served_again(redis_server: RedisStart) -> None:
    async def play() -> None:
        server = redis_server()
        async with linked(server) as (link, _):
            limiter = RedisLimiter(link)
            server.client.set("basin:r", f"{server.client.time()[0] + 3600}")
            late_s = await limiter.take("r", 1, RATE)
            assert 0 < late_s <= 0.2
            await asyncio.sleep(late_s)
            assert await limiter.take("r", 1, RATE) == 0

    asyncio.run(play())


def test_what_is_no_bucket_is_a_full_one(redis_server: RedisStart) -> None:
    async def play() -> None:
        server = redis_server()
        async with linked(server) as (link, damaged):
            limiter = RedisLimiter(link)
            values = ("inf", "-inf", "nan", "garbage", "", "0x7fffffff")
            for value in values:
                for attempt in (limiter.take, limiter.refund):
                    server.client.set("basin:q", value)
                    await attempt("q", 400, QUOTA)
                    assert await limiter.take("q", 600, QUOTA) == 0, value
                    assert [float(part) for part in server.client.get("basin:q").split()]
            for write in (server.client.lpush, server.client.sadd):
                server.client.delete("basin:q")
                write("basin:q", "x")
                assert await limiter.take("q", 1000, QUOTA) == 0
                assert await limiter.take("q", 1, QUOTA) > 0
            assert damaged == ["limits"] * (2 * len(values) + 2)
            assert link.is_available

    asyncio.run(play())


def test_a_refund_gives_back_no_more_than_a_full_bucket(redis_server: RedisStart) -> None:
    async def play() -> None:
        server = redis_server()
        async with linked(server) as (link, damaged):
            limiter = RedisLimiter(link)
            for stored in (None, "0.000000", f"{server.client.time()[0] + 1e9:.6f}"):
                server.client.delete("basin:q")
                if stored is not None:
                    server.client.set("basin:q", stored)
                await limiter.refund("q", 1000, QUOTA)
                assert await limiter.take("q", 1000, QUOTA) == 0
                assert await limiter.take("q", 1, QUOTA) > 0
            assert damaged == ["limits"]
            assert await limiter.take("fresh", 600, QUOTA) == 0
            await limiter.refund("fresh", 600, QUOTA)
            assert await limiter.take("fresh", 1000, QUOTA) == 0

    asyncio.run(play())


def test_a_server_computes_what_is_damaged_and_serves_none_of_it(
    redis_server: RedisStart, start: Start, checkpoints
) -> None:
    store = redis_server()
    settings = {
        "checkpoints": checkpoints,
        "default_anomaly_model": "et-small",
        "redis_url": store.url,
        "cache_bytes": 1 << 16,
    }
    body = make_sample(3).arrays()
    first = start(**settings)
    wait_until(lambda: answers_with(first, "/health/ready", 200))
    good = httpx.post(f"{first.url}/anomaly/score", json=body)
    assert good.status_code == 200
    wait_until(lambda: store.client.keys("basin:answer:*") != [])
    [name] = store.client.keys("basin:answer:*")
    entry = store.client.get(name)
    assert isinstance(entry, bytes)
    # The other server has an empty cache of its own, and reads each of these.
    for value in (
        with_head(entry, headers=[["a", "b\r\nset-cookie: x=1"]]),
        with_head(entry, headers=[["content-length", "1"]]),
        with_head(entry, type=None),
        entry[:-50],
    ):
        store.client.set(name, value)
        second = start(**settings)
        wait_until(lambda second=second: answers_with(second, "/health/ready", 200))
        answer = httpx.post(f"{second.url}/anomaly/score", json=body)
        assert answer.status_code == 200
        assert "x-cache" not in answer.headers
        assert "set-cookie" not in answer.headers
        assert answer.json()["results"] == good.json()["results"]
        metrics = httpx.get(f"{second.url}/metrics").text
        assert 'basin_redis_damaged_total{part="cache"} 1.0' in metrics
        wait_until(lambda: store.client.get(name) == entry)  # and stored anew
        second.process.kill()


def test_a_limit_that_was_lowered_is_no_damage(redis_server: RedisStart) -> None:
    async def play() -> None:
        async with linked(redis_server()) as (link, damaged):
            limiter = RedisLimiter(link)
            assert await limiter.take("rate:t", 60, TokenBucket(60, 1)) == 0
            late_s = await limiter.take("rate:t", 1, TokenBucket(10, 1))
            assert 0 < late_s <= 10
            assert damaged == []

    asyncio.run(play())
