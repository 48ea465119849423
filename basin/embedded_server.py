"""A server within this process, for whoever has none."""

from __future__ import annotations

import socket
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def serving() -> Iterator[str]:
    """The address of a server with the settings of the environment, on a port of its own, for as
    long as the context lasts. It shares this process's memory, and keeps jobs to itself.

    Raises:
        RuntimeError: it does not start.
    """
    import uvicorn

    from service.app import create_app
    from service.observability import logs
    from service.settings import Settings

    with tempfile.TemporaryDirectory() as folder, socket.create_server(("127.0.0.1", 0)) as place:
        settings = Settings.model_validate(
            {
                "job_store": Path(folder) / "jobs.sqlite",
                "log_level": "error",
                # It is nobody else's: what servers have in common is not for it.
                **dict.fromkeys(("redis_url", "keys", "admin_port", "tls_certificate", "tls_key")),
                **{"run_jobs": True, "tracing": False, "host": "127.0.0.1"},
            }
        )
        logs.configure(settings.log_level)
        app = create_app(settings)
        config = uvicorn.Config(app, log_config=None, access_log=False)
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, args=([place],), name="server")
        thread.start()
        try:
            yield f"http://127.0.0.1:{place.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()
