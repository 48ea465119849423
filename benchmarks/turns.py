"""Works that take turns, so that a clock that wanders wanders for all of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import torch

from benchmarks.kept import keep

ROUNDS = 9


def medians(
    works: Mapping[str, Callable[[], object]],
    case: str,
    peer: str,
    repeats: int = 1,
    rounds: int = ROUNDS,
) -> dict[str, float]:
    """Seconds of each, over `rounds` after one that does not count, of `repeats` each.

    `case` and `peer` are for `benchmarks.kept`.
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
    return keep(case, peer, {name: times[1:] for name, times in took.items()})
