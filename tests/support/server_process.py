"""A server of its own for scripts: started, killed and started again in one folder."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from tests.support.paths import REPO


class ServerProcess:
    """A server whose jobs, graphs and memories are in `folder`, at one address for its life.

    Args:
        main: arguments of Python.
        settings: of the server, by name.
    """

    def __init__(
        self, folder: Path, main: tuple[str, ...] = ("-m", "service"), **settings: object
    ) -> None:
        self.folder, self.log = folder, folder / "log"
        self.graph_store = folder / "graphs.sqlite"
        self.job_store = folder / "jobs.sqlite"
        self.memory_store = folder / "memories"
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self._main, self._process = main, None
        own = {name: getattr(self, name) for name in ("graph_store", "job_store", "memory_store")}
        given = {**own, "port": port, "threads": 1, **settings}
        environment = {k: v for k, v in os.environ.items() if not k.startswith("BASIN_")}
        self._environment = environment | {f"BASIN_{k.upper()}": str(v) for k, v in given.items()}

    def start(self, is_ready: str = "/health/ready") -> None:
        """Start it, and wait until `is_ready` answers 200.

        Raises:
            RuntimeError: it ended, or was not ready after two minutes.
        """
        with self.log.open("ab") as stderr:
            self._process = subprocess.Popen(
                [sys.executable, *self._main], cwd=REPO, env=self._environment, stderr=stderr
            )
        end = time.monotonic() + 120
        while time.monotonic() < end and self._process.poll() is None:
            try:
                if httpx.get(self.url + is_ready).status_code == 200:
                    return
            except httpx.TransportError:
                pass
            time.sleep(0.05)
        raise RuntimeError(f"no server: {self.log.read_text()[-2000:]}")

    def kill(self) -> None:
        """End it by SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def stop(self) -> int:
        """End it by SIGTERM; return its exit code."""
        if self._process is None:
            return 0
        self._process.terminate()
        return self._process.wait(60)

    @contextmanager
    def running(self, is_ready: str = "/health/ready") -> Iterator[str]:
        """Run it as long as the context lasts; yield its address."""
        try:
            self.start(is_ready)
            yield self.url
        finally:
            self.kill()
