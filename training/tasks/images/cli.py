"""The commands of recognition: train one checkpoint that sees pictures, or compare models."""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import Progress

from training.cli_options import (
    Data,
    Device,
    Epochs,
    LearnStrength,
    Name,
    Out,
    Precision,
    Resonating,
    Rows,
    RunFolder,
    Smoke,
    checkpoint_folder,
    console,
    fabric_on,
    run_folder,
    with_resonance,
)
from training.datasets.cifar import load_cifar10
from training.datasets.clevr import SIZES as SCENES
from training.datasets.clevr import load_clevr
from training.datasets.pictures import PictureDataset
from training.datasets.triangle import SIZES as TRIANGLES
from training.datasets.triangle import load_triangle
from training.tasks.images import results_table as tables
from training.tasks.images.configs import ABLATIONS, recognise_recipe, smoke_pictures
from training.tasks.images.export import export_pictures
from training.tasks.images.train import train_pictures


class Pictures(StrEnum):
    """What is to be recognised."""

    CIFAR10 = "cifar10"
    TRIANGLE = "triangle"
    CLEVR = "sort-of-clevr"


Dataset = Annotated[Pictures, typer.Option(case_sensitive=False)]
Models = Annotated[
    str,
    typer.Option(help=f"comma-separated; ait:no-hopfield is an ablation: {', '.join(ABLATIONS)}"),
]


def _load(dataset: Pictures, data: Path | None, smoke: bool) -> PictureDataset:
    """A dataset; for a smoke test a little of it."""
    if dataset is Pictures.CIFAR10:
        return load_cifar10(data, each=20 if smoke else None)
    if dataset is Pictures.TRIANGLE:
        return load_triangle(dict.fromkeys(TRIANGLES, 160) if smoke else TRIANGLES)
    return load_clevr(dict.fromkeys(SCENES, 8) if smoke else SCENES)


def recognise(
    dataset: Dataset = Pictures.TRIANGLE,
    seed: int = 0,
    resonance: Resonating = None,
    learn_strength: LearnStrength = False,
    epochs: Epochs = None,
    name: Name = None,
    out: Out = None,
    run: RunFolder = None,
    data: Data = None,
    device: Device = "auto",
    precision: Precision = "32-true",
    smoke: Smoke = False,
) -> None:
    """Train an Associative Transformer on pictures. Killed and started again, it goes on."""
    source = _load(dataset, data, smoke)
    chosen = recognise_recipe("ait", source.name)
    if smoke:
        chosen = smoke_pictures(chosen)
    added = with_resonance(resonance, learn_strength)
    chosen = replace(chosen, config=chosen.config | added)
    if epochs is not None:
        chosen = replace(chosen, epochs=epochs)
    name, folder = checkpoint_folder(name or f"ait-{source.name}", out)
    if run is None:
        run = run_folder(name, chosen, seed, source.fingerprint)
    fabric = fabric_on(device, precision)
    with Progress(console=console, disable=not fabric.is_global_zero) as progress:
        result = train_pictures(
            source, chosen, seed=seed, fabric=fabric, run=run, progress=progress
        )
    if fabric.is_global_zero:
        written = export_pictures(folder, name, source, result, seed=seed)
        for part, (m,) in result.evaluation.parts.items():
            console.print(
                f"{part:5} {source.task.name}: accuracy {m.accuracy:.4f}  "
                f"cross entropy {m.cross_entropy:.4f}  {m.graphs} samples"
            )
        for kind, accuracy in result.by_kind.items():
            console.print(f"test  {kind}: accuracy {accuracy:.4f}")
        typer.echo(f"{folder} {written.sha256}")


def recognise_table(
    dataset: Dataset = Pictures.TRIANGLE,
    models: Models = "ait,vit",
    seeds: Annotated[int, typer.Option(min=1, help="how many networks of each model")] = 3,
    epochs: Epochs = None,
    out: Rows = None,
    data: Data = None,
    device: Device = "auto",
    precision: Precision = "32-true",
    smoke: Smoke = False,
) -> None:
    """Train every model with every seed and print the table in Markdown."""
    source = _load(dataset, data, smoke)
    path = out or Path("runs/tables") / f"{source.name}{'-smoke' if smoke else ''}.jsonl"
    fabric = fabric_on(device, precision)
    with Progress(console=console) as progress:
        results = tables.run(
            source,
            models.split(","),
            seeds,
            path,
            fabric,
            progress,
            epochs=epochs,
            smoke=smoke,
        )
    typer.echo(tables.markdown(source, results))
