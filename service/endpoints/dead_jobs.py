"""List, requeue and drop dead jobs: on the admin port."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Response
from pydantic import BaseModel, Field

from service.context import AppContext, get_context
from service.endpoints.common.api_docs import problems

router = APIRouter(tags=["admin"])


class DeadJobBody(BaseModel):
    """A job that failed by a fault of the servers or of their store."""

    id: str
    owner: str = Field(description="name of the API key that it was sent with; empty without keys")
    route: str
    request_id: str
    created: float = Field(description="seconds since 1970, as `failed`")
    reason: str = Field(
        description="the kind of its problem, or `damaged: ` and what of its entry is"
    )
    failed: float
    starts: int
    has_request: bool = Field(description="whether its request is stored, so that it can run again")


class DeadJobsBody(BaseModel):
    dead_jobs: list[DeadJobBody]


@router.get("/dead-jobs", summary="Jobs that failed by a fault", responses=problems(500, 503))
async def list_dead_jobs(context: Annotated[AppContext, Depends(get_context)]) -> DeadJobsBody:
    """The latest first; with Redis those of all servers."""
    jobs = await context.jobs.dead.list_jobs()
    return DeadJobsBody(dead_jobs=[DeadJobBody(**vars(job)) for job in jobs])


@router.post(
    "/dead-jobs/{id}/requeue",
    summary="Run a dead job again",
    status_code=204,
    responses=problems(404, 500, 503),
)
async def requeue_dead_job(
    id: str, context: Annotated[AppContext, Depends(get_context)]
) -> Response:
    """It waits again under its id, as if it had never been started."""
    await context.jobs.dead.requeue(id)
    return Response(status_code=204)


@router.delete(
    "/dead-jobs/{id}",
    summary="Drop a dead job",
    status_code=204,
    responses=problems(404, 500, 503),
)
async def drop_dead_job(id: str, context: Annotated[AppContext, Depends(get_context)]) -> Response:
    await context.jobs.dead.drop(id)
    return Response(status_code=204)
