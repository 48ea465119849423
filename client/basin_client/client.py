"""Sends calls, from threads or on an event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

import httpx

from basin_client import graph_operations, operations
from basin_client.errors import ProblemError
from basin_client.jobs import AsyncJob, Job
from basin_client.request import EVENTS, Request
from basin_client.transport import Events, Sender, answer_of, later, sent_with, told_by, unreachable

P = ParamSpec("P")
T = TypeVar("T")


def _method(ask: Callable[P, Request[T]]) -> Callable[Concatenate[Client, P], T]:
    def send(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self.send(ask(*args, **kwargs))

    send.__doc__, send.__name__ = ask.__doc__, ask.__name__
    return send


def _async_method(
    ask: Callable[P, Request[T]],
) -> Callable[Concatenate[AsyncClient, P], Awaitable[T]]:
    async def send(self: AsyncClient, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self.send(ask(*args, **kwargs))

    send.__doc__, send.__name__ = ask.__doc__, ask.__name__
    return send


class Client(Sender):
    """A server, asked one thing after the other; safe to use from several threads.

    Every function of `basin_client.operations` and `basin_client.graph_operations` is a method.
    """

    def _open(self, about: dict[str, Any]) -> None:
        self._http = httpx.Client(**about)

    def send(self, call: Request[T]) -> T:
        """The answer to a call.

        Raises:
            ProblemError: the server refused it.
            BasinError: the server was not reached.
        """
        for one in self.tries(call):
            try:
                response = self._http.request(**sent_with(call))
            except httpx.TransportError as error:
                one.failed(error)
            else:
                if one.read(response):
                    return answer_of(call, response)
                one.refused(response)
            time.sleep(one.wait_s)
        raise AssertionError("the last try raises")

    def submit(self, call: Request[T]) -> Job[T]:
        """Have a call done as a job, which outlives this process and the server's."""
        return Job(self, self.send(later(call)), call)

    def stream(self, call: Request[T]) -> Iterator[tuple[str, dict[str, Any]]]:
        """The server-sent events of a call that streams (`operations.complete`): any number of
        `progress`, then `done`.

        Raises:
            ProblemError: the server refused it, or it failed.
        """
        with self.events(call.with_headers({"accept": EVENTS})) as events:
            yield from events

    @contextmanager
    def events(self, call: Request[Any]) -> Iterator[Iterator[tuple[str, dict[str, Any]]]]:
        """The events that answer a call, while the context lasts."""
        try:
            with self._http.stream(**sent_with(call)) as response:
                if not response.is_success:
                    response.read()
                    raise ProblemError.of(response)
                events = Events()
                found = (events.take(line) for line in response.iter_lines())
                yield (told_by(event) for event in found if event is not None)
        except httpx.TransportError as error:
            raise unreachable(error) from error

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    score = _method(operations.score)
    classify = _method(operations.classify)
    complete = _method(operations.complete)
    classify_images = _method(operations.classify_images)
    answer_images = _method(operations.answer_images)
    sample = _method(operations.sample)
    store_memory = _method(operations.store_memory)
    forget_memory = _method(operations.forget_memory)
    memories = _method(operations.memories)
    store_graph = _method(graph_operations.store_graph)
    change_graph = _method(graph_operations.change_graph)
    forget_graph = _method(graph_operations.forget_graph)
    score_nodes = _method(graph_operations.score_nodes)
    graphs = _method(graph_operations.graphs)
    graph = _method(graph_operations.graph)
    models = _method(operations.models)
    model = _method(operations.model)
    ready = _method(operations.ready)


class AsyncClient(Sender):
    """The same on an event loop."""

    def _open(self, about: dict[str, Any]) -> None:
        self._http = httpx.AsyncClient(**about)

    async def send(self, call: Request[T]) -> T:
        """As `Client.send`."""
        for one in self.tries(call):
            try:
                response = await self._http.request(**sent_with(call))
            except httpx.TransportError as error:
                one.failed(error)
            else:
                if one.read(response):
                    return answer_of(call, response)
                one.refused(response)
            await asyncio.sleep(one.wait_s)
        raise AssertionError("the last try raises")

    async def submit(self, call: Request[T]) -> AsyncJob[T]:
        """As `Client.submit`."""
        return AsyncJob(self, await self.send(later(call)), call)

    async def stream(self, call: Request[T]) -> AsyncIterator[tuple[str, dict[str, Any]]]:
        """As `Client.stream`."""
        async with self.events(call.with_headers({"accept": EVENTS})) as events:
            async for event in events:
                yield event

    @asynccontextmanager
    async def events(
        self, call: Request[Any]
    ) -> AsyncIterator[AsyncIterator[tuple[str, dict[str, Any]]]]:
        """As `Client.events`."""
        try:
            async with self._http.stream(**sent_with(call)) as response:
                if not response.is_success:
                    await response.aread()
                    raise ProblemError.of(response)
                events = Events()
                found = (events.take(line) async for line in response.aiter_lines())
                yield (told_by(event) async for event in found if event is not None)
        except httpx.TransportError as error:
            raise unreachable(error) from error

    async def close(self) -> None:
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    score = _async_method(operations.score)
    classify = _async_method(operations.classify)
    complete = _async_method(operations.complete)
    classify_images = _async_method(operations.classify_images)
    answer_images = _async_method(operations.answer_images)
    sample = _async_method(operations.sample)
    store_memory = _async_method(operations.store_memory)
    forget_memory = _async_method(operations.forget_memory)
    memories = _async_method(operations.memories)
    store_graph = _async_method(graph_operations.store_graph)
    change_graph = _async_method(graph_operations.change_graph)
    forget_graph = _async_method(graph_operations.forget_graph)
    score_nodes = _async_method(graph_operations.score_nodes)
    graphs = _async_method(graph_operations.graphs)
    graph = _async_method(graph_operations.graph)
    models = _async_method(operations.models)
    model = _async_method(operations.model)
    ready = _async_method(operations.ready)
