"""The clients: `Client` for threads, `AsyncClient` for an event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

import httpx

from basin_client import graph_operations, operations, transaction_operations
from basin_client.alerts import AlertWatch
from basin_client.errors import InputError, ProblemError, UnreachableError
from basin_client.jobs import AsyncJob, Job
from basin_client.request import EVENT_STREAM, Request, parse_json, quote_path
from basin_client.schema import GraphSchema
from basin_client.transport import (
    BaseClient,
    Event,
    EventParser,
    as_job,
    default_model_path,
    parse_response,
    to_httpx,
    unreachable_error,
)

P = ParamSpec("P")
T = TypeVar("T")

# The methods of both clients are made from the functions that build their requests. Written out, 18
# methods would repeat every parameter list twice. `ParamSpec` gives type checkers and editors the
# parameters of the function; at run time `help(Client.score)` shows its docstring.


def _method(build: Callable[P, Request[T]]) -> Callable[Concatenate[Client, P], T]:
    """Make a method of `Client` that builds a request with `build` and sends it."""

    def method(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self.send(build(*args, **kwargs))

    method.__doc__ = build.__doc__
    method.__name__ = build.__name__
    return method


def _async_method(
    build: Callable[P, Request[T]],
) -> Callable[Concatenate[AsyncClient, P], Awaitable[T]]:
    """Make a method of `AsyncClient` that builds a request with `build` and sends it."""

    async def method(self: AsyncClient, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self.send(build(*args, **kwargs))

    method.__doc__ = build.__doc__
    method.__name__ = build.__name__
    return method


class Client(BaseClient):
    """Client of a Basin server. Several threads may use one client.

    Every function of `basin_client.operations`, `basin_client.graph_operations` and
    `basin_client.transaction_operations` is a method.
    """

    def _create_http(self, settings: dict[str, Any]) -> None:
        self._http = httpx.Client(**settings)

    def send(self, request: Request[T]) -> T:
        """Send a request, with retries, and return the parsed response.

        Raises:
            ProblemError: the server refused the request.
            BasinError: the server was not reached, or its response could not be read.
        """
        request = self._bind(request)
        for attempt in self._attempts(request):
            try:
                response = self._http.request(**to_httpx(request))
            except httpx.TransportError as error:
                attempt.handle_transport_error(error)
            else:
                if attempt.is_success(response):
                    return parse_response(request, response)
                self._forget_schema(request, response)
                attempt.handle_refusal(response)
            time.sleep(attempt.wait_s)
        raise AssertionError("the last attempt raises")

    def submit(self, request: Request[T]) -> Job[T]:
        """Send a request as a job, which continues after this process or the server restarts.

        Raises:
            TypeError: the request does not compute anything.
        """
        request = self._bind(request)
        return Job(self, self.send(as_job(request)), request)

    def _bind(self, request: Request[T]) -> Request[T]:
        """Complete a request that depends on what a model reads; ask the server once a model."""
        if request.bind is None:
            return request
        is_cached = request.schema_path in self._schemas
        schema = self._schema(request.schema_path)
        try:
            return request.bound_to(schema)
        except InputError:
            # The model may have been replaced since it was asked about.
            self._schemas.pop(request.schema_path, None)
            if not is_cached or (latest := self._schema(request.schema_path)) == schema:
                raise
        return request.bound_to(latest)

    def graph_schema(self, model: str | None = None) -> GraphSchema:
        """Return the features and relations of a model, by default of the one that scores graphs.

        Raises:
            InputError: the model does not score the nodes of a graph.
        """
        return self._schema("" if model is None else quote_path("models", model))

    def _schema(self, path: str) -> GraphSchema:
        if (schema := self._schemas.get(path)) is None:
            model_path = path or default_model_path(self.send(operations.models()))
            detail = self.send(Request("GET", model_path, parse_json))
            schema = self._schemas[path] = GraphSchema.from_model(detail)
        return schema

    def stream(self, request: Request[T]) -> Iterator[Event]:
        """Yield the server-sent events of a request that streams (`operations.complete`): any
        number of `progress`, then `done`. A broken stream is not started again.

        Raises:
            ProblemError: the server refused the request, or the computation failed.
        """
        with self.events(request.with_headers({"accept": EVENT_STREAM})) as events:
            yield from events

    @contextmanager
    def events(self, request: Request[Any]) -> Iterator[Iterator[Event]]:
        """Open the event stream that answers a request, for as long as the context lasts."""
        try:
            with self._http.stream(**to_httpx(request)) as response:
                if not response.is_success:
                    response.read()
                    raise ProblemError.from_response(response)
                parser = EventParser()
                events = (parser.feed(line) for line in response.iter_lines())
                yield (event for event in events if event is not None)
        except httpx.TransportError as error:
            raise unreachable_error(error) from error

    def watch_alerts(self, graph: str, *, after: str | None = None) -> Iterator[dict[str, Any]]:
        """Yield the alerts of a graph, and go on with those to come; connects again where the
        stream ends.

        Args:
            after: `event_id` of an alert: those that follow it. By default all that are kept.

        Raises:
            ProblemError: the server refused the request.
            UnreachableError: the server could not be reached again within `max_retry_wait_s`.
        """
        watch = AlertWatch(graph, after, self._max_retry_wait_s)
        while True:
            try:
                with self.events(watch.request()) as events:
                    watch.reset()
                    yield from watch.read(events)
            except (UnreachableError, ProblemError) as error:
                watch.handle(error)
            time.sleep(watch.wait_s)

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    score = _method(operations.score)
    score_transactions = _method(transaction_operations.score_transactions)
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
    store_transaction_graph = _method(transaction_operations.store_transaction_graph)
    add_transactions = _method(transaction_operations.add_transactions)
    store_transactions = _method(transaction_operations.store_transactions)
    add_labels = _method(transaction_operations.add_labels)
    alerts = _method(graph_operations.alerts)
    graphs = _method(graph_operations.graphs)
    graph = _method(graph_operations.graph)
    models = _method(operations.models)
    model = _method(operations.model)
    ready = _method(operations.ready)


class AsyncClient(BaseClient):
    """`Client` for an event loop."""

    def _create_http(self, settings: dict[str, Any]) -> None:
        self._http = httpx.AsyncClient(**settings)

    async def send(self, request: Request[T]) -> T:
        """As `Client.send`."""
        request = await self._bind(request)
        for attempt in self._attempts(request):
            try:
                response = await self._http.request(**to_httpx(request))
            except httpx.TransportError as error:
                attempt.handle_transport_error(error)
            else:
                if attempt.is_success(response):
                    return parse_response(request, response)
                self._forget_schema(request, response)
                attempt.handle_refusal(response)
            await asyncio.sleep(attempt.wait_s)
        raise AssertionError("the last attempt raises")

    async def submit(self, request: Request[T]) -> AsyncJob[T]:
        """As `Client.submit`."""
        request = await self._bind(request)
        return AsyncJob(self, await self.send(as_job(request)), request)

    async def _bind(self, request: Request[T]) -> Request[T]:
        """As `Client._bind`."""
        if request.bind is None:
            return request
        is_cached = request.schema_path in self._schemas
        schema = await self._schema(request.schema_path)
        try:
            return request.bound_to(schema)
        except InputError:
            # The model may have been replaced since it was asked about.
            self._schemas.pop(request.schema_path, None)
            if not is_cached or (latest := await self._schema(request.schema_path)) == schema:
                raise
        return request.bound_to(latest)

    async def graph_schema(self, model: str | None = None) -> GraphSchema:
        """As `Client.graph_schema`."""
        return await self._schema("" if model is None else quote_path("models", model))

    async def _schema(self, path: str) -> GraphSchema:
        if (schema := self._schemas.get(path)) is None:
            model_path = path or default_model_path(await self.send(operations.models()))
            detail = await self.send(Request("GET", model_path, parse_json))
            schema = self._schemas[path] = GraphSchema.from_model(detail)
        return schema

    async def stream(self, request: Request[T]) -> AsyncIterator[Event]:
        """As `Client.stream`."""
        async with self.events(request.with_headers({"accept": EVENT_STREAM})) as events:
            async for event in events:
                yield event

    @asynccontextmanager
    async def events(self, request: Request[Any]) -> AsyncIterator[AsyncIterator[Event]]:
        """As `Client.events`."""
        try:
            async with self._http.stream(**to_httpx(request)) as response:
                if not response.is_success:
                    await response.aread()
                    raise ProblemError.from_response(response)
                parser = EventParser()
                events = (parser.feed(line) async for line in response.aiter_lines())
                yield (event async for event in events if event is not None)
        except httpx.TransportError as error:
            raise unreachable_error(error) from error

    async def watch_alerts(
        self, graph: str, *, after: str | None = None
    ) -> AsyncIterator[dict[str, Any]]:
        """As `Client.watch_alerts`."""
        watch = AlertWatch(graph, after, self._max_retry_wait_s)
        while True:
            try:
                async with self.events(watch.request()) as events:
                    watch.reset()
                    async for event in events:
                        for alert in watch.read([event]):
                            yield alert
            except (UnreachableError, ProblemError) as error:
                watch.handle(error)
            await asyncio.sleep(watch.wait_s)

    async def close(self) -> None:
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    score = _async_method(operations.score)
    score_transactions = _async_method(transaction_operations.score_transactions)
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
    store_transaction_graph = _async_method(transaction_operations.store_transaction_graph)
    add_transactions = _async_method(transaction_operations.add_transactions)
    store_transactions = _async_method(transaction_operations.store_transactions)
    add_labels = _async_method(transaction_operations.add_labels)
    alerts = _async_method(graph_operations.alerts)
    graphs = _async_method(graph_operations.graphs)
    graph = _async_method(graph_operations.graph)
    models = _async_method(operations.models)
    model = _async_method(operations.model)
    ready = _async_method(operations.ready)
