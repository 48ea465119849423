"""How long work goes on: until it is done, its client has gone, or its time is up."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from service.errors import Problem
from service.jobs import Progress

T = TypeVar("T")


class Disconnected(Exception):  # noqa: N818
    """The client has gone; there is no one to answer."""


async def while_wanted(
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
    task, watch = asyncio.ensure_future(work), asyncio.ensure_future(disconnected())
    try:
        await asyncio.wait({task, watch}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        if watch.done():
            raise Disconnected
        steps = progress.relaxation_steps if progress else 0
        detail = f"not done after {seconds:g} s and {steps} steps; ask for fewer steps, or of less"
        raise Problem("deadline", detail, told={"steps": steps})
    finally:  # also where this coroutine is cancelled
        watch.cancel()
        if not task.done():
            task.cancel()
            await asyncio.wait({task})
