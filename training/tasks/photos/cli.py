"""The command that asks whether an energy completes photographs better than a transformer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import torch
import typer

from training.cli_options import DataOption, SmokeOption
from training.datasets.sources import data_folder
from training.studies.photos.data import ARCHIVE, WindowSource, read_photos, split_photos
from training.studies.photos.network import Core
from training.studies.photos.train import train_core


def photo_windows(
    core: Annotated[Core, typer.Option(help="what makes the residual")] = "et",
    seconds: Annotated[float, typer.Option(help="of training, compilation not counted")] = 600,
    rows: Annotated[int, typer.Option(help="windows of a step")] = 64,
    learning_rate: Annotated[float, typer.Option(help="of Muon and AdamW")] = 3e-3,
    seed: int = 0,
    compiled: Annotated[bool, typer.Option(help="compile the step, for GPUs")] = False,
    out: Annotated[Path, typer.Option(help="folder of weights and figures")] = Path("runs/photos"),
    data: DataOption = None,
    smoke: SmokeOption = False,
) -> None:
    """Train a window completer on BSDS500 for a time; figures on 20 photographs to choose on."""
    archive = (data or data_folder()) / ARCHIVE
    if not archive.exists():
        raise typer.BadParameter(f"{archive} does not exist; it is BSDS500's train and val parts")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    split = split_photos(archive)
    names = (split.train[:4], split.val[:2]) if smoke else (split.train, split.val)
    sources = [
        WindowSource(read_photos(archive, part).to(device), count, 64, seed + place, turn=not place)
        for place, (part, count) in enumerate(
            zip(names, (200, 40) if smoke else (32_000, 500), strict=True)
        )
    ]
    row = train_core(
        core,
        *sources,
        seconds=2 if smoke else seconds,
        rows=8 if smoke else rows,
        learning_rate=learning_rate,
        seed=seed,
        out=out,
        compiled=compiled,
        val_rows=40 if smoke else 500,
    )
    typer.echo(json.dumps(row))
