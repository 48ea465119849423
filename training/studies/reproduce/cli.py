"""The commands that print a paper's tables and make the memories that ship."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from models.memories import SUFFIX, Card, Memory, dump
from training.cli_options import Data
from training.datasets.memories import digits, rrm
from training.studies.reproduce import stochastic_attention


def reproduce(
    paper: Annotated[str, typer.Argument(help="stochastic-attention")],
    only: Annotated[str | None, typer.Option(help="synthetic, images, proteins, finance")] = None,
    seed: int = 0,
    data: Data = None,
) -> None:
    """Print a paper's tables beside ours, in Markdown; minutes."""
    if paper != "stochastic-attention":
        raise typer.BadParameter("stochastic-attention is the one there is")
    for text in stochastic_attention.reproduce(data, seed, only):
        typer.echo(text + "\n")


def memories(
    folder: Annotated[Path, typer.Option(help="where the files go")] = Path("memories"),
    data: Data = None,
) -> None:
    """Make the memories that ship, from the published files."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, kind, items, licence, note in (
        (
            "mnist-3",
            "images",
            digits(3, 100, data),
            "CC BY-SA 3.0",
            "the first 100 threes of MNIST's training set (LeCun, Cortes, Burges)",
        ),
        (
            "rrm",
            "sequences",
            rrm(data),
            "CC0 1.0",
            "Pfam PF00076.29, seed alignment; columns with more than half gaps left out",
        ),
    ):
        memory = Memory.of(kind, items)
        card = Card.of(memory, items, licence, note)
        (folder / f"{name}{SUFFIX}").write_bytes(dump(items, card))
        typer.echo(f"{name} {card.patterns} patterns, d = {card.dim}, {card.sha256}")
