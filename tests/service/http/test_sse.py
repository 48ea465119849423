"""Event streams: what is sent before and after they start, and what becomes of their work."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Any

import pytest
from fastapi import Request, Response

from service.errors import Problem
from service.http import sse
from service.http.cancellation import ClientDisconnected
from service.http.sse import EventStream
from service.observability.request_state import RequestState
from service.workers.fair_threads import FairThreads

Work = Callable[[EventStream], Awaitable[Response]]


@pytest.fixture
def codec() -> Iterator[FairThreads]:
    threads = FairThreads(1, "codec")
    yield threads
    threads.close()


async def respond(codec: FairThreads, work: Work, leaves_after_s: float = 60.0) -> bytes:
    """Body of the response to `work`; the client disconnects after `leaves_after_s`."""

    async def receive() -> dict[str, Any]:
        await asyncio.sleep(leaves_after_s)
        return {"type": "http.disconnect"}

    sent: list[bytes] = []

    async def send(message: Any) -> None:
        sent.append(message.get("body", b""))

    async def coroutine() -> Response:
        return await work(stream)

    stream = EventStream(partial(codec.run, ""))
    scope = {"type": "http", "headers": [], "asgi": {"spec_version": "2.3"}}
    request = Request(scope, receive)
    response = await stream.response(request, coroutine(), RequestState("id"))
    await response(scope, receive, send)
    return b"".join(sent)


def test_progress_comes_before_the_result(codec: FairThreads) -> None:
    async def work(stream: EventStream) -> Response:
        stream.start()
        for step in range(3):
            stream.publish(lambda step=step: {"step": step})
        return Response(b'{"answer":1}')

    body = asyncio.run(respond(codec, work))
    progress = b"".join(b'event: progress\ndata: {"step":%d}\n\n' % step for step in range(3))
    assert body == progress + b'event: done\ndata: {"answer":1}\n\n'


def test_a_problem_before_the_start_is_raised(codec: FairThreads) -> None:
    async def work(stream: EventStream) -> Response:
        raise Problem("invalid-request", "No.")

    with pytest.raises(Problem, match="invalid-request"):
        asyncio.run(respond(codec, work))


def test_a_problem_after_the_start_is_an_event(codec: FairThreads) -> None:
    async def work(stream: EventStream) -> Response:
        stream.start()
        raise Problem("diverged", "It did.")

    body = asyncio.run(respond(codec, work))
    assert body.startswith(b'event: failed\ndata: {"type":"urn:basin:problem:diverged"')


def test_silence_is_broken_by_comments(codec: FairThreads, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "SILENCE_S", 0.02)

    async def work(stream: EventStream) -> Response:
        stream.start()
        await asyncio.sleep(0.1)
        return Response(b"{}")

    body = asyncio.run(respond(codec, work))
    assert body.startswith(sse.KEEPALIVE_COMMENT)
    assert body.endswith(b"event: done\ndata: {}\n\n")


@pytest.mark.parametrize("starts", [False, True])
def test_work_is_cancelled_when_the_client_disconnects(codec: FairThreads, starts: bool) -> None:
    cancelled = False

    async def work(stream: EventStream) -> Response:
        nonlocal cancelled
        if starts:
            stream.start()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled = True
            raise
        raise AssertionError

    with pytest.raises(ClientDisconnected):
        asyncio.run(respond(codec, work, leaves_after_s=0.05))
    assert cancelled
