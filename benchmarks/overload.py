"""Twice as much as there is room for: does what is accepted still go through at full speed?

16 clients score `examples/tolokers.json` as fast as they can, for four seconds: the capacity. As
each of them waits for its answer, requests come when there is room, several together. Then they are
sent at that rate, whatever becomes of them, for ten seconds: what is answered of those is the
capacity for requests that come when they come. Then at twice that rate for twenty; and so on in
turn, until there were five minutes of that, for a machine's clock does not stand still. Printed are
the goodput (answers 200 a second) of each turn over either capacity around it, how long refusals
(429) took, whether each request had one answer under its own id, and the memory of the server on
the way. The result cache is off. Where there are cores enough, server and clients have their own:
those who are refused, who cost the clients most, take no time from those who are answered.

Then more clients come than there are places, and retry immediately: what of
the capacity is left?

    python -m benchmarks.overload [seconds]
"""

from __future__ import annotations

import asyncio
import os
import re
import statistics
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from benchmarks.client import Connection, Reply, example
from benchmarks.machine import describe
from benchmarks.server import serving

CLIENTS, GREEDY = 16, 64
WARM_S, MEASURE_S, SENT_S, TURN_S, OVERLOAD_S, TIMES = 3.0, 4.0, 10.0, 20.0, 300.0, 2.0
JSON = "application/json"


@dataclass
class _Seen:
    replies: list[Reply] = field(default_factory=list)
    broken: int = 0
    mixed: int = 0
    still_s: float = 0.0  # the longest turn of the clients' loop, on a core of their own

    def of(self, status: int) -> list[float]:
        return [reply.seconds for reply in self.replies if reply.status == status]


async def _closed(port: int, content: bytes, seconds: float, clients: int) -> Counter[int]:
    """What clients that retry immediately were answered, by status."""
    end, statuses = time.perf_counter() + seconds, Counter[int]()

    async def ask() -> None:
        connection = Connection(port)
        while time.perf_counter() < end:
            reply = await connection.post("/anomaly/score", content, JSON)
            statuses[reply.status] += 1
        connection.close()

    await asyncio.gather(*(ask() for _ in range(clients)))
    return statuses


async def _capacity(port: int, content: bytes, seconds: float) -> float:
    """Answers a second."""
    statuses = await _closed(port, content, seconds, CLIENTS)
    assert set(statuses) == {200}, statuses
    return statuses[200] / seconds


async def _send(port: int, content: bytes, rate: float, seconds: float) -> _Seen:
    """Requests at this rate, whatever becomes of them."""
    seen, free = _Seen(), list[Connection]()
    start, sent = time.perf_counter(), 0
    under_way: set[asyncio.Task[None]] = set()

    async def ask(name: str) -> None:
        connection = free.pop() if free else Connection(port)
        try:
            sending = {"x-request-id": name}
            reply = await connection.post("/anomaly/score", content, JSON, **sending)
        except OSError:
            seen.broken += 1
            return
        seen.replies.append(reply)
        if reply.headers.get("connection") == "close":  # one too many, no request of it was read
            return
        seen.mixed += reply.headers.get("x-request-id") != name
        free.append(connection)

    before = 0.0
    while (now := time.perf_counter() - start) < seconds:
        seen.still_s, before = max(seen.still_s, now - before), now
        while sent < now * rate:
            task = asyncio.create_task(ask(f"r{sent}"))
            under_way.add(task)
            task.add_done_callback(under_way.discard)
            sent += 1
        await asyncio.sleep(0.002)
    await asyncio.gather(*under_way)
    for connection in free:
        connection.close()
    assert len(seen.replies) + seen.broken == sent
    return seen


async def _watch(port: int, every_s: float, mib: list[float]) -> None:
    """The memory of the server, as it tells it."""
    connection = Connection(port)
    while True:
        text = (await connection.ask("GET", "/metrics")).body.decode()
        found = re.search(r"^process_resident_memory_bytes (\S+)$", text, re.MULTILINE)
        assert found
        mib.append(float(found[1]) / 2**20)
        await asyncio.sleep(every_s)


async def _run(port: int, seconds: float) -> None:
    content, mib, turns = example(), list[float](), list[_Seen]()
    await _capacity(port, content, WARM_S)
    capacities, came = list[float](), list[float]()

    async def measure() -> None:
        capacities.append(await _capacity(port, content, MEASURE_S))
        seen = await _send(port, content, capacities[-1], SENT_S)
        came.append(len(seen.of(200)) / SENT_S)

    await measure()
    watching = asyncio.create_task(_watch(port, seconds / 20, mib))
    for _ in range(max(round(seconds / TURN_S), 1)):
        turns.append(await _send(port, content, TIMES * capacities[-1], TURN_S))
        await measure()
    watching.cancel()
    greedy = await _closed(port, content, TURN_S, GREEDY)
    after = await _capacity(port, content, MEASURE_S)

    goodputs = [len(turn.of(200)) / TURN_S for turn in turns]
    print(f"capacity: {_told(capacities, '.0f')} answers a second to {CLIENTS} clients")
    print(f"of as many requests that come when they come: {_told(came, '.0f')} answered")
    statuses = sum((Counter(reply.status for reply in turn.replies) for turn in turns), Counter())
    broken, mixed = (sum(getattr(turn, what) for turn in turns) for what in ("broken", "mixed"))
    print(f"{TIMES:g} times as many, {len(turns)} times {TURN_S:g} s: {dict(statuses)}")
    print(f"broken {broken}, under another's id {mixed}")
    print(f"goodput over capacity: {_told(_over(goodputs, capacities), '.3f')}")
    print(f"over that for requests that come when they come: {_told(_over(goodputs, came), '.3f')}")
    for name, status in (("refusals", 429), ("answers", 200)):
        for p in (50, 99):
            found = [1e3 * float(np.percentile(turn.of(status), p)) for turn in turns]
            print(f"{name}, p{p}: {_told(found, '.2f')} ms")
    print(f"the clients stood still, longest: {_told([1e3 * t.still_s for t in turns], '.0f')} ms")
    share = greedy[200] / TURN_S / statistics.mean((capacities[-1], after))
    print(f"{GREEDY} clients that retry immediately: {dict(greedy)} in {TURN_S:g} s")
    print(f"goodput over capacity: {share:.3f}")
    quarter = max(len(mib) // 4, 1)
    early, late = statistics.median(mib[:quarter]), statistics.median(mib[-quarter:])
    print(f"memory, MiB: {early:.0f} in the first quarter, {late:.0f} in the last, {max(mib):.0f}")


def _over(goodputs: list[float], capacities: list[float]) -> list[float]:
    """Each over the mean of those before and after it."""
    around = map(statistics.mean, pairwise(capacities))
    return [goodput / capacity for goodput, capacity in zip(goodputs, around, strict=True)]


def _told(values: list[float], form: str) -> str:
    middle, least, most = statistics.median(values), min(values), max(values)
    return f"{middle:{form}} ({least:{form}} to {most:{form}})"


def main() -> None:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else OVERLOAD_S
    print(describe())
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, cores[: max(len(cores) // 2, 1)])  # what is started has the same
    with serving(BASIN_THREADS="1") as server:
        os.sched_setaffinity(0, cores[len(cores) // 2 :])
        port = server.base_url.port
        assert port is not None
        asyncio.run(_run(port, seconds))


if __name__ == "__main__":
    main()
