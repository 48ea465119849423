"""Decode images on one thread, for a limited number of requests at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from service.shares import FairSemaphore

T = TypeVar("T")


class ImageDecoder:
    """Limits the number of requests with decoded images in memory.

    Encoded images count as request bodies; decoded they may take a thousand times as much memory.

    Args:
        places: requests that may have decoded images. Three keep compute busy: one is decoded and
            one is encoded while one is computed. One API key leaves at least one to others.
    """

    def __init__(self, places: int = 3) -> None:
        self._places = FairSemaphore(places, max(places - 1, 1))
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="images")

    @asynccontextmanager
    async def reserve(self, key: str = "") -> AsyncIterator[Callable[..., Awaitable[Any]]]:
        """Reserve a place for a request of the API key of this name; yield a function that runs
        another function on the decoder thread."""

        async def run(work: Callable[..., T], *args: Any) -> T:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work, *args)

        async with self._places.reserve(key):
            yield run

    def close(self) -> None:
        self._thread.shutdown(cancel_futures=True)
