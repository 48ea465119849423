"""A process that is a server: what it needs of the machine, and how it listens."""

from __future__ import annotations

import asyncio
import difflib
import gc
import resource
import sys
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from typing import Any, final

import structlog
import uvicorn
from fastapi import FastAPI
from pydantic import ValidationError
from pydantic_core import ErrorDetails
from uvicorn.loops.auto import auto_loop_factory

from service.settings import PREFIX, Settings

_HANDSHAKE_S = 10.0  # of TLS; a connection counts once its handshake is complete
_OTHER_VARIABLES = {"BASIN_URL", "BASIN_KEY", "BASIN_DATA"}  # the command line, and tests
_OWN_DESCRIPTORS = 128  # models, memories, processes that parse, Redis


def settings_or_exit() -> Settings:
    """Read the settings, or exit with their errors, which never include a value."""
    try:
        return Settings()
    except ValidationError as error:
        sys.exit("\n".join(_describe_fault(fault) for fault in error.errors(include_input=False)))


def warn_of_unknown_settings(environment: Iterable[str]) -> None:
    """Log each variable that looks like a setting and is none, with the nearest that is one."""
    known = {name.upper(): f"{PREFIX}{name.upper()}" for name in Settings.model_fields}
    for name in sorted(environment):
        setting = name.removeprefix(PREFIX)
        if setting != name and setting not in known and name not in _OTHER_VARIABLES:
            nearest = difflib.get_close_matches(setting, known, 1)
            structlog.get_logger().warning(
                "unknown setting", name=name, nearest=known[nearest[0]] if nearest else None
            )


def prepare_process(settings: Settings) -> Settings:
    """Set the GC thresholds, raise the open-file limit, and return settings with max_connections
    reduced to fit."""
    # A collection takes 0.5 us per young object and stops all threads. With the default thresholds
    # it scans the objects of a body being parsed, none of them garbage, again and again.
    gc.set_threshold(5_000, 20, 1000)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = settings.max_connections + _OWN_DESCRIPTORS
    if soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft >= wanted:
        return settings
    max_connections = max(soft - _OWN_DESCRIPTORS, 1)
    structlog.get_logger().warning(
        "few file descriptors", limit=soft, max_connections=max_connections
    )
    return settings.model_copy(update={"max_connections": max_connections})


def _describe_fault(fault: ErrorDetails) -> str:
    """A setting and what is wrong with it, without what it was set to."""
    names = [
        f"{PREFIX}{part}".upper() + f" (--{str(part).replace('_', '-')})" for part in fault["loc"]
    ]
    return ": ".join([*names, fault["msg"]])


def uvicorn_config(app: FastAPI, host: str, port: int, settings: Settings) -> uvicorn.Config:
    """Of a server of `app`."""
    from service.http.protocol import BoundedHttpProtocol

    return uvicorn.Config(
        app,
        host=host,
        port=port,
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,  # nothing here depends on who asks
        ssl_certfile=settings.tls_certificate,
        ssl_keyfile=settings.tls_key,
        timeout_keep_alive=settings.keep_alive_s,
        timeout_graceful_shutdown=settings.shutdown_timeout_s,
        http=BoundedHttpProtocol,
        loop="service.http.server:new_loop",
        ws="none",
    )


def new_loop() -> asyncio.AbstractEventLoop:
    """A loop as uvicorn would make it, whose servers do not wait for the minute that TLS may take
    by default."""
    made = auto_loop_factory()()
    kind: Any = type(made)
    made.close()

    class Loop(kind):
        async def create_server(self, *args: Any, ssl: Any = None, **kwargs: Any) -> Any:
            if ssl is not None:
                kwargs["ssl_handshake_timeout"] = _HANDSHAKE_S
            return await super().create_server(*args, ssl=ssl, **kwargs)

    return Loop()


class _SecondaryServer(uvicorn.Server):
    """A server in the process of another, which gets the signals."""

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


@final
class SecondaryPort:
    """Serves an app on a port of its own, which is bound when this is made, beside the server of
    the process. `run` may be called again after it has ended."""

    def __init__(self, config: uvicorn.Config) -> None:
        self._config, self._socket = config, config.bind_socket()
        self._server: _SecondaryServer | None = None
        self.is_stopping = False

    @property
    def address(self) -> tuple[str, int]:
        """Host and number of the port."""
        host, number = self._socket.getsockname()[:2]
        return host, number

    async def run(self) -> None:
        """Serve until `stop`.

        Raises:
            OSError: the port cannot be bound again.
        """
        if self.is_stopping:
            return
        if self._socket.fileno() < 0:  # closed by the run before
            try:
                self._socket = self._config.bind_socket()
            except SystemExit as error:  # as uvicorn ends a process that begins
                raise OSError(f"the port {self._config.port} cannot be bound") from error
        self._server = _SecondaryServer(self._config)
        await self._server.serve([self._socket])

    def stop(self) -> None:
        self.is_stopping = True
        if self._server is not None:
            self._server.should_exit = True
