"""`python -m service`: serve until SIGTERM."""

from __future__ import annotations

import gc
import signal
import socket
import sys
from contextlib import suppress

import uvicorn
from fastapi import FastAPI
from uvicorn.main import STARTUP_FAILURE

from service import logs
from service.main import create_app
from service.settings import Settings


def main() -> None:
    settings = Settings()
    logs.configure(settings.log_level)
    # Parsing 64 MiB of JSON makes a million lists, none of them garbage. With the default
    # thresholds the collector walks them over and over and takes 2.5 of the 3.1 seconds.
    gc.set_threshold(50_000, 20, 100)
    config = uvicorn.Config(
        create_app(settings),
        host=settings.host,
        port=settings.port,
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=settings.shutdown_timeout_s,
    )
    # uvicorn shuts down and then raises the signal again, which would not be exit 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    server = _Server(config)
    with suppress(KeyboardInterrupt):
        server.run()
    sys.exit(0 if server.started else STARTUP_FAILURE)


class _Server(uvicorn.Server):
    """Tells the jobs when the end begins: uvicorn tells the app when it has come."""

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        assert isinstance(self.config.app, FastAPI)
        self.config.app.state.services.jobs.drain()
        await super().shutdown(sockets)


if __name__ == "__main__":
    main()
