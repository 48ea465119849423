"""How time grows: with nodes, edges, tokens, steps, rows and width, against what theory allows.

A block of attention and Hopfield memories takes its steps, measured as a server measures them; one
size grows by doubling, the rest stands still. Printed are medians of turns, and the exponent
between the last three (least squares of the logarithms): the first sizes show what a step costs
that does nothing. Theory is the largest exponent that the products of a step have.

    python -m benchmarks.complexity
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from benchmarks.machine import describe
from benchmarks.step import Case, by_solve, graph, images
from benchmarks.timing import medians

FITTED, ROUNDS = 3, 7
Picture = tuple[int, int, int, int, int, int, int]  # rows, tokens, dim, heads, head_dim, M, steps
PICTURE: Picture = (1, 196, 128, 2, 64, 512, 12)
NODES, EDGES, SHAPE = 12_000, 400_000, (64, 2, 32, 256, 2)


@dataclass(frozen=True)
class Curve:
    """Sizes of something, the case of each, and the exponent that theory allows."""

    name: str
    sizes: tuple[int, ...]
    case: Callable[[int], Case]
    theory: int


def _nodes(size: int) -> Case:
    return graph(size, EDGES, *SHAPE)


def _edges(size: int) -> Case:
    return graph(NODES, size, *SHAPE)


def _picture(place: int) -> Callable[[int], Case]:
    return lambda size: images(*PICTURE[:place], size, *PICTURE[place + 1 :])


def _wide(dim: int) -> Case:
    rows, tokens, _, _, head_dim, _, steps = PICTURE
    return images(rows, tokens, dim, dim // head_dim, head_dim, 4 * dim, steps)


CURVES = (
    Curve("nodes, edges as they are", (6_000, 12_000, 24_000, 48_000, 96_000), _nodes, 1),
    Curve("edges, nodes as they are", (200_000, 400_000, 800_000, 1_600_000, 3_200_000), _edges, 1),
    Curve("tokens that all see each other", (64, 128, 256, 512, 1024), _picture(1), 2),
    Curve("steps", (3, 6, 12, 24, 48), _picture(6), 1),
    Curve("rows", (1, 2, 4, 8, 16), _picture(0), 1),
    Curve("width, of memories and heads too", (64, 128, 256, 512, 1024), _wide, 2),
)


def exponent(sizes: tuple[int, ...], seconds: list[float]) -> float:
    """Of the power law nearest to the last `FITTED` of them."""
    x, y = np.log(sizes[-FITTED:]), np.log(seconds[-FITTED:])
    return float(np.polyfit(x, y, 1)[0])


@torch.no_grad()
def main() -> None:
    print(describe())
    print("| what grows | ms | exponent | theory |")
    print("|---|---|---|---|")
    for curve in CURVES:
        cases = {f"{size:,}": curve.case(size) for size in curve.sizes}
        works = {name: lambda case=case: by_solve(case) for name, case in cases.items()}
        took = medians(works, curve.name, next(iter(works)), rounds=ROUNDS)
        told = ", ".join(f"{name}: {1e3 * each:.1f}" for name, each in took.items())
        found = exponent(curve.sizes, list(took.values()))
        print(f"| {curve.name} | {told} | {found:.2f} | {curve.theory} |", flush=True)


if __name__ == "__main__":
    main()
