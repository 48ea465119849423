"""Calls that a server has promised to answer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import httpx

from basin_client.request import Request

if TYPE_CHECKING:
    from basin_client.client import AsyncClient, Client

T = TypeVar("T")


class _AnyJob(Generic[T]):
    """Attributes: `id`; `told`, how it stood when it was last asked."""

    def __init__(self, told: dict[str, Any], call: Request[T]) -> None:
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

    def _result(self) -> Request[T]:
        # A refusal that is kept is the job's, and stays one.
        return Request("GET", f"{self._path}/result", self._call.read, again=False)

    def _ended(self) -> Request[None]:
        return Request("DELETE", self._path, lambda response: None)

    def _watched(self) -> Request[None]:
        return Request("GET", f"{self._path}/events", lambda response: None)


class Job(_AnyJob[T]):
    """A call that the server has promised to answer."""

    def __init__(self, client: Client, told: dict[str, Any], call: Request[T]) -> None:
        super().__init__(told, call)
        self._client = client

    def refresh(self) -> dict[str, Any]:
        return self._client.send(Request("GET", self._path, self._kept))

    def events(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """`progress` with step and energy, as it goes; at last `done` or `failed` with the job."""
        with self._client.events(self._watched()) as events:
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

    def __init__(self, client: AsyncClient, told: dict[str, Any], call: Request[T]) -> None:
        super().__init__(told, call)
        self._client = client

    async def refresh(self) -> dict[str, Any]:
        return await self._client.send(Request("GET", self._path, self._kept))

    async def events(self) -> AsyncIterator[tuple[str, dict[str, Any]]]:
        """As `Job.events`."""
        async with self._client.events(self._watched()) as events:
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
