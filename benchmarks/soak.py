"""An hour at 70 % of what the server can do: does anything grow?

First eight clients ask for whatever there is, mixed, as fast as they can: the capacity. Then as
many requests come as 70 % of that, at random moments. After ten minutes of it are watched: the
memory of the server and of its processes, what malloc gave out of it and what it keeps between, its
descriptors and threads, its queue and its jobs.
Printed is what each was in the first and the last quarter, and its slope an hour with the standard
error, of a straight line through the medians of each minute. Memory is given for equal queues too:
a machine that slows down makes the queue longer, and the server holds what is in it. What requests
leave behind that come one after the other, without a queue, is measured by
`benchmarks.memory_growth`.

    python -m benchmarks.soak [minutes]
"""

from __future__ import annotations

import asyncio
import base64
import json
import random
import re
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np
import psutil

from benchmarks.client import Connection, Reply, example
from benchmarks.machine import describe
from benchmarks.server import process

CLIENTS, WARM_S, MEASURE_S, SHARE = 8, 30.0, 60.0, 0.7
BEFORE_S, EVERY_S, A_MINUTE = 600.0, 5.0, 12
APART = 10
IDLE_S = 2.0  # of a connection that is used again; the server closes it after five
REPO = Path(__file__).resolve().parents[1]
JSON = "application/json"
ATOMS = ("C", "N", "O", "CC", "C(=O)", "C(C)", "c1ccccc1", "C1CCCCC1", "S", "C(F)(F)")


class Asked(NamedTuple):
    path: str
    body: bytes
    media_type: str = JSON
    later: bool = False


class Mix:
    """Requests at random: half of them scores, a third molecules, and some of everything else."""

    def __init__(self, seed: int) -> None:
        self._chance, self._score = random.Random(seed), example()
        photo, mask = (
            base64.b64encode((REPO / "examples" / name).read_bytes()).decode()
            for name in ("photo.jpg", "mask.png")
        )
        self._picture = json.dumps({"image": photo, "mask": mask}).encode()

    def next(self) -> Asked:
        kind, draw = self._chance.random(), self._chance.randrange
        if kind < 0.50:  # a cached answer, now and then
            return Asked(f"/anomaly/score?timeout_ms={draw(20_000, 29_999)}", self._score)
        if kind < 0.85:
            smiles = ["".join(self._chance.choices(ATOMS, k=draw(1, 12))) for _ in range(4)]
            return Asked("/classify", _json(model="cdat-ames", smiles=smiles))
        if kind < 0.90:
            sampled = {"memory": "mnist-3", "steps": draw(20, 200), "seed": draw(1000)}
            return Asked("/sample", _json(**sampled), later=self._chance.random() < 0.5)
        if kind < 0.905:
            return Asked("/complete", self._picture)
        if kind < 0.95:
            return Asked("/anomaly/score", self._score[: draw(len(self._score))])
        why = {"model": "cdat-ames", "smiles": "Cc1ccccc1", "include": ["attention"]}
        return Asked("/classify", _json(**why))


def _json(**parts: object) -> bytes:
    return json.dumps(parts).encode()


async def _ask(connection: Connection, asked: Asked, seen: Counter[int]) -> None:
    later = {"prefer": "respond-async"} if asked.later else {}
    reply = await connection.post(asked.path, asked.body, asked.media_type, **later)
    seen[reply.status] += 1
    if reply.status == 202:
        await _fetch(connection, reply)


async def _fetch(connection: Connection, reply: Reply) -> None:
    """Wait for a job, and forget every other one."""
    job, pause_s = json.loads(reply.body)["id"], 0.2
    while json.loads((await connection.ask("GET", f"/jobs/{job}")).body)["status"] == "running":
        await asyncio.sleep(pause_s)
        pause_s = min(1.5 * pause_s, IDLE_S)
    await connection.ask("GET", f"/jobs/{job}/result")
    if random.random() < 0.5:
        await connection.ask("DELETE", f"/jobs/{job}")


async def _capacity(port: int, mix: Mix, seconds: float) -> float:
    """Answers a second of clients that retry immediately."""
    end, seen = time.perf_counter() + seconds, Counter[int]()

    async def ask() -> None:
        connection = Connection(port)
        while time.perf_counter() < end:
            await _ask(connection, mix.next(), seen)
        connection.close()

    await asyncio.gather(*(ask() for _ in range(CLIENTS)))
    return seen.total() / seconds


async def _hang_up(port: int, asked: Asked) -> None:
    head = f"POST {asked.path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: {asked.media_type}\r\n"
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"{head}content-length: {len(asked.body)}\r\n\r\n".encode() + asked.body)
    await writer.drain()
    writer.close()


async def _load(port: int, mix: Mix, rate: float, seconds: float) -> Counter[int]:
    seen, chance = Counter[int](), random.Random(1)
    free: list[tuple[float, Connection]] = []
    under_way: set[asyncio.Task[None]] = set()
    broken: list[BaseException | None] = []

    async def ask() -> None:
        if chance.random() < 0.02:  # somebody who does not wait for the answer
            await _hang_up(port, mix.next())
            return
        connection = Connection(port)
        while free:
            idle_since, kept = free.pop()
            if time.perf_counter() - idle_since < IDLE_S:
                connection = kept
                break
            kept.close()
        await _ask(connection, mix.next(), seen)
        free.append((time.perf_counter(), connection))

    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        await asyncio.sleep(chance.expovariate(rate))
        task = asyncio.create_task(ask())
        under_way.add(task)
        task.add_done_callback(under_way.discard)
        task.add_done_callback(lambda task: broken.append(task.exception()))
    if under_way:
        _, late = await asyncio.wait(under_way, timeout=60)
        print(f"not answered a minute after the last was asked: {len(late)}")
    print(f"connections that broke: {sum(each is not None for each in broken)}")
    for _, connection in free:
        connection.close()
    return seen


