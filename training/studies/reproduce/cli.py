"""The commands that print a paper's tables and make the memories that ship."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from models.memories import MEMORY_FILE_SUFFIX, Memory, MemoryCard, dump_memory
from training.cli_options import DataOption
from training.datasets.memories import load_digits, load_rrm_alignment
from training.studies.reproduce import stochastic_attention


def reproduce(
    paper: Annotated[str, typer.Argument(help="stochastic-attention")],
    only: Annotated[str | None, typer.Option(help="synthetic, images, proteins, finance")] = None,
    seed: int = 0,
    data: DataOption = None,
) -> None:
    """Print a paper's tables beside ours, in Markdown; minutes."""
    if paper != "stochastic-attention":
        raise typer.BadParameter("stochastic-attention is the one there is")
    for text in stochastic_attention.reproduce(data, seed, only):
        typer.echo(text + "\n")


def memories(
    folder: Annotated[Path, typer.Option(help="where the files go")] = Path("memories"),
    data: DataOption = None,
) -> None:
    """Make the memories that ship, from the published files."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, kind, items, licence, note in (
        (
            "mnist-3",
            "images",
            load_digits(3, 100, data),
            "CC BY-SA 3.0",
            "the first 100 threes of MNIST's training set (LeCun, Cortes, Burges)",
        ),
        (
            "rrm",
            "sequences",
            load_rrm_alignment(data),
            "CC0 1.0",
            "Pfam PF00076.29, seed alignment; columns with more than half gaps left out",
        ),
    ):
        memory = Memory.from_items(kind, items)
        card = MemoryCard.from_memory(memory, items, licence, note)
        (folder / f"{name}{MEMORY_FILE_SUFFIX}").write_bytes(dump_memory(items, card))
        typer.echo(f"{name} {card.patterns} patterns, d = {card.dim}, {card.sha256}")
