"""Replicas on two Ray nodes of this machine: how much more do two do, and what is lost with one?

Clients of `examples/tolokers.json` ask as fast as they are answered, first one replica, then two;
the median of some rounds of each, taken in turn. Then a replica is killed with SIGKILL every few
seconds; every answer is compared with the first. Beside it one server without Ray, by the same
clients. Needs redis-server.

    python -m benchmarks.replicas [rounds] [kills]
"""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from tempfile import TemporaryDirectory

import orjson
import psutil

from benchmarks.client import Connection, example
from benchmarks.machine import describe
from benchmarks.nodes import cluster
from benchmarks.server import process

CLIENTS, SECONDS, APART_S = 16, 8.0, 12.0
_REPLICA = "ray::ServeReplica"


@dataclass
class Load:
    """What clients of a port were answered."""

    port: int
    until: float
    statuses: dict[int, int] = field(default_factory=dict)
    scores: set[bytes] = field(default_factory=set)
    broken: int = 0
    slowest_s: float = 0.0

    async def client(self) -> None:
        body, connection = example(), Connection(self.port)
        while time.perf_counter() < self.until:
            try:
                reply = await connection.post("/anomaly/score", body, "application/json")
            except OSError:
                self.broken += 1
                connection = Connection(self.port)
                continue
            self.statuses[reply.status] = self.statuses.get(reply.status, 0) + 1
            self.slowest_s = max(self.slowest_s, reply.seconds)
            if reply.status == 200:
                scores = [round(one["score"], 4) for one in orjson.loads(reply.body)["results"]]
                self.scores.add(orjson.dumps(scores))

    @property
    def answered(self) -> int:
        return self.statuses.get(200, 0)


def load(port: int, seconds: float, *beside: Callable[[], Awaitable[None]]) -> Load:
    found = Load(port, time.perf_counter() + seconds)

    async def run() -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(CLIENTS):
                group.create_task(found.client())
            for one in beside:
                group.create_task(one())  # pyright: ignore[reportArgumentType]

    asyncio.run(run())
    return found


def replicas() -> list[psutil.Process]:
    """Those of the cluster of this process."""
    found = list[psutil.Process]()
    for one in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            if any(word.startswith(_REPLICA) for word in one.cmdline()):
                found.append(one)
    return found


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return free.getsockname()[1]


@contextmanager
def redis() -> Iterator[str]:
    server = shutil.which("redis-server")
    assert server is not None, "redis-server is needed"
    port = free_port()
    with TemporaryDirectory() as folder:
        options = ["--port", str(port), "--dir", folder, "--save", ""]
        running = subprocess.Popen([server, *options], stdout=subprocess.DEVNULL)
        try:
            yield f"redis://127.0.0.1:{port}/0"
        finally:
            running.terminate()
            running.wait()


def serve(count: int) -> None:
    """So many replicas and no fewer, once they are there."""
    from deploy.ray.__main__ import deploy
    from service.settings import Settings

    deploy(Settings(), replicas=(count, count), proxies="HeadOnly")
    while len(replicas()) != count:
        time.sleep(0.2)
    load(Settings().port, 3.0)  # until it is warm


def killing(kills: int) -> Callable[[], Awaitable[None]]:
    """Kills a replica every `APART_S` seconds."""

    async def run() -> None:
        for _ in range(kills):
            await asyncio.sleep(APART_S / 3)
            for one in replicas()[:1]:
                one.kill()
            await asyncio.sleep(2 * APART_S / 3)

    return run


def told(name: str, rates: list[float], peer: float) -> float:
    median = statistics.median(rates)
    spread = f"{min(rates):.1f} to {max(rates):.1f}"
    print(f"{name:24}{median:8.1f} a second ({spread}), {median / peer if peer else 1:.2f}")
    return median


def main(rounds: int, kills: int) -> None:
    import ray

    from deploy.ray.__main__ import RUNTIME

    print(describe())
    os.environ |= {"BASIN_CACHE_BYTES": "0", "BASIN_LOG_LEVEL": "error", "BASIN_THREADS": "1"}
    with process() as (_, client):
        port = client.base_url.port
        assert port is not None
        load(port, 3.0)
        bare = told("one server, no Ray", [_rate(port) for _ in range(rounds)], 0)
    os.environ["BASIN_PORT"] = str(free_port())
    with redis() as url, cluster() as found:
        os.environ["BASIN_REDIS_URL"] = url
        ray.init(address=found.address, namespace="basin", runtime_env=RUNTIME, log_to_driver=False)
        rates: dict[int, list[float]] = {1: [], 2: []}
        for _ in range(rounds):
            for count, each in rates.items():
                serve(count)
                each.append(_rate(int(os.environ["BASIN_PORT"])))
        one = told("one replica", rates[1], bare)
        told("two replicas", rates[2], one)
        last = load(int(os.environ["BASIN_PORT"]), kills * APART_S, killing(kills))
        print(f"{kills} replicas killed: {last.statuses} answers, {last.broken} broken connections")
        print(f"{len(last.scores)} different answers, slowest {last.slowest_s:.1f} s")
        ray.shutdown()


def _rate(port: int) -> float:
    return load(port, SECONDS).answered / SECONDS


if __name__ == "__main__":
    counts = [int(count) for count in sys.argv[1:]]
    main(*(counts + [3, 4][len(counts) :]))