async def _watch(port: int, server: psutil.Process, told: list[dict[str, float]]) -> None:
    """Keep what is seen every few seconds, and print each minute's medians, lest they be lost."""
    while True:
        connection = Connection(port)  # another each time: the server closes idle ones
        text = (await connection.ask("GET", "/metrics")).body.decode()
        connection.close()
        every = [server, *server.children(recursive=True)]
        told.append(
            {
                "memory, MiB": sum(map(_resident, every)) / 2**20,
                "its own, MiB": server.memory_info().rss / 2**20,
                "of it used": _gauge(text, 'basin_heap_bytes{state="in_use"}') / 2**20,
                "of it free": _gauge(text, 'basin_heap_bytes{state="free"}') / 2**20,
                "descriptors": server.num_fds(),
                "threads": server.num_threads(),
                "processes": len(every),
                "queue": _gauge(text, "basin_queue_depth"),
                "jobs": _gauge(text, "basin_jobs_unfinished"),
            }
        )
        if len(told) % A_MINUTE == 0:
            last = told[-A_MINUTE:]
            medians = {name: statistics.median(each[name] for each in last) for name in last[0]}
            print(json.dumps(medians), flush=True)
        await asyncio.sleep(EVERY_S)


def _resident(process: psutil.Process) -> int:
    try:
        return process.memory_info().rss
    except psutil.NoSuchProcess:  # a parser that took too long, and made room for another
        return 0


def _gauge(text: str, name: str) -> float:
    found = re.search(rf"^{re.escape(name)} (\S+)$", text, re.MULTILINE)
    assert found
    return float(found[1])


def _minutes(values: list[float], of: Callable[[list[float]], float]) -> np.ndarray:
    starts = range(0, len(values) - A_MINUTE + 1, A_MINUTE)
    return np.array([of(values[i : i + A_MINUTE]) for i in starts])


def _slope(values: list[float], equal: list[float] | None = None) -> tuple[float, float]:
    """Growth an hour by the medians of each minute, and its standard error, for which minutes less
    than `APART` apart are alike (Newey and West 1987): a burst is remembered for some. What the
    means of `equal` explain is no growth (by partial regression)."""
    y = _minutes(values, statistics.median)
    x = np.arange(len(y)) / 60
    known = np.ones((len(y), 1))
    if equal is not None:
        known = np.column_stack((known, _minutes(equal, statistics.mean)))
    x, y = (each - known @ np.linalg.lstsq(known, each)[0] for each in (x, y))
    slope = x @ y / (x @ x)
    pull = x * (y - slope * x)
    lags = range(1, min(APART, len(y)))
    varies = pull @ pull + sum(2 * (1 - lag / APART) * (pull[lag:] @ pull[:-lag]) for lag in lags)
    return float(slope), float(max(varies, 0.0) ** 0.5 / (x @ x))


async def _run(port: int, server: psutil.Process, minutes: float) -> None:
    mix = Mix(0)
    await _capacity(port, mix, WARM_S)
    capacity = await _capacity(port, mix, MEASURE_S)
    rate = SHARE * capacity
    print(f"capacity: {capacity:.1f} answers a second to {CLIENTS} clients; {rate:.1f} come")
    told: list[dict[str, float]] = []

    async def watch() -> None:
        await asyncio.sleep(BEFORE_S)
        await _watch(port, server, told)

    async with asyncio.TaskGroup() as group:  # where the watch ends, so does all
        watching = group.create_task(watch())
        seen = await _load(port, mix, rate, BEFORE_S + 60 * minutes)
        watching.cancel()
    print(f"answers in {minutes:g} minutes and ten before: {dict(sorted(seen.items()))}")
    quarter = len(told) // 4
    print(f"{'':14}{'first':>9}{'last':>9}{'most':>9}{'slope an hour':>22}")
    for name in told[0]:
        values = [each[name] for each in told]
        first, last = (statistics.median(part) for part in (values[:quarter], values[-quarter:]))
        slope, error = _slope(values)
        grown = f"{slope:+.2f} ± {error:.2f}"
        print(f"{name:14}{first:9.1f}{last:9.1f}{max(values):9.1f}{grown:>22}")
    memory, queue = ([each[name] for each in told] for name in ("memory, MiB", "queue"))
    slope, error = _slope(memory, equal=queue)
    print(f"memory, at an equal queue: {slope:+.2f} ± {error:.2f} MiB an hour")


def main() -> None:
    minutes = float(sys.argv[1]) if len(sys.argv) > 1 else 60.0
    print(describe())
    with ExitStack() as held:
        own = held.enter_context(TemporaryDirectory())
        settings = {"BASIN_THREADS": "1", "BASIN_CACHE_BYTES": str(8 << 20)}
        settings |= {"BASIN_JOB_STORE": f"{own}/jobs", "BASIN_MEMORY_STORE": f"{own}/memories"}
        started, client = held.enter_context(process(**settings))
        port = client.base_url.port
        assert port is not None
        asyncio.run(_run(port, psutil.Process(started.pid), minutes))


if __name__ == "__main__":
    main()
