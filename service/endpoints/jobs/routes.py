"""GET and DELETE /jobs/{id}, its result and its events."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated

import orjson
from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import StreamingResponse

from service.auth.keys import get_caller
from service.context import AppContext, get_context
from service.endpoints.common.api_docs import binary_response, problems
from service.endpoints.common.schemas import JobBody
from service.http.sse import EVENTS, KEEPALIVE_COMMENT, SILENCE_S, event
from service.jobs.runner import JobRunner
from service.storage.jobs.job import Job, Status

_EVERY_S = 0.2

router = APIRouter(tags=["jobs"])


@router.get("/jobs/{id}", summary="How a job stands", responses=problems(404, 500, 503))
async def describe_job(
    id: str, request: Request, context: Annotated[AppContext, Depends(get_context)]
) -> JobBody:
    job = await context.jobs.get(id, get_caller(request.scope).name)
    return JobBody.model_validate(job.to_dict())


@router.get(
    "/jobs/{id}/result",
    summary="The answer of a job",
    response_class=Response,
    responses=problems(404, 409, 410, 500, 503),
)
async def result_of_job(
    id: str, request: Request, context: Annotated[AppContext, Depends(get_context)]
) -> Response:
    """What the request would have been answered, status and headers included. 410 `job-lost`: Redis
    lost the job, or its entry is damaged; send the request again."""
    return await context.jobs.get_response(id, get_caller(request.scope).name)


@router.get(
    "/jobs/{id}/events",
    summary="How a job goes on",
    response_class=StreamingResponse,
    responses=problems(404, 500, 503) | binary_response(EVENTS),
)
async def events_of_job(
    id: str, request: Request, context: Annotated[AppContext, Depends(get_context)]
) -> Response:
    """Server-sent events: `progress` with step, steps and energy, up to five a second, and at the
    end `done`, `failed` or `cancelled` with the job as `GET /jobs/{id}` has it. Without an end the
    server has gone; the job goes on when it is back."""
    events = _events(await context.jobs.get(id, get_caller(request.scope).name), context.jobs)
    return StreamingResponse(events, media_type=EVENTS, headers={"cache-control": "no-store"})


@router.delete(
    "/jobs/{id}",
    summary="Stop a job and forget it",
    status_code=204,
    responses=problems(404, 500, 503),
)
async def delete_job(
    id: str, request: Request, context: Annotated[AppContext, Depends(get_context)]
) -> Response:
    await context.jobs.delete(id, get_caller(request.scope).name)
    return Response(status_code=204)


async def _events(job: Job, jobs: JobRunner) -> AsyncIterator[bytes]:
    last, silent_s = None, 0.0
    while True:
        progress = job.to_dict()["progress"]
        if progress != last:
            yield event("progress", orjson.dumps(progress))
            last, silent_s = progress, 0.0
        elif silent_s >= SILENCE_S:
            yield KEEPALIVE_COMMENT
            silent_s = 0.0
        if job.status is not Status.RUNNING:
            yield event(job.status, orjson.dumps(job.to_dict()))
            return
        if await jobs.wait_until_done(job, _EVERY_S) and job.status is Status.RUNNING:
            return
        silent_s += _EVERY_S
