"""GET /metrics"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import PlainTextResponse
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Metric, generate_latest
from prometheus_client.registry import Collector

from service.auth.keys import get_caller
from service.context import AppContext, get_context
from service.endpoints.common.api_docs import problems

router = APIRouter(tags=["metrics"])


@router.get(
    "/metrics",
    summary="Metrics for Prometheus",
    response_class=PlainTextResponse,
    responses=problems(500),
)
async def scrape(
    request: Request, context: Annotated[AppContext, Depends(get_context)]
) -> Response:
    """All metrics, for an API key whose `routes` name `/metrics`, or without keys. A key for every
    route, `*`, gets only what is counted by `key`, of its own name."""
    caller = get_caller(request.scope)
    if caller.has_all_routes and caller.name:
        text = generate_latest(_OwnSeries(context.metrics.registry, caller.name))
    else:
        text = context.metrics.render()
    return Response(text, media_type=CONTENT_TYPE_LATEST)


@dataclass(frozen=True)
class _OwnSeries(Collector):
    """The series of a registry that have the label `key` with one value.

    All others are of the requests of every key: which models and routes they use, and how much.
    """

    registry: CollectorRegistry
    key: str

    def collect(self) -> Iterator[Metric]:
        for metric in self.registry.collect():
            samples = [each for each in metric.samples if each.labels.get("key") == self.key]
            if samples:
                own = Metric(metric.name, metric.documentation, metric.type, metric.unit)
                own.samples = samples
                yield own
