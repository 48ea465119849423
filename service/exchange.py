"""What every route that computes does: read a body, take a place, work while it is wanted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from contextlib import AsyncExitStack
from typing import Any

import numpy as np
import orjson
import safetensors.numpy
from fastapi import Request, Response
from starlette.datastructures import State

from service.jobs import Progress
from service.patience import while_wanted
from service.services import Services
from service.streaming import Feed

Work = Callable[[bytes], Coroutine[Any, Any, Response]]


async def exchange(
    request: Request, services: Services, work: Work, as_events: bool = False
) -> Response:
    """The answer that `work` makes of the body, with where its time went in `Server-Timing`.

    Under `Prefer: respond-async` it is a job's, and this one is 202 and says where the job is;
    else with `as_events` it is a stream, and `work` finds the `Feed` of it at `request.state.feed`.
    `work` finds a `Progress` at `request.state.progress`, to keep up to date where it is long.

    Raises:
        Problem: no place in the queue, a body too large or too slow, or no answer in time.
        Disconnected: the client has gone, and the work with it.
    """
    services.engine.require_room()
    if later := _later(request):
        services.jobs.require_room()
    settings, state = services.settings, request.state
    state.progress = Progress()
    state.feed = feed = Feed(services.codec) if as_events and not later else None
    async with AsyncExitStack() as held:
        reading = services.bodies.read(request, settings.body_timeout_s)
        body = await held.enter_async_context(reading)
        state.stopwatch.lap("read")
        held.enter_context(services.engine.admission())
        if not later and feed is None:
            answering = _timed(request, work(body))
            return await while_wanted(answering, request.receive, settings.deadline_s)
        if later:
            services.jobs.require_room()  # there was, before the body came
        kept = held.pop_all()
    never, seconds = asyncio.Event().wait, settings.job_deadline_s if later else settings.deadline_s
    answering = _holding(kept, while_wanted(_timed(request, work(body)), never, seconds))
    if feed is not None:
        return await feed.response(request, answering, state)
    job = services.jobs.start(answering, request.url.path, state.request_id, state.progress)
    headers = {"location": f"/jobs/{job.id}", "preference-applied": "respond-async"}
    return Response(orjson.dumps(job.told()), 202, headers, "application/json")


def encoded(bulk: Mapping[str, Any], rest: Mapping[str, Any], state: State) -> bytes:
    """The JSON of an answer; its bulk first, so that `timings_ms` can tell how long that took."""
    # orjson writes what is not finite as null
    written = {name: orjson.Fragment(_dumps(value)) for name, value in bulk.items()}
    return _dumps(written | signed(rest, state))


def as_tensors(arrays: Mapping[str, np.ndarray], told: Mapping[str, Any], state: State) -> bytes:
    """A safetensors file of `arrays`, with all else as JSON in its metadata entry `response`."""
    metadata = {"response": _dumps(signed(told, state)).decode()}
    return safetensors.numpy.save(dict(arrays), metadata=metadata)


def signed(told: Mapping[str, Any], state: State) -> dict[str, Any]:
    """What is told of an answer that is encoded, with how long all of it took, and for whom."""
    state.stopwatch.lap("encode")
    took = state.stopwatch.milliseconds()
    return {**told, "timings_ms": took, "request_id": state.request_id}


def _dumps(value: Any) -> bytes:
    return orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)


def _later(request: Request) -> bool:
    """Is the client content with a job (RFC 7240)?"""
    preferences = ",".join(request.headers.getlist("prefer")).lower().split(",")
    return "respond-async" in (p.partition(";")[0].strip() for p in preferences)


async def _timed(request: Request, work: Coroutine[Any, Any, Response]) -> Response:
    answer = await work
    phases = request.state.stopwatch.milliseconds().items()
    answer.headers["server-timing"] = ", ".join(f"{phase};dur={ms}" for phase, ms in phases)
    return answer


async def _holding(kept: AsyncExitStack, work: Coroutine[Any, Any, Response]) -> Response:
    """`work`, and a place for it until it ends."""
    async with kept:
        return await work
