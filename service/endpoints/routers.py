"""Which routes each application serves."""

from fastapi import APIRouter

from service.endpoints import admin, dead_jobs, health, metrics
from service.endpoints.alerts import routes as alerts
from service.endpoints.anomaly import routes as anomaly
from service.endpoints.classify import routes as classify
from service.endpoints.complete import routes as complete
from service.endpoints.graphs import routes as graphs
from service.endpoints.images import routes as images
from service.endpoints.jobs import routes as jobs
from service.endpoints.memories import routes as memories
from service.endpoints.models import gallery
from service.endpoints.models import routes as models
from service.endpoints.open_inference import routes as open_inference
from service.endpoints.page import routes as page
from service.endpoints.sample import routes as sample
from service.endpoints.transactions import routes as transactions

INFERENCE: tuple[APIRouter, ...] = (
    anomaly.router,
    classify.router,
    complete.router,
    images.router,
    sample.router,
)
"""Routers whose every route needs a place in the queue."""
ROUTERS: tuple[APIRouter, ...] = (
    page.router,
    *INFERENCE,
    graphs.router,
    transactions.router,
    alerts.router,
    memories.router,
    jobs.router,
    models.router,
    gallery.router,
    health.router,
    metrics.router,
    open_inference.router,
)

ADMIN: tuple[APIRouter, ...] = (
    admin.router,
    dead_jobs.router,
    health.router,
    metrics.router,
)
WORKER: tuple[APIRouter, ...] = (health.router, metrics.router)
