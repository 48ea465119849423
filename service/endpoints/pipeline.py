"""What every inference route does: read the body, wait for a place, compute, write the response.

A route makes an `InferenceTask` and hands it to `handle_inference`, which calls the task's `parse`,
`workload`, `run` and `render` in this order. All else is the same for every route: cache,
idempotency keys, jobs, deadlines, quotas, cancellation, event streams.
"""

from __future__ import annotations

import asyncio
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any, Generic, TypeVar

import orjson
from fastapi import Request, Response

from models.base import StepControl
from service.auth.keys import get_caller
from service.context import AppContext
from service.engine.engine import Workload
from service.errors import Problem, make_problem
from service.http.cancellation import run_until_deadline_or_disconnect
from service.http.idempotency import idempotency_key
from service.http.sse import EventStream
from service.media_types import SAFETENSORS
from service.observability.request_state import RequestState, get_state
from service.payload import ResponsePayload
from service.storage.cache import ResponseCache
from service.storage.jobs.request import StoredRequest

T = TypeVar("T")
R = TypeVar("R")
_COPIED_PER_PARSED = 8  # bytes that are copied in the time that one byte of JSON is parsed
_QUICK_COST = 1 << 20  # tokens x steps, a few tenths of a second
_SMALL_BODY_BYTES = 1 << 18  # read even while the queue is full: the cache may have the response


class InferenceTask(ABC, Generic[R]):
    """One request to one inference route; R is what its computation returns.

    Args:
        content_type: header of the request body, with parameters such as a form's boundary.
        accept: media type that the response shall have.
        stream_events: respond with a stream of server-sent events; a job never does.
    """

    is_cached = True
    """Whether an equal request may get the same response without being computed."""

    def __init__(
        self,
        request: Request,
        context: AppContext,
        content_type: str,
        accept: str,
        stream_events: bool = False,
    ) -> None:
        self.context = context
        self.settings = context.settings
        self.state = get_state(request.scope)
        self.caller = get_caller(request.scope)
        self.content_type = content_type
        self.accept = accept
        self.events: EventStream | None = None
        if stream_events and not self.state.is_job:
            self.events = EventStream(context.run_on_codec)

    async def fingerprint(self, body: bytes) -> bytes:
        """Digest of what the response to `body` depends on beside it: the loaded models."""
        return self.context.registry.fingerprint

    @abstractmethod
    async def parse(self, body: bytes, resources: AsyncExitStack) -> None:
        """Read and check the body. What enters `resources` is held until the response is written.

        Raises:
            Problem: the request is not one that this route can answer.
        """

    @abstractmethod
    def workload(self) -> Workload:
        """What the engine has to know to queue the computation."""

    @abstractmethod
    def run(self, control: StepControl) -> R:
        """Compute, on the compute thread."""

    @abstractmethod
    async def render(self, result: R) -> ResponsePayload:
        """Write the response, and count what was computed in the metrics."""

    @property
    def max_tensor_bytes(self) -> int | None:
        """Limit for the reasons in a response of tensors; None for a response without them."""
        return self.settings.max_response_bytes if self.accept == SAFETENSORS else None

    @property
    def num_results(self) -> int | None:
        """Results that the response will have, each a number of every output; None where that is
        not known before they are computed. Known once the body is parsed."""
        return None

    async def on_codec(self, work: Callable[..., T], *args: Any) -> T:
        """Run `work` on the threads that parse bodies and encode responses."""
        return await self.context.run_on_codec(work, *args)


async def handle_inference(request: Request, task: InferenceTask[Any]) -> Response:
    """Return the response of `task`, computed or from the cache.

    Under `Prefer: respond-async` the request is stored as a job, and the response is 202. Where the
    task has `events`, it is a stream of server-sent events.

    Raises:
        Problem: the queue is full, the body is too large or too slow, the idempotency key belongs
            to another request, or the deadline has passed.
        ClientDisconnected: the client has gone; the computation is cancelled.
    """
    context, state = task.context, task.state
    prefers_async = _prefers_async(request)
    deadline_s = _deadline_s(request, context, prefers_async or state.is_job)
    if prefers_async and not state.is_job:
        return await _enqueue_job(request, task)
    cache = context.cache if task.is_cached and task.events is None else None
    generation = context.registry.generation
    if cache is None or not _is_small(request) or context.throttle.is_flooded:
        context.engine.admission.require_capacity(task.caller.name)
    async with AsyncExitStack() as resources:
        body_timeout_s = None if state.is_job else context.settings.body_timeout_s
        body = await resources.enter_async_context(
            context.body_reader.read(request, body_timeout_s)
        )
        key = None if state.is_job else idempotency_key(request)
        fingerprint = b"" if cache is None else await task.fingerprint(body)
        digest = b""
        if cache is not None or key is not None:
            stored = StoredRequest.from_request(request)
            digest = await context.offload_if_large(len(body), stored.fingerprint, body)
        if key is not None:
            resources.enter_context(context.idempotency_keys.reserve(key, digest))
        state.timer.lap("read")
        if cache is not None:
            digest += fingerprint + task.caller.cache_scope
            if (payload := await _from_cache(request, context, cache, digest)) is not None:
                response = await _finalize(state, context, payload)
                response.headers["x-cache"] = "hit"
                return response
        resources.enter_context(context.engine.admission.place(task.caller.name))

        async def compute() -> Response:
            payload = await run_task(task, body, deadline_s)
            state.timer.lap("encode")
            if cache is not None and payload.is_cacheable and await is_unchanged():
                phases = tuple(state.timer.phases)
                await cache.put(digest, replace(payload, phases=phases))
            return await _finalize(state, context, payload)

        async def is_unchanged() -> bool:
            """Whether the response is of the models or memories that `fingerprint` stands for."""
            try:
                is_same = context.registry.generation == generation
                return is_same and await task.fingerprint(body) == fingerprint
            except Problem:
                return False

        if task.events is None:
            return await run_until_deadline_or_disconnect(
                compute(), request.receive, deadline_s, state.progress
            )
        outlives_request = resources.pop_all()

    async def compute_streamed() -> Response:
        # The stream itself notices a disconnect, and cancels this.
        async with outlives_request:
            return await run_until_deadline_or_disconnect(
                compute(), asyncio.Event().wait, deadline_s, state.progress
            )

    return await task.events.response(request, compute_streamed(), state)


