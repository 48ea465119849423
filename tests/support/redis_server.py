"""A real Redis, in a process of its own."""

from __future__ import annotations

import asyncio
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import redis
from redis import asyncio as redis_asyncio
from redis.backoff import NoBackoff
from redis.retry import Retry

from service.storage.redis_client import RedisClient
from service.storage.redis_settings import check_redis_settings

SERVER = shutil.which("redis-server")


class RedisServer:
    """One that can be killed, paused and started again with what it had on its disk."""

    def __init__(self, folder: Path, *options: str) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self.folder, self._options = folder, options
        self.client = redis.Redis.from_url(self.url, retry=Retry(NoBackoff(), 1))
        self.start()

    def start(self) -> None:
        assert SERVER is not None
        options = ["--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.folder)]
        options += ["--appendonly", "yes", "--save", "", "--daemonize", "no", *self._options]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen([SERVER, *options], stdout=log, stderr=log)
        deadline = time.monotonic() + 30
        while True:
            try:
                self.client.ping()
                return
            except redis.RedisError:
                assert time.monotonic() < deadline, (self.folder / "log").read_text()
                time.sleep(0.01)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait()

    def end(self) -> None:
        self.kill()
        self.client.close()

    def restart_from(self, snapshot: Path | None = None) -> None:
        """Start it anew with the files of a snapshot, or with none."""
        self.kill()
        shutil.rmtree(self.folder / "appendonlydir")
        if snapshot is not None:
            shutil.copytree(snapshot, self.folder / "appendonlydir")
        self.start()

    def pause(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def list_warnings(self, user: str = "") -> list[str]:
        """Return what a server says about the settings; as `user`, as in `name:password@`."""

        async def check() -> list[str]:
            client = redis_asyncio.Redis.from_url(f"redis://{user}127.0.0.1:{self.port}/0")
            try:
                return await check_redis_settings(client)
            finally:
                await client.aclose()

        return asyncio.run(check())


@asynccontextmanager
async def open_client(server: RedisServer, timeout_s: float = 0.3) -> AsyncIterator[RedisClient]:
    """A client of a server of ours, which has not probed Redis yet."""
    link = RedisClient(server.url, timeout_s)
    try:
        yield link
    finally:
        await link.close()
