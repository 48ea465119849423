"""Jobs: requests that the server has accepted and computes later."""

from __future__ import annotations

import asyncio
import time
import warnings
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any, Generic, Protocol, TypeVar

import httpx

from basin_client.request import Request, parse_nothing
from basin_client.transport import Event

T = TypeVar("T")
_FIRST_POLL_S = 0.02
_MAX_POLL_S = 1.0


# The parts of the clients that a job needs. `client` imports this module, not the other way round.


class _Sender(Protocol):
    def send(self, request: Request[T]) -> T: ...

    def events(self, request: Request[Any]) -> AbstractContextManager[Iterator[Event]]: ...


class _AsyncSender(Protocol):
    async def send(self, request: Request[T]) -> T: ...

    def events(
        self, request: Request[Any]
    ) -> AbstractAsyncContextManager[AsyncIterator[Event]]: ...


class _BaseJob(Generic[T]):
    """A job and the requests about it.

    Attributes:
        id: of the job.
        document: the job as the server last described it.
    """

    def __init__(self, document: dict[str, Any], request: Request[T]) -> None:
        self.id: str = document["id"]
        self.document = document
        self._request = request

    @property
    def running(self) -> bool:
        """Whether the job had not ended when `document` was read."""
        return self.document["status"] == "running"

    @property
    def told(self) -> dict[str, Any]:
        """Deprecated name of `document`."""
        warnings.warn("Job.told is now Job.document", DeprecationWarning, stacklevel=2)
        return self.document

    @property
    def _path(self) -> str:
        return f"/jobs/{self.id}"

    def _refresh_request(self) -> Request[dict[str, Any]]:
        return Request("GET", self._path, self._update)

    def _update(self, response: httpx.Response) -> dict[str, Any]:
        self.document = response.json()
        return self.document

    def _result_request(self) -> Request[T]:
        # A 429 or 503 here is the stored result of the job, which a retry would not change.
        return Request("GET", f"{self._path}/result", self._request.parse, retryable=False)

    def _cancel_request(self) -> Request[None]:
        return Request("DELETE", self._path, parse_nothing)

    def _events_request(self) -> Request[None]:
        return Request("GET", f"{self._path}/events", parse_nothing)


class Job(_BaseJob[T]):
    """A job of `Client.submit`."""

    def __init__(self, client: _Sender, document: dict[str, Any], request: Request[T]) -> None:
        super().__init__(document, request)
        self._client = client

    def refresh(self) -> dict[str, Any]:
        """Read the job from the server; update and return `document`."""
        return self._client.send(self._refresh_request())

    def events(self) -> Iterator[Event]:
        """Yield `progress` with step and energy while the job runs, then `done` or `failed` with
        the job."""
        with self._client.events(self._events_request()) as events:
            yield from events

    def wait(self, seconds: float | None = None) -> None:
        """Wait until the job has ended, at most `seconds`.

        Raises:
            TimeoutError: the job was still running then.
        """
        end = None if seconds is None else time.monotonic() + seconds
        pause_s = _FIRST_POLL_S
        while self.refresh()["status"] == "running":
            if end is not None and time.monotonic() >= end:
                raise TimeoutError(f"Job {self.id} is still running after {seconds} s.")
            time.sleep(pause_s)
            pause_s = min(1.5 * pause_s, _MAX_POLL_S)

    def result(self, seconds: float | None = None) -> T:
        """Wait for the job, at most `seconds`, and return its result.

        Raises:
            ProblemError: the job failed.
            TimeoutError: the job was still running then.
        """
        self.wait(seconds)
        return self._client.send(self._result_request())

    def cancel(self) -> None:
        """Stop the job and delete it."""
        self._client.send(self._cancel_request())


class AsyncJob(_BaseJob[T]):
    """A job of `AsyncClient.submit`; its methods are those of `Job`."""

    def __init__(self, client: _AsyncSender, document: dict[str, Any], request: Request[T]) -> None:
        super().__init__(document, request)
        self._client = client

    async def refresh(self) -> dict[str, Any]:
        return await self._client.send(self._refresh_request())

    async def events(self) -> AsyncIterator[Event]:
        async with self._client.events(self._events_request()) as events:
            async for event in events:
                yield event

    async def wait(self, seconds: float | None = None) -> None:
        pause_s = _FIRST_POLL_S
        async with asyncio.timeout(seconds):
            while (await self.refresh())["status"] == "running":
                await asyncio.sleep(pause_s)
                pause_s = min(1.5 * pause_s, _MAX_POLL_S)

    async def result(self, seconds: float | None = None) -> T:
        await self.wait(seconds)
        return await self._client.send(self._result_request())

    async def cancel(self) -> None:
        await self._client.send(self._cancel_request())
