"""What every route that computes does: read a body, take a place, work while it is wanted."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any, TypeVar

import orjson
from fastapi import Request, Response
from starlette.datastructures import State

from models.base import Interrupt
from service.context import AppContext
from service.engine.progress import Progress
from service.engine.request_batch import BatchableRequest
from service.errors import Problem, make_problem
from service.http.cancellation import run_until_deadline_or_disconnect
from service.http.idempotency import key_of
from service.http.sse import EventStream
from service.jobs.replay import is_replayed
from service.payload import ResponsePayload
from service.storage.cache import AnswerCache
from service.storage.jobs.request import StoredRequest

T = TypeVar("T")
Work = Callable[[bytes], Coroutine[Any, Any, ResponsePayload]]
Stamp = Callable[[], Awaitable[bytes]]
_COPIES = 8  # bytes that are copied in the time of one that is parsed
_BRIEF = 1 << 18  # bytes of a body that are read even where no place is free: it may need none


async def handle_inference(
    request: Request,
    context: AppContext,
    work: Work,
    stamp: Stamp,
    as_events: bool = False,
) -> Response:
    """The answer that `work` makes of the body, or has made before, signed for this request.

    Under `Prefer: respond-async` it is a job's, and this one is 202 and says where the job is;
    else with `as_events` it is a stream, and `work` finds the `Feed` of it at `request.state.feed`.
    `work` finds a `Progress` at `request.state.progress`, to keep up to date where it is long.

    Args:
        stamp: tells what the answer depends on beside the request.

    Raises:
        Problem: no place in the queue, a body too large or too slow, a key that is another
            request's, or no answer in time.
        Disconnected: the client has gone, and the work with it.
    """
    settings, state, of_job = context.settings, request.state, is_replayed(request.state)
    later = _prefers_async(request)
    seconds, served = _deadline_s(request, context, later or of_job), context.registry.generation
    state.patience_s = seconds
    if not of_job:
        if later:
            return await _enqueue_job(request, context)
        state.progress = Progress()
    streams = as_events and not of_job
    state.feed = feed = EventStream(context.codec) if streams else None
    cache = None if streams else context.cache
    stands_on = b"" if cache is None else await stamp()
    if cache is None or not _is_brief(request) or context.pace.flooded:
        context.engine.require_room()
    patience_s = None if of_job else settings.body_timeout_s
    async with AsyncExitStack() as held:
        body = await held.enter_async_context(context.bodies.read(request, patience_s))
        key, place = None if of_job else key_of(request), b""
        if cache is not None or key is not None:
            place = await context.offload_if_large(
                len(body), StoredRequest.of(request).fingerprint, body
            )
        if key is not None:
            held.enter_context(context.keys.held(key, place))
        state.stopwatch.lap("read")
        if cache is not None:
            place += stands_on + request.state.caller.cache_scope
            if (found := await _from_cache(request, context, cache, place)) is not None:
                return found
        held.enter_context(context.engine.admission())

        async def lasts() -> bool:  # else it may be of another model or memory than it stands for
            try:
                return context.registry.generation == served and await stamp() == stands_on
            except Problem:
                return False

        answering = _compute_and_cache(request, context, work(body), cache, place, lasts)
        if feed is None:
            return await run_until_deadline_or_disconnect(
                answering, request.receive, seconds, state.progress
            )
        kept = held.pop_all()
    never = asyncio.Event().wait
    answering = _holding(
        kept, run_until_deadline_or_disconnect(answering, never, seconds, state.progress)
    )
    return await feed.response(request, answering, state)


async def run_inference(
    context: AppContext,
    state: State,
    work: Callable[[Interrupt], T],
    flow: str,
    cost: float,
    *,
    size: int = 0,
    alone: bool = False,
    alike: BatchableRequest | None = None,
) -> T:
    """What `work` computes, beside what others do, at the cost of who asked; see `Engine.run`."""
    state.model, state.cost = flow, cost
    async with context.tolls.charge_quota(state.caller, cost):
        done = await context.engine.run(
            work,
            flow,
            cost,
            size=size,
            within_s=state.patience_s,
            job=is_replayed(state),
            alone=alone,
            alike=alike,
            progress=state.progress,
        )
    state.stopwatch.add("queue", done.queued_s)
    state.stopwatch.add("compute", done.ran_s)
    return done.value


def _deadline_s(request: Request, context: AppContext, later: bool) -> float:
    """Seconds in which there must be an answer, by `?timeout_ms=`; `later` where it is a job's."""
    most = context.settings.job_deadline_s if later else context.settings.deadline_s
    asked = request.scope["query_string"] and request.query_params.getlist("timeout_ms")
    if not asked:
        return most
    if len(asked) > 1 or not re.fullmatch(r"[0-9]{1,9}", asked[0], re.ASCII) or asked[0] == "0":
        rule = "one whole number of milliseconds, at least 1"
        raise make_problem("invalid-request", "/timeout_ms", "not_a_number", rule)
    if (seconds := int(asked[0]) / 1e3) > most:
        raise make_problem(
            "invalid-request", "/timeout_ms", "out_of_range", f"at most {most * 1e3:g} ms"
        )
    return seconds


