"""Sends calls, again where the server asks for that, and follows jobs."""

from __future__ import annotations

import asyncio
import json
import random
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import cached_property
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar

import httpx

from basin_client import asks
from basin_client.call import EVENTS, Call
from basin_client.errors import BasinError, ProblemError, UnreachableError

P = ParamSpec("P")
T = TypeVar("T")
_AGAIN = frozenset((429, 502, 503))


class _Sender:
    """What both clients know: where, with what key, how often and how long."""

    def __init__(
        self,
        url: str = "http://127.0.0.1:8000",
        *,
        key: str | None = None,
        retries: int = 4,
        patience_s: float = 60.0,
        timeout_s: float = 120.0,
    ) -> None:
        """
        Args:
            key: of the server, if it asks for one.
            retries: how often a call is sent again that the server had no room for, or that was
                lost on the way.
            patience_s: how long it may tell to wait before that, all waits together.
            timeout_s: that nothing comes or goes of one try.
        """
        headers = {} if key is None else {"authorization": f"Bearer {key}"}
        self._about: dict[str, Any] = {"base_url": url, "timeout": timeout_s, "headers": headers}
        self._retries, self._patience_s = retries, patience_s

    def _tries(self, call: Call[Any]) -> Iterator[_Try]:
        left = self._patience_s
        for i in range(self._retries + 1):
            one = _Try(call, i, left, last=i == self._retries)
            yield one
            left -= one.wait_s


class _Try:
    """One of the times that a call is sent; `wait_s` is how long to wait before the next.

    Whatever is sent may be sent twice: what computes changes nothing, a job has a key of its own,
    and a memory that is stored or forgotten twice is so.
    """

    def __init__(self, call: Call[Any], number: int, left_s: float, last: bool) -> None:
        self._call, self._number, self._left_s, self._last = call, number, left_s, last
        self.wait_s = 0.0

    def read(self, response: httpx.Response) -> bool:
        """Is this the answer?"""
        forgotten = self._call.method == "DELETE" and response.status_code == 404
        return response.is_success or (forgotten and self._number > 0)

    def failed(self, error: httpx.TransportError) -> None:
        """
        Raises:
            BasinError: it is not worth another try, as where there was no answer in time.
        """
        if isinstance(error, httpx.ReadTimeout | httpx.WriteTimeout):
            raise UnreachableError(f"no answer in time: {error}") from error
        self._wait(None, _unreachable(error), error)

    def refused(self, response: httpx.Response) -> None:
        """
        Raises:
            ProblemError: likewise.
        """
        problem, asked = ProblemError.of(response), response.headers.get("retry-after")
        never = problem.kind == "quota-exceeded" and asked is None
        if never or not self._call.again or response.status_code not in _AGAIN:
            raise problem
        self._wait(asked, problem, None)

    def _wait(self, asked: str | None, error: BasinError, cause: Exception | None) -> None:
        if asked is not None and asked.isdecimal():
            self.wait_s = float(asked)
        else:
            self.wait_s = 0.1 * 2**self._number * (0.5 + random.random())
        if self._last or self.wait_s > self._left_s:
            raise error from cause


def _unreachable(error: httpx.TransportError) -> UnreachableError:
    return UnreachableError(f"the server was not reached, or stopped: {error}")


def _answer(call: Call[T], response: httpx.Response) -> T:
    try:
        return call.read(response)
    except (ValueError, KeyError, TypeError) as error:
        raise BasinError(f"the answer is none of a Basin server: {error!r}") from error


def _sent_with(call: Call[Any]) -> dict[str, Any]:
    body: dict[str, Any] = {"content": call.content}
    if call.files:
        body = {"files": list(call.files), "data": dict(call.data)}
    return {
        "method": call.method,
        "url": call.path,
        "headers": dict(call.headers),
        "params": dict(call.params),
        **(body if call.method in ("POST", "PUT") else {}),
    }


def _later(call: Call[Any]) -> Call[dict[str, Any]]:
    """As a job; under a key of its own, so that sent twice it is one.

    Raises:
        TypeError: it computes nothing.
    """
    if call.method != "POST":
        raise TypeError(f"{call.method} {call.path} is answered at once, and is no job")
    key = {"prefer": "respond-async", "idempotency-key": f'"{secrets.token_urlsafe(18)}"'}
    return call.with_headers(key).reading(lambda response: response.json())


