"""Calls of a job store, which may block, from the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar, final

import structlog

from service.jobs.problems import job_store_unavailable
from service.storage.jobs.base import JobStore
from service.storage.sqlite import StoreError

T = TypeVar("T")
_RETRY_S = 1.0


@final
class StoreCalls:
    """Calls a store in one thread.

    Attributes:
        refused: why the store could not be opened; empty where it is open.
    """

    def __init__(self, store: JobStore) -> None:
        self.store = store
        self.refused = "it is not open yet"
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="jobs")

    async def open(self) -> bool:
        """Open the store; return whether it is open."""
        try:
            await self.call(self.store.open)
        except StoreError as error:
            if str(error) != self.refused:
                structlog.get_logger().error("job store refused", reason=str(error))
            self.refused = str(error)
            return False
        self.refused = ""
        return True

    async def close(self) -> None:
        await self.call(self.store.close)
        self._thread.shutdown()

    def require_open(self) -> None:
        """
        Raises:
            Problem: the store is not open.
        """
        if self.refused:
            raise job_store_unavailable()

    async def ask(self, method: Callable[..., T], *args: Any) -> T:
        """Call the store for a client: a failure is a problem."""
        self.require_open()
        try:
            return await self.call(method, *args)
        except StoreError as error:
            structlog.get_logger().error("job store failed", reason=str(error))
            raise job_store_unavailable() from None

    async def retry(self, method: Callable[..., T], *args: Any, tries: int = 0) -> Any:
        """Call the store for a job: retry until it works, or `tries` times, then return None."""
        is_logged = False
        while True:
            try:
                return await self.call(method, *args)
            except StoreError as error:
                if not is_logged:
                    structlog.get_logger().error("job store failed", reason=str(error))
            is_logged = True
            if (tries := tries - 1) == 0:
                return None
            await asyncio.sleep(_RETRY_S)

    async def call(self, method: Callable[..., T], *args: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, method, *args)
