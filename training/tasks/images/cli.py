"""The commands of recognition: train one checkpoint that sees pictures, or compare models."""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import Progress

from training.cli_options import (
    DataOption,
    DeviceOption,
    EpochsOption,
    LearnStrength,
    Name,
    Out,
    PrecisionOption,
    Resonating,
    ResultsLogOption,
    RunFolder,
    SmokeOption,
    checkpoint_folder,
    console,
    create_fabric,
    run_folder,
    with_resonance,
)
from training.datasets.cifar import load_cifar10
from training.datasets.clevr import PART_SIZES as SCENES
from training.datasets.clevr import load_clevr
from training.datasets.labeled_images import LabeledImageDataset
from training.datasets.triangle import PART_SIZES as TRIANGLES
from training.datasets.triangle import load_triangle
from training.tasks.images import results_table as tables
from training.tasks.images.configs import (
    ABLATIONS,
    image_classifier_train_config,
    smoke_image_classifier_config,
)
from training.tasks.images.export import export_image_classifier
from training.tasks.images.train import train_image_classifier


class DatasetName(StrEnum):
    """What is to be recognised."""

    CIFAR10 = "cifar10"
    TRIANGLE = "triangle"
    CLEVR = "sort-of-clevr"


Dataset = Annotated[DatasetName, typer.Option(case_sensitive=False)]
Models = Annotated[
    str,
    typer.Option(help=f"comma-separated; ait:no-hopfield is an ablation: {', '.join(ABLATIONS)}"),
]


def _load(dataset: DatasetName, data: Path | None, smoke: bool) -> LabeledImageDataset:
    """A dataset; for a smoke test a little of it."""
    if dataset is DatasetName.CIFAR10:
        return load_cifar10(data, max_per_class=20 if smoke else None)
    if dataset is DatasetName.TRIANGLE:
        return load_triangle(dict.fromkeys(TRIANGLES, 160) if smoke else TRIANGLES)
    return load_clevr(dict.fromkeys(SCENES, 8) if smoke else SCENES)


def recognise(
    dataset: Dataset = DatasetName.TRIANGLE,
    seed: int = 0,
    resonance: Resonating = None,
    learn_strength: LearnStrength = False,
    epochs: EpochsOption = None,
    name: Name = None,
    out: Out = None,
    run: RunFolder = None,
    data: DataOption = None,
    device: DeviceOption = "auto",
    precision: PrecisionOption = "32-true",
    smoke: SmokeOption = False,
) -> None:
    """Train an Associative Transformer on pictures. Killed and started again, it goes on."""
    source = _load(dataset, data, smoke)
    chosen = image_classifier_train_config("ait", source.name)
    if smoke:
        chosen = smoke_image_classifier_config(chosen)
    added = with_resonance(resonance, learn_strength)
    chosen = replace(chosen, config=chosen.config | added)
    if epochs is not None:
        chosen = replace(chosen, epochs=epochs)
    name, folder = checkpoint_folder(name or f"ait-{source.name}", out)
    if run is None:
        run = run_folder(name, chosen, seed, source.fingerprint)
    fabric = create_fabric(device, precision)
    with Progress(console=console, disable=not fabric.is_global_zero) as progress:
        result = train_image_classifier(
            source, chosen, seed=seed, fabric=fabric, run_folder=run, progress=progress
        )
    if fabric.is_global_zero:
        written = export_image_classifier(folder, name, source, result, seed=seed)
        for part, (m,) in result.evaluation.parts.items():
            console.print(
                f"{part:5} {source.task.name}: accuracy {m.accuracy:.4f}  "
                f"cross entropy {m.cross_entropy:.4f}  {m.graphs} samples"
            )
        for kind, accuracy in result.accuracy_by_kind.items():
            console.print(f"test  {kind}: accuracy {accuracy:.4f}")
        typer.echo(f"{folder} {written.sha256}")


def recognise_table(
    dataset: Dataset = DatasetName.TRIANGLE,
    models: Models = "ait,vit",
    seeds: Annotated[int, typer.Option(min=1, help="how many networks of each model")] = 3,
    epochs: EpochsOption = None,
    out: ResultsLogOption = None,
    data: DataOption = None,
    device: DeviceOption = "auto",
    precision: PrecisionOption = "32-true",
    smoke: SmokeOption = False,
) -> None:
    """Train every model with every seed and print the table in Markdown."""
    source = _load(dataset, data, smoke)
    path = out or Path("runs/tables") / f"{source.name}{'-smoke' if smoke else ''}.jsonl"
    fabric = create_fabric(device, precision)
    with Progress(console=console) as progress:
        results = tables.compute_rows(
            source,
            models.split(","),
            seeds,
            path,
            fabric,
            progress,
            epochs=epochs,
            smoke=smoke,
        )
    typer.echo(tables.format_table(source, results))
