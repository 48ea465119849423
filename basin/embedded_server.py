"""A server within this process, for commands that run without `--server`."""

from __future__ import annotations

import socket
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def run_server() -> Iterator[str]:
    """Serve on a free port, in a thread, for as long as the context lasts; yield the address.

    The settings come from the environment, without those about things that servers share or that
    restrict access: Redis, API keys, the admin port and TLS. Jobs and graphs are stored in a
    temporary folder: those of a server that runs are locked by it.
    """
    import uvicorn

    from service.app import create_app
    from service.observability import logs
    from service.settings import Settings

    with (
        tempfile.TemporaryDirectory() as folder,
        socket.create_server(("127.0.0.1", 0)) as listener,
    ):
        settings = Settings.model_validate(
            {
                "job_store": Path(folder) / "jobs.sqlite",
                "graph_store": Path(folder) / "graphs.sqlite",
                "run_jobs": True,
                "host": "127.0.0.1",
                "log_level": "error",
                "tracing": False,
                "redis_url": None,
                "keys": None,
                "admin_port": None,
                "tls_certificate": None,
                "tls_key": None,
            }
        )
        logs.configure(settings.log_level)
        config = uvicorn.Config(create_app(settings), log_config=None, access_log=False)
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, args=([listener],), name="server")
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()
