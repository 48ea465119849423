"""Every table of the paper that needs no trained network, ours beside it."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from training.studies.reproduce import finance, images, proteins, synthetic
from training.studies.reproduce.tables import Table

PARTS: dict[str, Callable[[Path | None, int], Iterator[Table]]] = {
    "synthetic": lambda _, seed: synthetic.make_tables(seed),
    "images": images.make_tables,
    "proteins": proteins.make_tables,
    "finance": finance.make_tables,
}


def reproduce(data: Path | None, seed: int, only: str | None = None) -> Iterator[str]:
    """The tables as Markdown, one after the other, and the machine at the end.

    Raises:
        ValueError: `only` names no part.
    """
    if only is not None and only not in PARTS:
        raise ValueError(f"parts are {', '.join(PARTS)}")
    for name, part in PARTS.items():
        if only in (None, name):
            yield from (table.to_markdown() for table in part(data, seed))
    yield (
        f"Seed {seed}; float32; {platform.machine()}, torch {torch.__version__}, "
        f"Python {platform.python_version()}."
    )
