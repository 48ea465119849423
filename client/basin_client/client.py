"""The clients: `Client` for threads, `AsyncClient` for an event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Self, TypeVar

import httpx

from basin_client import operations
from basin_client.alerts import AlertWatch
from basin_client.errors import InputError, ProblemError, UnreachableError
from basin_client.jobs import AsyncJob, Job
from basin_client.methods import AsyncMethods, Methods
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

T = TypeVar("T")


class Client(BaseClient, Methods):
    """Client of a Basin server. Several threads may use one client.

    Every function of `basin_client.operations`, `basin_client.graph_operations` and
    `basin_client.transaction_operations` is a method, which sends the request.
    """

    def _create_http(self, settings: dict[str, Any]) -> None:
        self._http = httpx.Client(**settings)

    def send(self, request: Request[T]) -> T:
        """Send a request, with retries, and return the parsed response.

        Args:
            request: from a function of `basin_client.operations` or its neighbours.

        Returns:
            What the method of the same name returns.

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

        Args:
            request: one that computes, such as `operations.sample("mnist-3")`.

        Returns:
            The job, whose `result()` waits for what `send` would return.

        Raises:
            ProblemError: the server refused the request.
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
        """Return the features and relations of a model.

        Args:
            model: its name; the default for graphs if None.

        Returns:
            The schema, which the client asks the server for once.

        Raises:
            InputError: the model does not score the nodes of a graph.
            ProblemError: the server refused the request, as for an unknown model.
        """
        return self._schema("" if model is None else quote_path("models", model))

    def _schema(self, path: str) -> GraphSchema:
        if (schema := self._schemas.get(path)) is None:
            model_path = path or default_model_path(self.send(operations.models()))
            detail = self.send(Request("GET", model_path, parse_json))
            schema = self._schemas[path] = GraphSchema.from_model(detail)
        return schema

    def stream(self, request: Request[T]) -> Iterator[Event]:
        """Yield the server-sent events of a request that streams, `operations.complete`.

        A broken stream is not started again.

        Args:
            request: from `operations.complete`.

        Returns:
            Pairs of name and data: any number of `progress`, then `done`.

        Raises:
            ProblemError: the server refused the request, or the computation failed.
        """
        with self.events(request.with_headers({"accept": EVENT_STREAM})) as events:
            yield from events

    @contextmanager
    def events(self, request: Request[Any]) -> Iterator[Iterator[Event]]:
        """Open the event stream that answers a request, for as long as the context lasts.

        Args:
            request: with the header `accept: text/event-stream`.

        Returns:
            A context manager, which yields an iterator of pairs of name and data.

        Raises:
            ProblemError: the server refused the request, or the computation failed.
            UnreachableError: the server did not respond, or the connection broke.
        """
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
        """Yield the alerts of a graph, and go on with those to come.

        It connects again where the stream ends.

        Args:
            graph: id of a graph of transactions, or of one that was stored with `alerts`.
            after: `event_id` of an alert, to begin with those that follow it; from the first that
                the server still has if None.

        Returns:
            Alerts as dicts, without end. Keys are those of `alerts`.

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
        """Close the connections. The end of a `with` block does so too."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncClient(BaseClient, AsyncMethods):
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
        """As `Client.close`."""
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
