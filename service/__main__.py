"""`python -m service`: serve until SIGTERM. `python -m service worker`: run jobs of other servers
until SIGTERM. `python -m service key`: create an API key."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from contextlib import suppress
from importlib.util import find_spec

import structlog
import uvicorn
from fastapi import FastAPI
from uvicorn.main import STARTUP_FAILURE

from service.auth import cli
from service.auth.key_store import ApiKeyFileError
from service.http.server import (
    SecondaryServer,
    prepare_process,
    settings_or_exit,
    uvicorn_config,
    warn_of_unknown_settings,
)
from service.observability import logs
from service.observability.malloc import limit_malloc_arenas

_SWITCH_S = 0.0002
"""Switch interval of the interpreter. The compute thread needs the interpreter for microseconds
between matrix products; with the default it would wait 5 ms each time while requests are parsed."""


def main() -> None:
    if sys.argv[1:2] == ["key"]:
        cli.main(sys.argv[2:])
        return
    worker = sys.argv[1:] == ["worker"]
    if sys.argv[1:] and not worker:
        sys.exit("usage: python -m service [worker | key NAME]")
    settings = settings_or_exit()
    if worker and settings.redis_url is None:
        sys.exit("BASIN_REDIS_URL is not set; a worker reads jobs from the Redis of the servers")
    if settings.tracing and find_spec("opentelemetry") is None:
        sys.exit("BASIN_TRACING needs OpenTelemetry: pip install 'basin[trace]'")
    logs.configure(settings.log_level)
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
        admin = SecondaryServer(
            uvicorn_config(operators, settings.admin_host, settings.admin_port, settings)
        )
    # uvicorn shuts down and then raises the signal again, which would not be exit 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    server = _Server(config, admin)
    with suppress(KeyboardInterrupt):
        server.run(sockets)
    sys.exit(0 if server.started else STARTUP_FAILURE)


class _Server(uvicorn.Server):
    """Drains the jobs when shutdown begins; uvicorn calls the app only when it has ended."""

    def __init__(self, config: uvicorn.Config, admin: SecondaryServer | None) -> None:
        super().__init__(config)
        self._admin, self._beside = admin, None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self._admin is not None and self.started:
            self._beside = asyncio.create_task(self._admin.serve([self._admin.socket]))

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        assert isinstance(self.config.app, FastAPI)
        context = self.config.app.state.context
        context.jobs.drain()
        context.alert_streams.close()
        context.registry.stop_loading()
        if self._admin is not None and self._beside is not None:
            self._admin.should_exit = True
            await self._beside
        await super().shutdown(sockets)


if __name__ == "__main__":
    main()
