"""GET /metrics"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Response
from fastapi.responses import PlainTextResponse
from prometheus_client import CONTENT_TYPE_LATEST

from service.context import AppContext, get_context
from service.endpoints.common.api_docs import problems

router = APIRouter(tags=["metrics"])


@router.get(
    "/metrics",
    summary="Metrics for Prometheus",
    response_class=PlainTextResponse,
    responses=problems(500),
)
async def scrape(context: Annotated[AppContext, Depends(get_context)]) -> Response:
    return Response(context.metrics.render(), media_type=CONTENT_TYPE_LATEST)
