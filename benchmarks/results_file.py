"""The figures of a run, written as JSON: `python -m benchmarks FILE`."""

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


def record(case: str, peer: str, took: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Return the median of each work, and record all figures for `write`.

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


def take_figures() -> list[dict[str, object]]:
    """Return what was recorded since the last call."""
    figures = [asdict(figure) for figure in _figures]
    _figures.clear()
    return figures


def write(path: Path, figures: Mapping[str, Sequence[object]]) -> None:
    """Write the figures of each benchmark, and the machine."""
    path.write_text(json.dumps({"machine": describe(), "benchmarks": figures}, indent=1) + "\n")
