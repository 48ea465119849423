"""Large graphs beside small ones: is one refused that an idle server would have scored in time?

Two clients send graphs of five nodes one after the other, alone for a while; then graphs of 2 and
of 4 million edges (100,000 and 150,000 nodes) are scored on the idle server, three times each; then
all of it at a time: the two clients, and one for each of the large graphs. The model is
`cdat-tolokers`, the result cache is off, the deadline is the default. Printed are the median and
the 99th percentile of small ones alone and beside, the seconds of large ones, what each was
answered, and how many large graphs were not scored (refused, failed or without an answer) though
the idle server scored them within the deadline, which should be none.

    python -m benchmarks.large_beside_small [seconds]
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import safetensors.numpy

from benchmarks.client import Connection, Reply
from benchmarks.machine import describe
from benchmarks.server import serving
from service.settings import Settings

SMALL_CLIENTS, FEATURES = 2, 10
SIZES = {"2 million edges": (100_000, 2_000_000), "4 million edges": (150_000, 4_000_000)}
IDLE_ROUNDS, ALONE_S, BESIDE_S = 3, 20.0, 180.0
JSON, TENSORS = "application/json", "application/vnd.safetensors"


@dataclass
class _Answers:
    """What the clients of one kind of graph were answered."""

    replies: list[Reply] = field(default_factory=list)
    num_broken: int = 0  # connections that ended without an answer

    async def ask(self, connection: Connection, body: bytes, media_type: str) -> None:
        try:
            reply = await connection.post("/anomaly/score", body, media_type, accept=media_type)
        except OSError:
            self.num_broken += 1
        else:
            self.replies.append(reply)

    @property
    def seconds(self) -> list[float]:
        return [reply.seconds for reply in self.replies if reply.status == 200]

    @property
    def statuses(self) -> dict[int | str, int]:
        statuses = Counter[int | str](reply.status for reply in self.replies)
        return dict(statuses + Counter({"broken": self.num_broken}))


def _make_small() -> bytes:
    rng = np.random.default_rng(0)
    edges = rng.integers(0, 5, (2, 10)).tolist()
    return json.dumps(
        {"graph": {"x": rng.random((5, FEATURES)).tolist(), "edge_index": edges}}
    ).encode()


def _make_large(nodes: int, edges: int) -> bytes:
    rng = np.random.default_rng(0)
    tensors = {
        "x": rng.random((nodes, FEATURES), np.float32),
        "edge_index": rng.integers(0, nodes, (2, edges), np.int32),
    }
    return safetensors.numpy.save(tensors)


async def _ask_until(end: float, port: int, body: bytes, media_type: str, into: _Answers) -> None:
    connection = Connection(port)
    while time.perf_counter() < end:
        await into.ask(connection, body, media_type)
    connection.close()


async def _ask_small(port: int, body: bytes, seconds: float, into: _Answers) -> None:
    end = time.perf_counter() + seconds
    clients = (_ask_until(end, port, body, JSON, into) for _ in range(SMALL_CLIENTS))
    await asyncio.gather(*clients)


async def _run(port: int, seconds: float) -> None:
    small, deadline_s = _make_small(), Settings().deadline_s
    large = {name: _make_large(*size) for name, size in SIZES.items()}
    alone, small_beside = _Answers(), _Answers()
    await _ask_small(port, small, ALONE_S / 4, _Answers())  # not counted
    await _ask_small(port, small, ALONE_S, alone)
    idle = {name: _Answers() for name in large}
    for name, body in large.items():
        connection = Connection(port)
        for _ in range(IDLE_ROUNDS):
            await idle[name].ask(connection, body, TENSORS)
        connection.close()
    beside = {name: _Answers() for name in large}
    end = time.perf_counter() + seconds
    clients = (_ask_until(end, port, body, TENSORS, beside[name]) for name, body in large.items())
    await asyncio.gather(_ask_small(port, small, seconds, small_beside), *clients)
    _print_small(alone, small_beside)
    _print_large(idle, beside, deadline_s)


def _print_small(alone: _Answers, beside: _Answers) -> None:
    for name, answers in (("alone", alone), ("beside large ones", beside)):
        p50, p99 = (1e3 * float(np.percentile(answers.seconds or [np.nan], p)) for p in (50, 99))
        print(
            f"five nodes, {name}: p50 {p50:.1f} ms, p99 {p99:.1f} ms, answered {answers.statuses}"
        )


def _print_large(
    idle: Mapping[str, _Answers], beside: Mapping[str, _Answers], deadline_s: float
) -> None:
    num_wrong = 0
    for name, answers in beside.items():
        idle_s = idle[name].seconds or [np.inf]
        if idle[name].statuses.keys() != {200}:
            print(f"{name}: the idle server answered {idle[name].statuses}")
        num_failed = sum(answers.statuses.values()) - len(answers.seconds)
        num_wrong += num_failed if max(idle_s) <= deadline_s else 0
        figures = "no answer"
        if answers.seconds:
            figures = (
                f"median {np.median(answers.seconds):.1f} s, longest {max(answers.seconds):.1f} s"
            )
        print(
            f"{name}: idle {np.median(idle_s):.1f} s; beside small and large ones "
            f"{figures}, answered {answers.statuses}"
        )
    print(f"not scored though an idle server scores it within {deadline_s:g} s: {num_wrong}")


def main() -> None:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else BESIDE_S
    print(describe())
    with serving() as server:
        port = server.base_url.port
        assert port is not None
        asyncio.run(_run(port, seconds))


if __name__ == "__main__":
    main()
