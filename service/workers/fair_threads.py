"""Threads that clients share: none waits behind all that another one has queued."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar, final

from service.shares import FairSemaphore

T = TypeVar("T")


@final
class FairThreads:
    """Threads of which a free one goes to the waiting client that uses fewest. For one event loop.

    Args:
        name: what the names of the threads begin with.
    """

    def __init__(self, num_threads: int, name: str) -> None:
        self._executor = ThreadPoolExecutor(num_threads, thread_name_prefix=name)
        self._places = FairSemaphore(num_threads)

    async def run(self, client: str, work: Callable[..., T], *args: Any) -> T:
        """Run `work(*args)` on a thread. Cancelling the wait does not stop what has begun."""
        async with self._places.reserve(client):
            return await asyncio.get_running_loop().run_in_executor(self._executor, work, *args)

    def close(self) -> None:
        """Wait for what runs; what has not begun is cancelled."""
        self._executor.shutdown(cancel_futures=True)
