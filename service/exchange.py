"""What every route that computes does: read a body, take a place, work while it is wanted."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response

from service.patience import while_wanted
from service.services import Services


async def exchange(
    request: Request,
    services: Services,
    work: Callable[[bytes], Coroutine[Any, Any, Response]],
) -> Response:
    """The answer that `work` makes of the body, with where its time went in `Server-Timing`.

    Raises:
        Problem: no place in the queue, a body too large or too slow, or no answer in time.
        Disconnected: the client has gone, and the work with it.
    """
    services.engine.require_room()
    settings, watch = services.settings, request.state.stopwatch
    async with services.bodies.read(request, settings.body_timeout_s) as body:
        watch.lap("read")
        with services.engine.admission():
            answer = await while_wanted(work(body), request.receive, settings.deadline_s)
    phases = watch.milliseconds().items()
    answer.headers["server-timing"] = ", ".join(f"{phase};dur={ms}" for phase, ms in phases)
    return answer
