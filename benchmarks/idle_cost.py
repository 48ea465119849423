"""What a rest costs: to parse and pack the graph of a request after some milliseconds of nothing.

A server that has nothing else to do reads each request with caches as others left them: those of
the same process by what it computed last, and those of other processes. Here the rest
is an empty loop on the same core, so that neither its clock nor the scheduler has a part in it, or
4 MiB that are read, which have the private caches of most cores to themselves.

    python -m benchmarks.idle_cost [times]
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from functools import partial

import numpy as np
import torch

from benchmarks.machine import describe, keep_what_is_freed
from benchmarks.minimal_server import network
from benchmarks.overhead import SAFETENSORS, body_of, graph_of
from service.settings import Settings
from service.validation.safetensors_body import graph_from_tensors as read_graph
from service.validation.safetensors_body import parse_safetensors

NODES, TIMES, WARM = 500, 200, 20
RESTS_MS = (0.3, 1, 3, 10, 30)
_LARGE = np.ones(4 << 20, np.uint8)


def _rest(seconds: float) -> None:
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


def _took_us(rest: Callable[[], object], work: Callable[[], object], times: int) -> float:
    found = list[float]()
    for _ in range(times + WARM):
        rest()
        start = time.perf_counter()
        work()
        found.append(1e6 * (time.perf_counter() - start))
    return statistics.median(found[WARM:])


def main() -> None:
    times = int(sys.argv[1]) if len(sys.argv) > 1 else TIMES
    torch.set_num_threads(1)
    keep_what_is_freed()
    limits = Settings()
    content, _ = body_of(graph_of(NODES, len(network.config.features)), SAFETENSORS)

    def work() -> None:
        tensors, _ = parse_safetensors(content)
        network.pack([read_graph(tensors, None, network.config, limits).graph])

    rests: dict[str, Callable[[], object]] = {"none": lambda: None, "4 MiB read": _LARGE.sum}
    rests |= {f"{ms:g} ms": partial(_rest, ms / 1e3) for ms in RESTS_MS}
    print(describe())
    print(f"| before it | to parse and pack {NODES} nodes, us | of that without a rest |")
    print("|---|---|---|")
    first = 0.0
    for name, rest in rests.items():
        took = _took_us(rest, work, times)
        first = first or took
        print(f"| {name} | {took:.0f} | {took / first:.2f} |", flush=True)


if __name__ == "__main__":
    main()
