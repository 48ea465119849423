"""How long work goes on: until it is done, its client has gone, or its time is up."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from service.errors import Problem
from service.observability.progress import Progress

T = TypeVar("T")


class ClientDisconnected(Exception):  # noqa: N818
    """The client has gone; there is no one to answer."""


async def run_until_deadline_or_disconnect(
    work: Coroutine[Any, Any, T],
    disconnected: Callable[[], Awaitable[object]],
    seconds: float,
    progress: Progress | None = None,
) -> T:
    """What `work` returns; it is cancelled, and has ended, where anything else comes first.

    Raises:
        Problem: `seconds` passed.
        Disconnected: `disconnected` returned first.
    """
    watch, gone = asyncio.ensure_future(disconnected()), False
    patience = asyncio.timeout(seconds)
    try:
        async with patience:

            def hang_up(watch: asyncio.Future[object]) -> None:
                nonlocal gone
                if not watch.cancelled() and not patience.expired():
                    gone = True
                    patience.reschedule(0.0)

            watch.add_done_callback(hang_up)
            try:
                return await work
            finally:
                watch.remove_done_callback(hang_up)
    except TimeoutError:
        if not patience.expired():  # of something in the work
            raise
        if gone:
            raise ClientDisconnected from None
        steps = progress.relaxation_steps if progress else 0
        detail = (
            f"Stopped after {seconds:g} s and {steps} steps (BASIN_DEADLINE_S, for jobs "
            "BASIN_JOB_DEADLINE_S). Lower `steps`, send fewer items, or use `Prefer: "
            "respond-async`."
        )
        raise Problem("deadline", detail, extra={"steps": steps}) from None
    finally:
        watch.cancel()
