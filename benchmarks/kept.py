"""What was measured, written as JSON: `python -m benchmarks FILE`."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from benchmarks.machine import describe


@dataclass(frozen=True)
class Figure:
    """Seconds of one of several works that took turns: median, quartiles, how many rounds; and the
    median of the one that it is compared with over its own."""

    case: str
    work: str
    median_s: float
    quartiles_s: tuple[float, float]
    rounds: int
    peer: str
    ratio: float


_figures: list[Figure] = []


def keep(case: str, peer: str, took: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """The median of each, and all of it kept.

    Args:
        case: what the works had in common.
        peer: the work that the others are compared with.
        took: seconds of each work, of each round.
    """
    median = {name: statistics.median(seconds) for name, seconds in took.items()}
    for name, seconds in took.items():
        low, high = (float(np.percentile(seconds, p)) for p in (25, 75))
        ratio = median[peer] / median[name]
        figure = Figure(case, name, median[name], (low, high), len(seconds), peer, ratio)
        _figures.append(figure)
    return median


def taken() -> list[dict[str, object]]:
    """What has been kept since this was last asked."""
    found = [asdict(figure) for figure in _figures]
    _figures.clear()
    return found


def write(path: Path, found: Mapping[str, Sequence[object]]) -> None:
    """Figures of each benchmark, and the machine."""
    path.write_text(json.dumps({"machine": describe(), "benchmarks": found}, indent=1) + "\n")
