"""The application: `create_app(settings)`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

from fastapi import APIRouter, FastAPI
from starlette.exceptions import HTTPException

from service import openapi
from service.access import Access
from service.errors import Problem, answer_http_exception, answer_problem
from service.routes import ADMIN, ROUTERS
from service.services import Services
from service.settings import Settings


def create_app(settings: Settings) -> FastAPI:
    """An app that loads its models when it starts and answers 503 until it has."""
    services = Services.create(settings)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        loading = asyncio.create_task(asyncio.to_thread(services.load))
        await services.jobs.start(app, loading)
        try:
            yield
        finally:
            await loading
            await services.jobs.close(settings.shutdown_timeout_s)
            await asyncio.to_thread(services.close)

    app = FastAPI(
        title="Basin",
        version="0.1.0",
        description="Inference for energy transformers.",
        lifespan=lifespan,
        redoc_url=None,
        redirect_slashes=False,
    )
    _furnish(app, services, ROUTERS)
    openapi.install(app, settings)
    return app


def create_admin(services: Services) -> FastAPI:
    """The app for the operator alone, beside the one that has these services."""
    app = FastAPI(title="Basin, for operators", version="0.1.0", redoc_url=None)
    _furnish(app, services, ADMIN)
    return app


def _furnish(app: FastAPI, services: Services, routers: Iterable[APIRouter]) -> None:
    app.state.services = services
    app.add_middleware(Access, metrics=services.metrics)
    app.add_exception_handler(Problem, answer_problem)
    app.add_exception_handler(HTTPException, answer_http_exception)
    for router in routers:
        app.include_router(router)
