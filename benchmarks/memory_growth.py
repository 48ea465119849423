"""What do requests leave behind in a server's memory, if one comes after the other?

Rounds of scores, and of scores as jobs, by one client; after each the server is left alone until it
has given back what it does not need. Where each round adds less than the one before, nothing leaks.

    python -m benchmarks.memory_growth [scores of a round] [jobs of a round]
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil

from benchmarks.client import Connection, example
from benchmarks.machine import describe
from benchmarks.server import process

ROUNDS = ("score", "score", "job", "job", "score", "job")
QUIET_S = 65.0  # twice as long as it takes to give memory back
_AT_A_TIME = 50  # jobs, before some are waited for


async def _round(port: int, kind: str, count: int) -> None:
    connection, body = Connection(port), example()
    later = {"prefer": "respond-async"} if kind == "job" else {}
    for i in range(count):
        reply = await connection.post("/anomaly/score", body, "application/json", **later)
        assert reply.status in (200, 202), reply
        if later and i % _AT_A_TIME == _AT_A_TIME - 1:
            await asyncio.sleep(0.3)
    connection.close()


async def _run(port: int, server: psutil.Process, counts: dict[str, int]) -> None:
    await _round(port, "score", 500)
    await asyncio.sleep(QUIET_S)
    before = server.memory_info().rss / 2**20
    print(f"after 500 scores{before:18.1f} MiB", flush=True)
    for kind in ROUNDS:
        await _round(port, kind, counts[kind])
        await asyncio.sleep(QUIET_S)
        now = server.memory_info().rss / 2**20
        print(f"{counts[kind]:6} {kind}s more{now:18.1f} MiB{now - before:+8.1f}", flush=True)
        before = now


def main() -> None:
    given = [int(count) for count in sys.argv[1:]]
    counts = dict(zip(("score", "job"), (given + [8000, 4000][len(given) :]), strict=True))
    print(describe())
    with TemporaryDirectory() as own:
        settings = {"BASIN_JOB_STORE": f"{own}/jobs", "BASIN_MAX_JOBS": str(4 * counts["job"])}
        settings |= {
            "BASIN_GRAPH_STORE": f"{own}/graphs",
            "BASIN_MEMORY_STORE": str(Path(own, "m")),
        }
        with process(**settings, BASIN_THREADS="1") as (started, client):
            port = client.base_url.port
            assert port is not None
            asyncio.run(_run(port, psutil.Process(started.pid), counts))


if __name__ == "__main__":
    main()
