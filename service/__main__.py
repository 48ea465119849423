"""`python -m service`: serve until SIGTERM. `python -m service worker`: run jobs of other servers
until then. `python -m service key`: make a key."""

from __future__ import annotations

import asyncio
import gc
import resource
import signal
import socket
import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress
from importlib.util import find_spec

import structlog
import uvicorn
from fastapi import FastAPI
from pydantic import ValidationError
from pydantic_core import ErrorDetails
from uvicorn.main import STARTUP_FAILURE

from service import logs
from service.doors import command
from service.doors.keyring import KeysError
from service.settings import Settings

_OWN_DESCRIPTORS = 128  # models, memories, processes that parse, Redis


def main() -> None:
    if sys.argv[1:2] == ["key"]:
        command.main(sys.argv[2:])
        return
    worker = sys.argv[1:] == ["worker"]
    if sys.argv[1:] and not worker:
        sys.exit("usage: python -m service [worker | key NAME]")
    try:
        settings = Settings()
    except ValidationError as error:
        sys.exit("\n".join(_told(fault) for fault in error.errors(include_input=False)))
    if worker and settings.redis_url is None:
        sys.exit("BASIN_REDIS_URL: a worker needs the Redis that has the jobs")
    if settings.tracing and find_spec("opentelemetry") is None:
        sys.exit("BASIN_TRACING: pip install 'basin[trace]'")
    logs.configure(settings.log_level)
    settings = _within_descriptors(settings)
    # Seconds of torch, which no key is made with.
    import torch

    from service.main import create_admin, create_app

    if settings.device.startswith("cuda") and not torch.cuda.is_available():
        sys.exit("BASIN_DEVICE: there is no GPU here that torch can use")

    # Parsing 64 MiB of JSON makes a million lists, none of them garbage. With the default
    # thresholds the collector walks them over and over and takes 2.5 of the 3.1 seconds.
    gc.set_threshold(50_000, 20, 100)
    try:
        app = create_app(settings, worker)
    except KeysError as error:
        structlog.get_logger().error("keys refused", reason=str(error))
        sys.exit(STARTUP_FAILURE)
    config, admin = _config(app, settings.host, settings.port, settings), None
    # A port that is taken is told before any model is loaded.
    sockets = [config.bind_socket()]
    if settings.admin_port is not None:
        operators = create_admin(app.state.services)
        admin = _Beside(_config(operators, settings.admin_host, settings.admin_port, settings))
    # uvicorn shuts down and then raises the signal again, which would not be exit 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    server = _Server(config, admin)
    with suppress(KeyboardInterrupt):
        server.run(sockets)
    sys.exit(0 if server.started else STARTUP_FAILURE)


def _within_descriptors(settings: Settings) -> Settings:
    """As many connections as there can be, beside what the server opens for itself."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = settings.max_connections + _OWN_DESCRIPTORS
    if soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft >= wanted:
        return settings
    most = max(soft - _OWN_DESCRIPTORS, 1)
    structlog.get_logger().warning("few file descriptors", limit=soft, max_connections=most)
    return settings.model_copy(update={"max_connections": most})


def _told(fault: ErrorDetails) -> str:
    """A setting and what is wrong with it, without what it was set to."""
    return ": ".join([*(f"BASIN_{part}".upper() for part in fault["loc"]), fault["msg"]])


def _config(app: FastAPI, host: str, port: int, settings: Settings) -> uvicorn.Config:
    from service.wire import Wire

    return uvicorn.Config(
        app,
        host=host,
        port=port,
        log_config=None,
        access_log=False,
        server_header=False,
        ssl_certfile=settings.tls_certificate,
        ssl_keyfile=settings.tls_key,
        timeout_graceful_shutdown=settings.shutdown_timeout_s,
        http=Wire,
        ws="none",
    )


class _Beside(uvicorn.Server):
    """A server in the process of another, which gets the signals."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.socket = config.bind_socket()

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


class _Server(uvicorn.Server):
    """Tells the jobs when the end begins: uvicorn tells the app when it has come."""

    def __init__(self, config: uvicorn.Config, admin: _Beside | None) -> None:
        super().__init__(config)
        self._admin, self._beside = admin, None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self._admin is not None and self.started:
            self._beside = asyncio.create_task(self._admin.serve([self._admin.socket]))

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        assert isinstance(self.config.app, FastAPI)
        services = self.config.app.state.services
        services.jobs.drain()
        services.registry.leave()
        if self._admin is not None and self._beside is not None:
            self._admin.should_exit = True
            await self._beside
        await super().shutdown(sockets)


if __name__ == "__main__":
    main()
