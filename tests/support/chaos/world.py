"""The processes of a history: two servers, a worker and the Redis that they share."""

from __future__ import annotations

import os
import shutil
import socket
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from models.paths import find_shipped
from tests.support.api_keys import Ring
from tests.support.chaos.proxy import Proxy
from tests.support.forked_server import ForkedProcess
from tests.support.redis_server import RedisServer

OWNERS = ("one", "two")
LIMITED = "limited"  # a key with a rate
PER_SECOND, BURST = 10, 10  # of it
SERVERS = (0, 1)
WORKER = 2
_START_S, _TIMEOUT_S, _PROBE_S = 120.0, 30.0, 2.0
_MODELS = ("cdat-tolokers", "cdat-payments")
_SETTINGS = {
    "default_anomaly_model": "cdat-tolokers",
    "cache_bytes": 1 << 20,
    "job_lease_s": 2,
    "shutdown_timeout_s": 1,
    "threads": 1,
    "max_memories": 1000,
}


@dataclass
class Process:
    """A server or the worker; its folder survives a kill, as a disk does."""

    folder: Path
    env: dict[str, str]
    port: int
    arguments: tuple[str, ...]
    starts: int = 0
    running: ForkedProcess | None = None
    clients: dict[str, httpx.Client] = field(default_factory=dict)

    def start(self) -> None:
        self.starts += 1
        self.running = ForkedProcess(self.env, self.log, *self.arguments)

    @property
    def log(self) -> Path:
        return self.folder / f"log-{self.starts}"

    def kill(self) -> None:
        if self.running is not None:
            self.running.kill()
            self.running.wait(30)
            self.running = None

    def close(self) -> None:
        self.kill()
        for client in self.clients.values():
            client.close()

    def health(self) -> dict[str, Any] | None:
        """What /health/ready says; None unless it is 200."""
        try:
            response = httpx.get(f"http://127.0.0.1:{self.port}/health/ready", timeout=5)
        except httpx.TransportError:
            return None
        return response.json() if response.status_code == 200 else None


class World:
    """Starts everything; `heal` ends all faults and waits until everything is well."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "redis").mkdir(parents=True)
        (folder / "checkpoints").mkdir()
        for model in _MODELS:
            (folder / "checkpoints" / model).symlink_to(find_shipped("checkpoints") / model)
        ring = Ring(folder / "keys.json")
        self.headers = {name: ring.add(name) for name in OWNERS}
        self.headers[LIMITED] = ring.add(LIMITED, rate={"per_second": PER_SECOND, "burst": BURST})
        self.redis_runs, self.is_paused, self.is_full = True, False, False
        self.was_full = False  # what servers were to restore may have been refused
        self._lost = 0.0  # when Redis may have lost something
        with ExitStack() as stack:  # what has been started ends, also where the rest does not start
            self.redis = RedisServer(
                *(folder / "redis", "--appendfsync", "always"),
                *("--maxmemory-policy", "noeviction"),
            )
            stack.callback(self.redis.end)
            self.proxies, self.processes = list[Proxy](), list[Process]()
            for number in (*SERVERS, WORKER):
                self.proxies.append(Proxy(self.redis.port))
                stack.callback(self.proxies[number].close)
                self.processes.append(self._make(number))
                stack.callback(self.processes[number].close)
            self.processes[0].start()
            self._wait_until_well([0])  # it compiles the kernels that the others load
            self.heal()
            self._stack = stack.pop_all()

    def client(self, server: int, owner: str) -> httpx.Client:
        clients = self.processes[server].clients
        if owner not in clients:
            clients[owner] = httpx.Client(
                base_url=f"http://127.0.0.1:{self.processes[server].port}",
                headers=self.headers[owner],
                timeout=_TIMEOUT_S,
            )
        return clients[owner]

    def kill_redis(self) -> None:
        if self.is_paused:
            self.resume_redis()
        if self.redis_runs:
            self.redis.kill()
            self.redis_runs = False

    def start_redis(self) -> None:
        if not self.redis_runs:
            self.redis.start()
            self.is_full, self._lost = False, time.monotonic()
            self.redis_runs = True

    def pause_redis(self) -> None:
        if self.redis_runs:
            self.redis.pause()
            self.is_paused = True

    def resume_redis(self) -> None:
        if self.is_paused:
            self.redis.resume()
            self.is_paused = False

    def set_full(self, is_full: bool) -> None:
        self.redis.client.config_set("maxmemory", int(is_full))  # 0 is no limit
        self.is_full = is_full
        self.was_full |= is_full

    def flush(self) -> None:
        self.redis.client.flushall()
        self._lost = time.monotonic()

    def take_snapshot(self) -> None:
        """Copy what Redis has on its disk now."""
        self.forget_snapshot()
        shutil.copytree(self.folder / "redis" / "appendonlydir", self.folder / "snapshot")

    def forget_snapshot(self) -> None:
        shutil.rmtree(self.folder / "snapshot", ignore_errors=True)

    def go_back(self, to_nothing: bool) -> None:
        """Restart Redis with the snapshot, or with nothing."""
        self.kill_redis()
        files = self.folder / "redis" / "appendonlydir"
        shutil.rmtree(files)
        if not to_nothing:
            shutil.copytree(self.folder / "snapshot", files)
        self.start_redis()

    @property
    def is_clean(self) -> bool:
        """Whether no fault goes on."""
        return (
            self.redis_runs
            and not self.is_paused
            and not self.was_full
            and all(proxy.state == "open" for proxy in self.proxies)
            and all(process.running is not None for process in self.processes)
        )

    def is_well(self, server: int) -> bool:
        """Whether the server has Redis, and has had the time to notice that it lost something."""
        if time.monotonic() - self._lost < _PROBE_S:
            return False
        health = self.processes[server].health()
        return health is not None and health.get("redis") == "up"

    def heal(self) -> None:
        """End all faults; wait until all processes are ready and have Redis.

        Raises:
            AssertionError: they are not.
        """
        self.resume_redis()
        self.start_redis()
        self.set_full(False)
        for proxy in self.proxies:
            proxy.set("open")
        for process in self.processes:
            if process.running is None:
                process.start()
        self._wait_until_well(range(len(self.processes)))

    def _wait_until_well(self, numbers: Sequence[int]) -> None:
        end = time.monotonic() + _START_S
        for number in numbers:
            process = self.processes[number]
            while not self.is_well(number):
                assert process.running is not None
                assert process.running.poll() is None, (
                    f"process {number} ended: {process.log.read_text()[-2000:]}"
                )
                assert time.monotonic() < end, (
                    f"process {number} is not well after the faults: {process.health()}\n"
                    f"{process.log.read_text()[-2000:]}"
                )
                time.sleep(0.05)

    def close(self) -> None:
        self._stack.close()

    def _make(self, number: int) -> Process:
        folder = self.folder / f"process-{number}"
        folder.mkdir()
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        settings: dict[str, object] = {
            **_SETTINGS,
            "port": port,
            "checkpoints": self.folder / "checkpoints",
            "keys": self.folder / "keys.json",
            "redis_url": f"redis://127.0.0.1:{self.proxies[number].port}/0",
            "memory_store": folder / "memories",
            "graph_store": folder / "graphs.sqlite",
            "job_store": folder / "jobs.sqlite",
            "run_jobs": number != 0,
        }
        env = {k: v for k, v in os.environ.items() if not k.startswith("BASIN_")}
        env |= {f"BASIN_{name.upper()}": str(value) for name, value in settings.items()}
        return Process(folder, env, port, ("worker",) if number == WORKER else ())
