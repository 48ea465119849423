"""GET /health/live and GET /health/ready"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends

from service.context import AppContext, get_context
from service.endpoints.common.api_docs import problems
from service.endpoints.common.schemas import Health

router = APIRouter(prefix="/health", tags=["health"])


@router.get(
    "/live",
    summary="Is the server running?",
    response_model_exclude_none=True,
    responses=problems(500),
)
async def live() -> Health:
    return Health(status="ok")


@router.get(
    "/ready",
    summary="Can it score?",
    response_model_exclude_none=True,
    responses=problems(500, 503),
)
async def ready(context: Annotated[AppContext, Depends(get_context)]) -> Health:
    """503 until models are loaded, where there are none, and while a background task is down."""
    context.require_ready()
    link = context.redis
    return Health(status="ok", redis=None if link is None else link.state)
