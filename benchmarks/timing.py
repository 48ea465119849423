"""Time several functions in turns, so that a drift of the machine's clock meets all alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import torch

from benchmarks.results_file import record

ROUNDS = 9


def medians(
    works: Mapping[str, Callable[[], object]],
    case: str,
    peer: str,
    repeats: int = 1,
    rounds: int = ROUNDS,
) -> dict[str, float]:
    """Median seconds of each function over `rounds` of `repeats` calls; a first round is dropped.

    `case` and `peer` are for `benchmarks.results_file`.
    """
    took: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(rounds + 1):
        for name, work in works.items():
            start = time.perf_counter()
            for _ in range(repeats):
                work()
            if torch.cuda.is_initialized():
                torch.cuda.synchronize()
            took[name].append((time.perf_counter() - start) / repeats)
    return record(case, peer, {name: times[1:] for name, times in took.items()})
