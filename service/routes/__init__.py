"""One file per endpoint."""

from fastapi import APIRouter

from service.routes import (
    admin,
    anomaly,
    classify,
    complete,
    gallery,
    graphs,
    health,
    images,
    jobs,
    memories,
    metrics,
    models,
    open_inference,
    sample,
)

ROUTERS: tuple[APIRouter, ...] = (
    anomaly.router,
    graphs.router,
    classify.router,
    complete.router,
    images.router,
    sample.router,
    memories.router,
    jobs.router,
    models.router,
    gallery.router,
    health.router,
    metrics.router,
    open_inference.router,
)

ADMIN: tuple[APIRouter, ...] = (admin.router, health.router, metrics.router)
WORKER: tuple[APIRouter, ...] = (health.router, metrics.router)
