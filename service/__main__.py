"""`python -m service`: serve until SIGTERM. `python -m service worker`: run jobs of other servers
until SIGTERM. `python -m service key`: create an API key. `python -m service dead-jobs`: list,
requeue or drop jobs that failed by a fault of the servers."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from contextlib import suppress
from importlib.util import find_spec
from typing import TYPE_CHECKING, NoReturn

import structlog
import uvicorn
from fastapi import FastAPI
from uvicorn.main import STARTUP_FAILURE

from service.auth import cli
from service.auth.key_store import ApiKeyFileError
from service.http.server import (
    SecondaryPort,
    prepare_process,
    settings_or_exit,
    uvicorn_config,
    warn_of_unknown_settings,
)
from service.observability import logs
from service.observability.malloc import limit_malloc_arenas
from service.version import VERSION

if TYPE_CHECKING:
    from service.context import AppContext

NO_MODEL = 4
"""Exit code of a server that could load no model."""
_SWITCH_S = 0.00005
"""Switch interval of the interpreter. The compute thread needs the interpreter for microseconds
between matrix products; with the default it would wait 5 ms each time while requests are parsed."""


def main() -> None:
    if sys.argv[1:2] == ["key"]:
        cli.main(sys.argv[2:])
        return
    if sys.argv[1:2] == ["dead-jobs"]:
        from service.jobs import cli as dead_jobs

        dead_jobs.main(sys.argv[2:], settings_or_exit())
        return
    worker = sys.argv[1:] == ["worker"]
    if sys.argv[1:] and not worker:
        sys.exit("usage: python -m service [worker | key NAME | dead-jobs list]")
    logs.guard_stderr()
    try:
        _serve(worker)
    finally:
        logs.writer().flush()


def _serve(worker: bool) -> NoReturn:
    settings = settings_or_exit()
    if worker and settings.redis_url is None:
        sys.exit("BASIN_REDIS_URL is not set; a worker reads jobs from the Redis of the servers")
    if settings.tracing and find_spec("opentelemetry") is None:
        sys.exit("BASIN_TRACING needs OpenTelemetry: pip install 'basin-server[trace]'")
    logs.configure(settings.log_level, settings.log_format)
    warn_of_unknown_settings(os.environ)
    limit_malloc_arenas()
    sys.setswitchinterval(_SWITCH_S)
    settings = prepare_process(settings)
    # Importing torch takes seconds, which `key` does not need.
    from service.app import create_admin_app, create_app
    from service.registry.loader import BackendUnavailableError

    try:
        app = create_app(settings, worker)
    except BackendUnavailableError as error:
        sys.exit(str(error))
    except ApiKeyFileError as error:
        structlog.get_logger().error("keys refused", reason=str(error))
        sys.exit(STARTUP_FAILURE)
    config, admin = uvicorn_config(app, settings.host, settings.port, settings), None
    # Fail before any model is loaded if the port is in use.
    sockets = [config.bind_socket()]
    if settings.admin_port is not None:
        operators = create_admin_app(app.state.context)
        admin = SecondaryPort(
            uvicorn_config(operators, settings.admin_host, settings.admin_port, settings)
        )
    # uvicorn shuts down and then raises the signal again, which would not be exit 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    server = _Server(config, admin)
    with suppress(KeyboardInterrupt):
        server.run(sockets)
    if server.has_no_model:
        sys.exit(NO_MODEL)
    sys.exit(0 if server.started else STARTUP_FAILURE)


class _Server(uvicorn.Server):
    """Drains the jobs when shutdown begins; uvicorn calls the app only when it has ended."""

    def __init__(self, config: uvicorn.Config, admin: SecondaryPort | None) -> None:
        super().__init__(config)
        self.has_no_model = False
        self._admin, self._beside = admin, None
        self._has_loaded = False

    @property
    def _context(self) -> AppContext:
        assert isinstance(self.config.app, FastAPI)
        return self.config.app.state.context

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if (admin := self._admin) is not None and self.started:
            self._beside = self._context.supervisor.start(
                "admin port", admin.run, lambda: admin.is_stopping
            )

    def _tell_what_is_served(self, context: AppContext) -> None:
        scheme = "http" if self.config.ssl_certfile is None else "https"
        host, port = self.servers[0].sockets[0].getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host
        structlog.get_logger().info(
            "serving",
            url=f"{scheme}://{shown}:{port}",
            version=VERSION,
            models=" ".join(model.name for model in context.registry.list_models()),
        )

    async def on_tick(self, counter: int) -> bool:
        """As uvicorn calls it, ten times a second: whether to end."""
        context = self._context
        if not self._has_loaded and context.registry.loading_finished:
            self._has_loaded = True
            if context.registry.list_models():
                self._tell_what_is_served(context)
            elif not context.settings.wait_for_models:
                self.has_no_model = True
                return True
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        context = self._context
        context.jobs.drain()
        context.alert_streams.close()
        context.registry.stop_loading()
        if self._admin is not None and self._beside is not None:
            self._admin.stop()
            await asyncio.wait({self._beside}, timeout=context.settings.shutdown_timeout_s)
        await super().shutdown(sockets)


if __name__ == "__main__":
    main()
