"""Responses as server-sent events, with progress while they are computed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, final

import orjson
from fastapi import Request, Response
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from service.errors import Problem
from service.http.cancellation import ClientDisconnected
from service.http.error_handlers import response_or_problem
from service.observability.request_state import RequestState
from service.shares import Shares

EVENTS = "text/event-stream"
SILENCE_S = 15.0  # proxies close connections that are silent for longer
KEEPALIVE_COMMENT = b":\n\n"

Told = Callable[[], dict[str, Any]]


def event(name: str, data: bytes) -> bytes:
    """Encode an event; `data` is JSON on one line."""
    return b"event: " + name.encode() + b"\ndata: " + data + b"\n\n"


@final
class OpenStreams:
    """Streams that go on until their client or this server ends them.

    Args:
        limit: how many may be open at a time; an API key may have as many as it leaves free.
    """

    def __init__(self, limit: int) -> None:
        self._shares, self._closing = Shares(limit), set[asyncio.Event]()
        self._is_closed = False

    def require_capacity(self, key: str) -> None:
        """
        Raises:
            Problem: as many as allowed are open, in all or of this API key.
        """
        if not self._shares.may_take(key):
            detail = (
                f"{self._shares.used} of {self._shares.total} streams are open "
                "(BASIN_MAX_ALERT_STREAMS), and one API key may have as many as it leaves free. "
                "Close one, or ask for pages in JSON."
            )
            raise Problem("queue-full", detail, headers={"retry-after": "5"})

    @contextmanager
    def open(self, key: str) -> Iterator[asyncio.Event]:
        """Count a stream; it has to end once the event is set."""
        closing = asyncio.Event()
        if self._is_closed:
            closing.set()
        self._closing.add(closing)
        try:
            with self._shares.hold(key):
                yield closing
        finally:
            self._closing.discard(closing)

    def close(self) -> None:
        """End all streams, and those to come, because the server shuts down."""
        self._is_closed = True
        for closing in self._closing:
            closing.set()


class EventStream:
    """Streams the progress and the result of one request.

    Until `start` a problem is an ordinary error response; from then on the response is a stream:
    `progress` for each published state, and at the end `done` with the whole response, or `failed`
    with the problem document.

    Args:
        encode: runs a function with its arguments on another thread.
    """

    def __init__(self, encode: Callable[..., Awaitable[bytes]]) -> None:
        self._loop, self._encode = asyncio.get_running_loop(), encode
        self._begun = asyncio.Event()
        self._queue: asyncio.Queue[Told | None] = asyncio.Queue()

    def start(self) -> None:
        """Commit to a stream: the request is valid."""
        self._begun.set()

    def publish(self, to_payload: Told) -> None:
        """Queue a `progress` event, from any thread; `to_payload` is called by `encode`."""
        self._loop.call_soon_threadsafe(self._queue.put_nowait, to_payload)

    async def response(
        self, request: Request, work: Coroutine[Any, Any, Response], state: RequestState
    ) -> Response:
        """Return the response of `work`, as a stream once it has started.

        Raises:
            Problem: of `work`, before it started.
            ClientDisconnected: the client disconnected; `work` was cancelled.
        """
        task = asyncio.ensure_future(work)
        task.add_done_callback(lambda _: self._queue.put_nowait(None))
        started, disconnected = asyncio.ensure_future(self._begun.wait()), _gone(request)
        try:
            await asyncio.wait({task, started, disconnected}, return_when=asyncio.FIRST_COMPLETED)
            if self._begun.is_set():
                return _Stream(self._events(task, state), task)
            if task.done():
                return task.result()
            raise ClientDisconnected
        finally:
            started.cancel()
            disconnected.cancel()
            if not self._begun.is_set():
                task.cancel()
                await asyncio.wait({task})

    async def _events(
        self, task: asyncio.Task[Response], state: RequestState
    ) -> AsyncIterator[bytes]:
        while True:
            try:
                to_payload = await asyncio.wait_for(self._queue.get(), SILENCE_S)
            except TimeoutError:
                yield KEEPALIVE_COMMENT
                continue
            if to_payload is None:
                break
            yield await self._encode(_encode_progress, to_payload)
        answer = await response_or_problem(_counted(task, state), state.request_id)
        yield event("done" if answer.status_code < 400 else "failed", bytes(answer.body))


class _Stream(StreamingResponse):
    """Events of a task, which ends with them."""

    def __init__(self, events: AsyncIterator[bytes], task: asyncio.Task[Response]) -> None:
        super().__init__(events, media_type=EVENTS, headers={"cache-control": "no-store"})
        self._task = task

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:  # also where not one event was asked for
            over = self._task.done()
            self._task.cancel()
        if not over:
            await asyncio.wait({self._task})
            raise ClientDisconnected


def _encode_progress(to_payload: Told) -> bytes:
    return event("progress", orjson.dumps(to_payload()))


def _gone(request: Request) -> asyncio.Future[Any]:
    """Done when the client hangs up: its body has been read, so nothing else comes."""
    return asyncio.ensure_future(request.receive())


async def _counted(task: asyncio.Task[Response], state: RequestState) -> Response:
    try:
        return await task
    except Problem as problem:
        state.problem = problem.kind
        raise
