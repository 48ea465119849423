"""Replicas on two Ray nodes of this machine: how much more do two do, and what is lost with one?

Clients ask as fast as they are answered, first one replica, then two: for scores of the 60 nodes of
`examples/tolokers.json`, and of graphs of 3,000 nodes and 30,000 edges; the medians of some rounds,
taken in turn. Then a replica is killed with SIGKILL every few seconds, and every answer compared
with the first; and one replica is left to become two. Beside it one server without Ray and two, by
as many clients: the achievable rate. Needs redis-server.

    python -m benchmarks.replicas [rounds] [kills]
"""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

import orjson
import psutil

from benchmarks.client import Connection, example
from benchmarks.machine import describe
from benchmarks.nodes import cluster
from benchmarks.overhead import body_of, graph_of
from benchmarks.server import free_port, process, redis

CLIENTS, SECONDS, APART_S = 16, 8.0, 12.0
GROWING_S, BACKLOG_S = 40.0, 0.2
_REPLICA = "ray::ServeReplica"


class Asked(NamedTuple):
    body: bytes
    media_type: str


SMALL = Asked(example(), "application/json")
LARGE = Asked(*body_of(graph_of(3000, 10), "safetensors"))


@dataclass
class Load:
    """What clients of a port were answered."""

    ports: Sequence[int]
    asked: Asked
    until: float
    statuses: dict[int, int] = field(default_factory=dict)
    scores: set[bytes] = field(default_factory=set)
    broken: int = 0
    slowest_s: float = 0.0

    async def client(self, port: int) -> None:
        connection = Connection(port)
        while time.perf_counter() < self.until:
            try:
                reply = await connection.post("/anomaly/score", *self.asked)
            except OSError:
                self.broken += 1
                connection = Connection(port)
                continue
            self.statuses[reply.status] = self.statuses.get(reply.status, 0) + 1
            self.slowest_s = max(self.slowest_s, reply.seconds)
            if reply.status == 200 and self.asked is SMALL:
                scores = [round(one["score"], 4) for one in orjson.loads(reply.body)["results"]]
                self.scores.add(orjson.dumps(scores))

    @property
    def answered(self) -> int:
        return self.statuses.get(200, 0)


def load(
    ports: Sequence[int],
    seconds: float,
    *beside: Callable[[], Awaitable[None]],
    asked: Asked = SMALL,
) -> Load:
    found = Load(ports, asked, time.perf_counter() + seconds)

    async def run() -> None:
        async with asyncio.TaskGroup() as group:
            for i in range(CLIENTS):
                group.create_task(found.client(ports[i % len(ports)]))
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


def serve(count: int, most: int | None = None) -> None:
    """Start `count` replicas, or up to `most` by backlog, and wait until they answer."""
    from deploy.ray.__main__ import deploy
    from service.settings import Settings

    deploy(Settings(), replicas=(count, most or count), target_s=BACKLOG_S, proxies="HeadOnly")
    while len(replicas()) != count:
        time.sleep(0.2)
    load([Settings().port], 3.0)  # until it is warm


def killing(kills: int) -> Callable[[], Awaitable[None]]:
    """Kills a replica every `APART_S` seconds."""

    async def run() -> None:
        for _ in range(kills):
            await asyncio.sleep(APART_S / 3)
            for one in replicas()[:1]:
                one.kill()
            await asyncio.sleep(2 * APART_S / 3)

    return run


def rates(ports: Sequence[int], into: dict[tuple[str, Asked], list[float]], who: str) -> None:
    """Of all clients, who ask each of the ports in equal numbers."""
    for asked in (SMALL, LARGE):
        answered = load(ports, SECONDS, asked=asked).answered
        into.setdefault((who, asked), []).append(answered / SECONDS)


def main(rounds: int, kills: int) -> None:
    import ray

    from deploy.ray.__main__ import RUNTIME

    print(describe())
    os.environ |= {"BASIN_CACHE_BYTES": "0", "BASIN_LOG_LEVEL": "error", "BASIN_THREADS": "1"}
    found: dict[tuple[str, Asked], list[float]] = {}
    with process() as (_, one), process() as (_, other):
        ports = [client.base_url.port or 0 for client in (one, other)]
        load(ports, 6.0)
        for _ in range(rounds):
            rates(ports[:1], found, "no Ray")
            rates(ports, found, "2, no Ray")
    os.environ["BASIN_PORT"] = str(port := free_port())
    with redis() as url, cluster() as nodes:
        os.environ["BASIN_REDIS_URL"] = url
        ray.init(address=nodes.address, namespace="basin", runtime_env=RUNTIME, log_to_driver=False)
        for _ in range(rounds):
            for count in (1, 2):
                serve(count)
                rates([port], found, f"{count} of Ray")
        for asked, name in ((SMALL, "60 nodes"), (LARGE, "3,000 nodes")):
            one = statistics.median(found["1 of Ray", asked])
            for who in ("no Ray", "2, no Ray", "1 of Ray", "2 of Ray"):
                each = found[who, asked]
                median, spread = statistics.median(each), f"{min(each):.1f} to {max(each):.1f}"
                print(f"{name:12}{who:10}{median:8.1f} a second ({spread}){median / one:6.2f}")
        last = load([port], kills * APART_S, killing(kills))
        print(f"{kills} replicas killed: {last.statuses} answers, {last.broken} broken connections")
        print(f"{len(last.scores)} different answers, slowest {last.slowest_s:.1f} s")
        serve(1)
        serve(1, 2)
        grown = load([port], GROWING_S, asked=LARGE)
        print(f"from 1 replica to {len(replicas())} under load, {grown.statuses} answers")
        ray.shutdown()


if __name__ == "__main__":
    counts = [int(count) for count in sys.argv[1:]]
    main(*(counts + [3, 4][len(counts) :]))
