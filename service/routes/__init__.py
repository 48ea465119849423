"""One file per endpoint."""

from fastapi import APIRouter

from service.routes import anomaly, health, jobs, memories, metrics, models, sample

ROUTERS: tuple[APIRouter, ...] = (
    anomaly.router,
    sample.router,
    memories.router,
    jobs.router,
    models.router,
    health.router,
    metrics.router,
)
