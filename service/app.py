"""The application: `create_app(settings)`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from fastapi import APIRouter, FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.gzip import DEFAULT_EXCLUDED_CONTENT_TYPES, GZipMiddleware
from starlette.routing import Route

from service.auth.keys import ADMIN_PREFIX as OPERATORS
from service.auth.middleware import AuthMiddleware
from service.context import INLINE_BYTES, AppContext
from service.endpoints import openapi
from service.endpoints.alerts.nodes import NodeWatcher
from service.endpoints.alerts.webhooks import WebhookSender
from service.endpoints.open_inference.errors import OipErrorMiddleware
from service.endpoints.open_inference.tensors import HEADER
from service.endpoints.routers import ADMIN, INFERENCE, ROUTERS, WORKER
from service.endpoints.transactions.pending import PendingScorer
from service.errors import Problem
from service.http.error_handlers import (
    handle_http_exception,
    handle_invalid_parameters,
    handle_problem,
)
from service.http.hosts import HeadMiddleware, list_allowed_hosts
from service.http.normalize import NormalizeMiddleware
from service.http.replay import replay
from service.http.request_log import RequestLogMiddleware
from service.http.throttle import ThrottleMiddleware
from service.media_types import SAFETENSORS
from service.observability.malloc import trim_periodically
from service.settings import Settings
from service.storage.memories import MemoryStore
from service.version import VERSION

_MIN_COMPRESSED_BYTES = 1 << 14  # a smaller response takes one or two packets either way
_FOLLOW_S = 10.0
_CORS: dict[str, Any] = {
    "allow_methods": ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"),
    "allow_headers": (
        *("authorization", "content-type", "idempotency-key", "prefer", "x-request-id", HEADER),
    ),
    "expose_headers": (
        *("location", "retry-after", "server-timing", "x-cache", "x-request-id", HEADER),
    ),
}


def create_app(settings: Settings, worker: bool = False) -> FastAPI:
    """An app that loads its models when it starts and answers 503 until it has.

    Args:
        worker: it runs jobs alone, and all it answers is how it is.

    Raises:
        ApiKeyFileError: there is a file of keys that cannot be read.
    """
    if worker:  # what servers leave to workers is theirs
        settings = settings.model_copy(update={"run_jobs": True})
    context = AppContext.from_settings(settings)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        loading = asyncio.create_task(asyncio.to_thread(context.load))
        await context.jobs.start(partial(replay, answers), loading, context.supervisor)
        works = _list_background_works(context, worker)
        tasks = [context.supervisor.start(name, work) for name, work in works.items()]
        try:
            yield
        finally:
            context.supervisor.close()
            await loading
            await context.jobs.close(settings.shutdown_timeout_s)
            for task in tasks:
                task.cancel()
            await asyncio.to_thread(context.graphs.close)  # before Redis goes
            if context.redis is not None:
                await context.redis.close()
            await context.large_json.close()
            await asyncio.to_thread(context.close)

    app = FastAPI(
        title="Basin",
        version=VERSION,
        description="Inference for energy transformers.",
        lifespan=lifespan,
        openapi_url="/openapi.json" if worker else None,  # see `endpoints.openapi`
        docs_url=None,  # see `endpoints.page`
        redoc_url=None,
        redirect_slashes=False,
    )
    if worker:
        answers = FastAPI()
        _configure_app(app, context, WORKER)
    else:
        answers = app
        openapi.install(app, settings)
    _configure_app(answers, context, ROUTERS)
    return app


def _list_background_works(
    context: AppContext, worker: bool
) -> dict[str, Callable[[], Awaitable[None]]]:
    """Return what runs beside requests, by the names that metrics and logs have for it."""
    works: dict[str, Callable[[], Awaitable[None]]] = {"memory": trim_periodically}
    if context.api_keys is not None:
        works["keys"] = context.api_keys.watch
    if context.redis is not None:
        works["redis"] = context.redis.watch
        works["memories"] = partial(_follow_memories, context.memories)
    if not worker:
        works["transactions"] = PendingScorer(context).run
        works["nodes"] = NodeWatcher(context).run
        if context.settings.webhook_origins:
            works["webhooks"] = WebhookSender(context).run
    return works


async def _follow_memories(memories: MemoryStore) -> None:
    """Compare stored memories with those in Redis every few seconds, also if no request does."""
    while True:
        await asyncio.sleep(_FOLLOW_S)
        await asyncio.to_thread(memories.follow)


def create_health_app(context: AppContext) -> FastAPI:
    """Create the app that serves health and metrics of `context`, and nothing else."""
    app = FastAPI(title="Basin, to be watched", version=VERSION, openapi_url=None)
    _configure_app(app, context, WORKER)
    return app


def create_admin_app(context: AppContext) -> FastAPI:
    """Create the app of the admin port: loading and dropping models, health, metrics."""
    app = FastAPI(title="Basin, for operators", version=VERSION, redoc_url=None)
    _configure_app(app, context, ADMIN, OPERATORS)
    return app


def _configure_app(
    app: FastAPI, context: AppContext, routers: Sequence[APIRouter], under: str = ""
) -> None:
    app.state.context = context
    every = [route for router in routers for route in router.routes]
    app.state.routes = routes = [route for route in every if isinstance(route, Route)]
    app.state.inference_paths = frozenset(
        route.path for route in routes if any(route in router.routes for router in INFERENCE)
    )
    app.add_middleware(
        AuthMiddleware,
        api_keys=context.api_keys,
        usage_limits=context.usage_limits,
        open_requests=context.open_requests,
        routes=routes,
        prefix=under,
    )
    settings = context.settings
    if settings.cors_origins and not under:  # browsers ask without a key whether they may ask
        app.add_middleware(CORSMiddleware, allow_origins=settings.cors_origins, **_CORS)
    encrypted = settings.tls_certificate is not None
    access = {"metrics": context.metrics, "traces": context.traces, "encrypted": encrypted}
    app.add_middleware(HeadMiddleware, allowed=list_allowed_hosts(settings, bool(under)))
    app.add_middleware(RequestLogMiddleware, **access)
    app.add_middleware(OipErrorMiddleware)
    app.add_middleware(
        GZipMiddleware,
        minimum_size=_MIN_COMPRESSED_BYTES,
        compresslevel=1,  # six times as fast as the default on digits, for 10 % more bytes
        thread_minimum_size=INLINE_BYTES,  # a larger one is compressed beside the event loop
        exclude_content_types=(*DEFAULT_EXCLUDED_CONTENT_TYPES, SAFETENSORS),
    )
    app.add_middleware(ThrottleMiddleware, pace=context.throttle, hold=context.metrics.held.inc)
    app.add_middleware(NormalizeMiddleware)  # the outermost
    app.add_exception_handler(Problem, handle_problem)
    app.add_exception_handler(HTTPException, handle_http_exception)
    app.add_exception_handler(RequestValidationError, handle_invalid_parameters)
    for router in routers:
        app.include_router(router)
