"""GET and DELETE /jobs/{id}, its result and its events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated

import orjson
from fastapi import APIRouter, Depends, Response
from fastapi.responses import StreamingResponse

from service.errors import Problem
from service.jobs import Job
from service.openapi import also, problems
from service.schemas import JobBody
from service.services import Services, services
from service.streaming import EVENTS, SILENCE_S, SILENT, event

_EVERY_S = 0.2

router = APIRouter(tags=["jobs"])


@router.get("/jobs/{id}", summary="How a job stands", responses=problems(404, 500))
async def describe_job(id: str, services: Annotated[Services, Depends(services)]) -> JobBody:
    return JobBody.model_validate(services.jobs.get(id).told())


@router.get(
    "/jobs/{id}/result",
    summary="The answer of a job",
    response_class=Response,
    responses=problems(404, 409, 500),
)
async def result_of_job(id: str, services: Annotated[Services, Depends(services)]) -> Response:
    """What the request would have been answered, status and headers included."""
    if (answer := services.jobs.get(id).answer) is None:
        raise Problem("job-unfinished", "ask again later", headers={"retry-after": "1"})
    return Response(answer.body, answer.status_code, answer.headers)


@router.get(
    "/jobs/{id}/events",
    summary="How a job goes on",
    response_class=StreamingResponse,
    responses=problems(404, 500) | also(EVENTS),
)
async def events_of_job(id: str, services: Annotated[Services, Depends(services)]) -> Response:
    """Server-sent events: `progress` with step, steps and energy, up to five a second, and at the
    end `done`, `failed` or `cancelled` with the job as `GET /jobs/{id}` has it."""
    events = _events(services.jobs.get(id))
    return StreamingResponse(events, media_type=EVENTS, headers={"cache-control": "no-store"})


@router.delete(
    "/jobs/{id}",
    summary="Stop a job and forget it",
    status_code=204,
    responses=problems(404, 500),
)
async def delete_job(id: str, services: Annotated[Services, Depends(services)]) -> Response:
    services.jobs.forget(id)
    return Response(status_code=204)


async def _events(job: Job) -> AsyncIterator[bytes]:
    last, silent_s = None, 0.0
    while True:
        progress = job.told()["progress"]
        if progress != last:
            yield event("progress", orjson.dumps(progress))
            last, silent_s = progress, 0.0
        elif silent_s >= SILENCE_S:
            yield SILENT
            silent_s = 0.0
        if job.task.done():
            yield event(job.status, orjson.dumps(job.told()))
            return
        await asyncio.wait({job.task}, timeout=_EVERY_S)
        silent_s += _EVERY_S