class _Events:
    """Server-sent events, from their lines."""

    def __init__(self) -> None:
        self._name = "message"

    def take(self, line: str) -> tuple[str, dict[str, Any]] | None:
        """An event that is complete with this line."""
        if line.startswith("event: "):
            self._name = line.removeprefix("event: ")
        elif line.startswith("data: "):
            return self._name, json.loads(line.removeprefix("data: "))
        return None


def _told(event: tuple[str, dict[str, Any]]) -> tuple[str, dict[str, Any]]:
    """
    Raises:
        ProblemError: what was begun has failed.
    """
    name, data = event
    if name == "failed" and "status" in data and "title" in data:
        raise ProblemError(int(data["status"]), data)
    return event


def _method(ask: Callable[P, Call[T]]) -> Callable[Concatenate[Client, P], T]:
    def send(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self.send(ask(*args, **kwargs))

    send.__doc__, send.__name__ = ask.__doc__, ask.__name__
    return send


def _async_method(
    ask: Callable[P, Call[T]],
) -> Callable[Concatenate[AsyncClient, P], Awaitable[T]]:
    async def send(self: AsyncClient, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self.send(ask(*args, **kwargs))

    send.__doc__, send.__name__ = ask.__doc__, ask.__name__
    return send


class Client(_Sender):
    """A server, asked one thing after the other; safe to use from several threads.

    Every function of `basin_client.asks` is a method.
    """

    @cached_property
    def _http(self) -> httpx.Client:
        return httpx.Client(**self._about)

    def send(self, call: Call[T]) -> T:
        """The answer to a call.

        Raises:
            ProblemError: the server refused it.
            BasinError: the server was not reached.
        """
        for one in self._tries(call):
            try:
                response = self._http.request(**_sent_with(call))
            except httpx.TransportError as error:
                one.failed(error)
            else:
                if one.read(response):
                    return _answer(call, response)
                one.refused(response)
            time.sleep(one.wait_s)
        raise AssertionError("the last try raises")

    def submit(self, call: Call[T]) -> Job[T]:
        """Have a call done as a job, which outlives this process and the server's."""
        return Job(self, self.send(_later(call)), call)

    def stream(self, call: Call[T]) -> Iterator[tuple[str, dict[str, Any]]]:
        """The events of a call that can be told while it is computed (`asks.complete`): `progress`
        some times, then `done`.

        Raises:
            ProblemError: the server refused it, or it failed.
        """
        with self._events(call.with_headers({"accept": EVENTS})) as events:
            yield from events

    @contextmanager
    def _events(self, call: Call[Any]) -> Iterator[Iterator[tuple[str, dict[str, Any]]]]:
        try:
            with self._http.stream(**_sent_with(call)) as response:
                if not response.is_success:
                    response.read()
                    raise ProblemError.of(response)
                events = _Events()
                found = (events.take(line) for line in response.iter_lines())
                yield (_told(event) for event in found if event is not None)
        except httpx.TransportError as error:
            raise _unreachable(error) from error

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    score = _method(asks.score)
    classify = _method(asks.classify)
    complete = _method(asks.complete)
    classify_images = _method(asks.classify_images)
    answer_images = _method(asks.answer_images)
    sample = _method(asks.sample)
    store_memory = _method(asks.store_memory)
    forget_memory = _method(asks.forget_memory)
    memories = _method(asks.memories)
    models = _method(asks.models)
    model = _method(asks.model)
    ready = _method(asks.ready)


class AsyncClient(_Sender):
    """The same on an event loop."""

    @cached_property
    def _http(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(**self._about)

    async def send(self, call: Call[T]) -> T:
        """As `Client.send`."""
        for one in self._tries(call):
            try:
                response = await self._http.request(**_sent_with(call))
            except httpx.TransportError as error:
                one.failed(error)
            else:
                if one.read(response):
                    return _answer(call, response)
                one.refused(response)
            await asyncio.sleep(one.wait_s)
        raise AssertionError("the last try raises")

    async def submit(self, call: Call[T]) -> AsyncJob[T]:
        """As `Client.submit`."""
        return AsyncJob(self, await self.send(_later(call)), call)

    async def stream(self, call: Call[T]) -> AsyncIterator[tuple[str, dict[str, Any]]]:
        """As `Client.stream`."""
        async with self._events(call.with_headers({"accept": EVENTS})) as events:
            async for event in events:
                yield event

    @asynccontextmanager
    async def _events(
        self, call: Call[Any]
    ) -> AsyncIterator[AsyncIterator[tuple[str, dict[str, Any]]]]:
        try:
            async with self._http.stream(**_sent_with(call)) as response:
                if not response.is_success:
                    await response.aread()
                    raise ProblemError.of(response)
                events = _Events()
                found = (events.take(line) async for line in response.aiter_lines())
                yield (_told(event) async for event in found if event is not None)
        except httpx.TransportError as error:
            raise _unreachable(error) from error

    async def close(self) -> None:
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    score = _async_method(asks.score)
    classify = _async_method(asks.classify)
    complete = _async_method(asks.complete)
    classify_images = _async_method(asks.classify_images)
    answer_images = _async_method(asks.answer_images)
    sample = _async_method(asks.sample)
    store_memory = _async_method(asks.store_memory)
    forget_memory = _async_method(asks.forget_memory)
    memories = _async_method(asks.memories)
    models = _async_method(asks.models)
    model = _async_method(asks.model)
    ready = _async_method(asks.ready)


class _AnyJob(Generic[T]):
    """Attributes: `id`; `told`, how it stood when it was last asked."""

    def __init__(self, told: dict[str, Any], call: Call[T]) -> None:
        self.id: str = told["id"]
        self.told = told
        self._call = call

    @property
    def running(self) -> bool:
        return self.told["status"] == "running"

    @property
    def _path(self) -> str:
        return f"/jobs/{self.id}"

    def _kept(self, response: httpx.Response) -> dict[str, Any]:
        self.told = response.json()
        return self.told

    def _result(self) -> Call[T]:
        # A refusal that is kept is the job's, and stays one.
        return Call("GET", f"{self._path}/result", self._call.read, again=False)

    def _ended(self) -> Call[None]:
        return Call("DELETE", self._path, lambda response: None)

    def _watched(self) -> Call[None]:
        return Call("GET", f"{self._path}/events", lambda response: None)


class Job(_AnyJob[T]):
    """A call that the server has promised to answer."""

    def __init__(self, client: Client, told: dict[str, Any], call: Call[T]) -> None:
        super().__init__(told, call)
        self._client = client

    def refresh(self) -> dict[str, Any]:
        return self._client.send(Call("GET", self._path, self._kept))

    def events(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """`progress` with step and energy, as it goes; at last `done` or `failed` with the job."""
        with self._client._events(self._watched()) as events:
            yield from events

    def wait(self, seconds: float | None = None) -> None:
        """
        Raises:
            TimeoutError: it is not over by then.
        """
        end = None if seconds is None else time.monotonic() + seconds
        pause_s = 0.02
        while self.refresh()["status"] == "running":
            if end is not None and time.monotonic() >= end:
                raise TimeoutError(f"job {self.id} is not over")
            time.sleep(pause_s)
            pause_s = min(1.5 * pause_s, 1.0)

    def result(self, seconds: float | None = None) -> T:
        """The answer, once there is one.

        Raises:
            ProblemError: it failed.
            TimeoutError: it is not over by then.
        """
        self.wait(seconds)
        return self._client.send(self._result())

    def cancel(self) -> None:
        """Stop and forget it."""
        self._client.send(self._ended())


class AsyncJob(_AnyJob[T]):
    """The same on an event loop."""

    def __init__(self, client: AsyncClient, told: dict[str, Any], call: Call[T]) -> None:
        super().__init__(told, call)
        self._client = client

    async def refresh(self) -> dict[str, Any]:
        return await self._client.send(Call("GET", self._path, self._kept))

    async def events(self) -> AsyncIterator[tuple[str, dict[str, Any]]]:
        """As `Job.events`."""
        async with self._client._events(self._watched()) as events:
            async for event in events:
                yield event

    async def wait(self, seconds: float | None = None) -> None:
        pause_s = 0.02
        async with asyncio.timeout(seconds):
            while (await self.refresh())["status"] == "running":
                await asyncio.sleep(pause_s)
                pause_s = min(1.5 * pause_s, 1.0)

    async def result(self, seconds: float | None = None) -> T:
        await self.wait(seconds)
        return await self._client.send(self._result())

    async def cancel(self) -> None:
        await self._client.send(self._ended())
