"""Cancel work at its deadline, or when its client disconnects."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from service.errors import Problem
from service.observability.progress import Progress

T = TypeVar("T")


class ClientDisconnected(Exception):  # noqa: N818
    """The client disconnected."""


async def run_until_deadline_or_disconnect(
    work: Coroutine[Any, Any, T],
    disconnected: Callable[[], Awaitable[object]],
    seconds: float,
    progress: Progress | None = None,
) -> T:
    """Return the result of `work`; otherwise cancel it and wait for its end.

    Raises:
        Problem: `deadline`, after `seconds`.
        ClientDisconnected: `disconnected` returned first.
    """
    watch, is_disconnected, is_over = asyncio.ensure_future(disconnected()), False, False
    timeout = asyncio.timeout(seconds)
    try:
        async with timeout:

            def on_disconnect(watch: asyncio.Future[object]) -> None:
                nonlocal is_disconnected
                # It may have been scheduled before it was removed.
                if not (watch.cancelled() or timeout.expired() or is_over):
                    is_disconnected = True
                    timeout.reschedule(0.0)

            watch.add_done_callback(on_disconnect)
            try:
                return await work
            finally:
                is_over = True
                watch.remove_done_callback(on_disconnect)
    except TimeoutError:
        if not timeout.expired():  # a TimeoutError of the work itself
            raise
        if is_disconnected:
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