def _prefers_async(request: Request) -> bool:
    """Is the client content with a job (RFC 7240)?"""
    sent = request.headers.getlist("prefer")
    preferences = ",".join(sent).lower().split(",") if sent else ()
    return "respond-async" in (p.partition(";")[0].strip() for p in preferences)


def _is_brief(request: Request) -> bool:
    length = request.headers.get("content-length", "")
    return length.isdecimal() and int(length[:20]) <= _BRIEF


async def _enqueue_job(request: Request, context: AppContext) -> Response:
    """202, once the request is where it lasts."""
    if (key := key_of(request)) is None:  # with a key it may have a job already
        context.jobs.require_room()
    sent, state = StoredRequest.of(request), request.state
    async with context.bodies.read(request, context.settings.body_timeout_s) as body:
        state.stopwatch.lap("read")
        fingerprint = b""
        if key is not None:
            fingerprint = await context.offload_if_large(len(body), sent.fingerprint, body)
        owner = state.caller.name
        job = await context.jobs.accept(state.request_id, sent, body, key, fingerprint, owner)
    headers = {"location": f"/jobs/{job.id}", "preference-applied": "respond-async"}
    return Response(orjson.dumps(job.told()), 202, headers, "application/json")


async def _from_cache(
    request: Request, context: AppContext, cache: AnswerCache, place: bytes
) -> Response | None:
    found = await cache.get(place)
    outcome = "miss" if found is None else "hit"
    context.metrics.cache.labels(request.scope["route"].path, outcome).inc()
    if found is None:
        return None
    answer = await _finalize(request, context, found)
    answer.headers["x-cache"] = "hit"
    return answer


async def _compute_and_cache(
    request: Request,
    context: AppContext,
    work: Coroutine[Any, Any, ResponsePayload],
    cache: AnswerCache | None,
    place: bytes,
    lasts: Callable[[], Awaitable[bool]],
) -> Response:
    answer = await work
    request.state.stopwatch.lap("encode")
    if cache is not None and answer.lasting and await lasts():
        phases = tuple(request.state.stopwatch.phases)
        await cache.put(place, replace(answer, phases=phases))
    return await _finalize(request, context, answer)


async def _finalize(request: Request, context: AppContext, answer: ResponsePayload) -> Response:
    took = request.state.stopwatch.milliseconds()
    weight = answer.size // _COPIES
    body = await context.offload_if_large(weight, answer.render, took, request.state.request_id)
    timing = ", ".join(f"{phase};dur={ms}" for phase, ms in took.items())
    headers = {**dict(answer.headers), "server-timing": timing}
    return Response(body, headers=headers, media_type=answer.media_type)


async def _holding(kept: AsyncExitStack, work: Coroutine[Any, Any, Response]) -> Response:
    """`work`, and a place for it until it ends."""
    async with kept:
        return await work