async def run_task(task: InferenceTask[R], body: bytes, deadline_s: float) -> ResponsePayload:
    """Parse, queue, compute and render one task.

    Args:
        deadline_s: seconds from now until the response is due; what parsing took is gone from them
            when the engine decides whether the rest is enough.
    """
    context, state = task.context, task.state
    due = time.monotonic() + deadline_s
    async with AsyncExitStack() as resources:
        turn = await resources.enter_async_context(AsyncExitStack())
        if len(body) <= _SMALL_BODY_BYTES and not state.is_job:
            await turn.enter_async_context(context.small_requests.reserve(task.caller.name))
            state.timer.lap("queue")
        await task.parse(body, resources)
        del body
        workload = task.workload()
        is_together = workload.batchable is not None and not workload.is_isolated
        if not is_together or workload.cost > _QUICK_COST:
            await turn.aclose()  # small requests of the same key should not wait for it
        state.model, state.cost = workload.flow, workload.cost
        async with context.usage_limits.charge_quota(task.caller, workload.cost):
            outcome = await context.engine.run(
                task.run,
                workload,
                deadline_s=due - time.monotonic(),
                is_job=state.is_job,
                progress=state.progress,
                key=task.caller.name,
            )
        state.timer.add("queue", outcome.queued_s)
        state.timer.add("compute", outcome.ran_s)
        return await task.render(outcome.value)


def _deadline_s(request: Request, context: AppContext, is_job: bool) -> float:
    """Seconds in which the response is due, by `?timeout_ms=` or the settings."""
    settings = context.settings
    limit_s = settings.job_deadline_s if is_job else settings.deadline_s
    if not request.scope["query_string"]:
        return limit_s
    values = request.query_params.getlist("timeout_ms")
    if not values:
        return limit_s
    if len(values) > 1 or not re.fullmatch(r"0*[1-9][0-9]{0,8}", values[0], re.ASCII):
        rule = "`timeout_ms` must be given once, as a whole number of milliseconds of at least 1."
        raise make_problem("invalid-request", "/timeout_ms", "not_a_number", rule)
    if (deadline_s := int(values[0]) / 1e3) > limit_s:
        setting = "BASIN_JOB_DEADLINE_S" if is_job else "BASIN_DEADLINE_S"
        rule = f"`timeout_ms` may be at most {limit_s * 1e3:g} ({setting})."
        raise make_problem("invalid-request", "/timeout_ms", "out_of_range", rule)
    return deadline_s


def _prefers_async(request: Request) -> bool:
    """Whether the client asks for a job (`Prefer: respond-async`, RFC 7240)."""
    preferences = ",".join(request.headers.getlist("prefer")).lower().split(",")
    return "respond-async" in (each.partition(";")[0].strip() for each in preferences)


def _is_small(request: Request) -> bool:
    length = _content_length(request)
    return length is not None and length <= _SMALL_BODY_BYTES


def _content_length(request: Request) -> int | None:
    length = request.headers.get("content-length", "")
    return int(length[:20]) if length.isdecimal() else None


async def _enqueue_job(request: Request, task: InferenceTask[Any]) -> Response:
    """Store the request as a job, and answer 202 with its location."""
    context, state = task.context, task.state
    key = idempotency_key(request)
    if key is None:  # with a key the job may exist already
        context.jobs.require_capacity(task.caller.name, _content_length(request) or 0)
    stored = StoredRequest.from_request(request)
    async with context.body_reader.read(request, context.settings.body_timeout_s) as body:
        state.timer.lap("read")
        digest = b""
        if key is not None:
            digest = await context.offload_if_large(len(body), stored.fingerprint, body)
        owner = task.caller.name
        job = await context.jobs.accept(state.request_id, stored, body, key, digest, owner)
    headers = {"location": f"/jobs/{job.id}", "preference-applied": "respond-async"}
    return Response(orjson.dumps(job.to_dict()), 202, headers, "application/json")


async def _from_cache(
    request: Request, context: AppContext, cache: ResponseCache, digest: bytes
) -> ResponsePayload | None:
    payload = await cache.get(digest)
    outcome = "miss" if payload is None else "hit"
    context.metrics.cache.labels(request.scope["route"].path, outcome).inc()
    return payload


async def _finalize(state: RequestState, context: AppContext, payload: ResponsePayload) -> Response:
    """Add what is of this request alone: its timings and its id."""
    timings_ms = state.timer.to_ms()
    weight = payload.size_bytes // _COPIED_PER_PARSED
    body = await context.offload_if_large(weight, payload.render, timings_ms, state.request_id)
    server_timing = ", ".join(f"{phase};dur={ms}" for phase, ms in timings_ms.items())
    headers = {**dict(payload.headers), "server-timing": server_timing}
    return Response(body, headers=headers, media_type=payload.media_type)
