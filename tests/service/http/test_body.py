"""Bodies are read within limits of size and time, and are counted until they are released."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.requests import Request

from service.errors import Problem
from service.http.body import BodyReader, require_media_type, require_small
from service.media_types import JSON, SAFETENSORS
from service.workers.large_json import LARGE_BODY_BYTES


def request_of(*parts: bytes, ends: bool = True, client: str = "", **headers: str) -> Request:
    """A request of an address, whose body comes in `parts`; the connection closes after them unless
    it `ends`."""
    messages: list[dict[str, Any]] = [
        {"type": "http.request", "body": part, "more_body": True} for part in parts
    ]
    if ends:
        messages[-1]["more_body"] = False
    else:
        messages.append({"type": "http.disconnect"})
    waiting = iter(messages)

    async def receive() -> dict[str, Any]:
        return next(waiting)

    pairs = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    peer = (client, 1234) if client else None
    return Request({"type": "http", "headers": pairs, "client": peer}, receive)


async def read(reader: BodyReader, request: Request, timeout_s: float | None = 1.0) -> bytes:
    async with reader.read(request, timeout_s) as body:
        return body


def problem_of(reader: BodyReader, request: Request, timeout_s: float | None = 1.0) -> Problem:
    with pytest.raises(Problem) as error:
        asyncio.run(read(reader, request, timeout_s))
    return error.value


def test_a_body_is_its_parts_in_order() -> None:
    assert asyncio.run(read(BodyReader(9, 18), request_of(b"abc", b"", b"def"))) == b"abcdef"
    assert asyncio.run(read(BodyReader(9, 18), request_of(b""))) == b""


def test_one_byte_more_than_the_limit_is_refused_and_forgotten() -> None:
    reader = BodyReader(6, 12)
    assert problem_of(reader, request_of(b"abcd", b"efg")).kind == "body-too-large"
    assert asyncio.run(read(reader, request_of(b"abcdef"))) == b"abcdef"  # nothing was left counted


def test_a_declared_length_above_the_limit_is_refused_before_a_byte_is_read() -> None:
    async def receive() -> dict[str, Any]:
        raise AssertionError("the body was read")

    request = Request({"type": "http", "headers": [(b"content-length", b"7")]}, receive)
    assert problem_of(BodyReader(6, 6), request).kind == "body-too-large"


def test_a_declared_length_without_room_is_refused_before_a_byte_is_read() -> None:
    async def receive() -> dict[str, Any]:
        raise AssertionError("the body was read")

    async def main() -> None:
        reader = BodyReader(6, 12, small_bytes=1)
        about = {"type": "http", "headers": [(b"content-length", b"5")], "client": ("192.0.2.1", 1)}
        async with reader.read(request_of(b"abc", client="192.0.2.1"), 1.0):
            with pytest.raises(Problem) as error:
                await read(reader, Request(about, receive))
        assert error.value.kind == "queue-full"
        assert "have 3 of 12 bytes (BASIN_MAX_BUFFERED_BYTES)" in error.value.detail

    asyncio.run(main())


def test_bodies_in_memory_share_a_limit_until_they_are_released() -> None:
    async def main() -> None:
        reader = BodyReader(6, 8)  # of requests without an address, which have no shares
        async with reader.read(request_of(b"abcdef"), 1.0):
            with pytest.raises(Problem) as error:
                await read(reader, request_of(b"abc"))
            assert error.value.kind == "queue-full"
            assert error.value.headers["retry-after"] == "1"
            assert await read(reader, request_of(b"ab")) == b"ab"
        assert await read(reader, request_of(b"abcdef")) == b"abcdef"

    asyncio.run(main())


def test_a_client_leaves_as_much_as_it_holds() -> None:
    async def main() -> None:
        reader = BodyReader(6, 12, small_bytes=1)
        async with reader.read(request_of(b"abcde", client="192.0.2.1"), 1.0):
            with pytest.raises(Problem) as error:
                await read(reader, request_of(b"ab", client="192.0.2.1"))
            assert error.value.kind == "queue-full"
            assert error.value.headers["retry-after"] == "1"
            assert "have 5 of 12 bytes (BASIN_MAX_BUFFERED_BYTES)" in error.value.detail
            assert await read(reader, request_of(b"a", client="192.0.2.1")) == b"a"
            assert await read(reader, request_of(b"abc", client="192.0.2.2")) == b"abc"
        assert await read(reader, request_of(b"abcdef", client="192.0.2.1")) == b"abcdef"

    asyncio.run(main())


def test_a_connection_that_closes_early_is_an_incomplete_body() -> None:
    reader = BodyReader(6, 6)
    assert problem_of(reader, request_of(b"abcdef", ends=False)).kind == "incomplete-body"
    assert asyncio.run(read(reader, request_of(b"abcdef"))) == b"abcdef"


def test_a_body_that_does_not_come_is_refused_with_the_limit() -> None:
    async def receive() -> dict[str, Any]:
        await asyncio.sleep(60)
        raise AssertionError

    problem = problem_of(BodyReader(6, 6), Request({"type": "http", "headers": []}, receive), 0.02)
    assert problem.kind == "body-timeout"
    assert "0.02 s (BASIN_BODY_TIMEOUT_S)" in problem.detail
    assert problem.headers["connection"] == "close"


def test_media_types_are_compared_without_parameters_and_case() -> None:
    request = request_of(b"", content_type="Application/JSON; charset=utf-8")
    assert require_media_type(request, (JSON,), JSON) == JSON
    for headers in ({"content_type": "text/plain"}, {}, {"content_encoding": "gzip"}):
        with pytest.raises(Problem) as error:
            require_media_type(request_of(b"", **headers), (JSON,), JSON)
        assert error.value.kind == "unsupported-media-type"


def test_only_large_json_is_refused_as_json() -> None:
    large = bytes(LARGE_BODY_BYTES + 1)
    require_small(large, SAFETENSORS)
    require_small(large[:-1], JSON)
    with pytest.raises(Problem) as error:
        require_small(large, JSON)
    assert str(LARGE_BODY_BYTES) in error.value.detail
