"""The commands of image completion: train one checkpoint, or compare models."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from pydantic import ValidationError
from rich.progress import Progress

from models.tasks.image_completer import ImageConfig
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
from training.datasets import (
    IMAGE_DATASETS,
    ImageDataset,
    data_folder,
    load_folder,
    load_images,
)
from training.datasets.images import load_tiny_imagenet
from training.tasks.complete import results_table as tables
from training.tasks.complete.configs import (
    ABLATIONS,
    PAPER_SIZE,
    completion_train_config,
    smoke_completion_config,
)
from training.tasks.complete.evaluate import summarize_over_masks
from training.tasks.complete.export import export_image_completer
from training.tasks.complete.train import train_image_completer

_SMOKE_IMAGES = 40


def _whole(size: int) -> int:
    """Refuse a size that no network takes, before images are read."""
    try:
        ImageConfig.model_validate({"size": size, "patch": size})
    except ValidationError as error:
        raise typer.BadParameter(error.errors()[0]["msg"]) from error
    return size


Dataset = Annotated[str | None, typer.Option(help=", ".join(IMAGE_DATASETS))]
Images = Annotated[Path | None, typer.Option(help="folder with your images, and folders in it")]
Size = Annotated[
    int,
    typer.Option(
        help="pixels of a side to which --images are scaled; 224 takes the paper's network, with "
        "patches of 16",
        min=8,
        callback=_whole,
    ),
]
Brief = Annotated[bool, typer.Option("--brief", help="train as long as a CPU has time for")]
Count = Annotated[int | None, typer.Option(help="number of images of a part to measure", min=1)]


def _load(
    dataset: str | None, images: Path | None, size: int, data: Path | None, smoke: bool
) -> ImageDataset:
    if (dataset is None) == (images is None):
        raise typer.BadParameter("give either --dataset or --images")
    if images is not None:
        own = load_folder(images, size)
        if own.note:
            console.print(own.note, markup=False, highlight=False)
        return own
    assert dataset is not None
    if smoke and dataset == f"tiny-imagenet-{PAPER_SIZE}":  # all of it takes minutes to scale
        return load_tiny_imagenet(data or data_folder(), PAPER_SIZE, count=_SMOKE_IMAGES)
    return load_images(dataset, data)


def complete(
    dataset: Dataset = None,
    images: Images = None,
    size: Size = 64,
    ablation: Annotated[str, typer.Option(help=", ".join(ABLATIONS))] = "none",
    seed: int = 0,
    resonance: Resonating = None,
    learn_strength: LearnStrength = False,
    brief: Brief = False,
    epochs: EpochsOption = None,
    count: Count = 1000,
    name: Name = None,
    out: Out = None,
    run: RunFolder = None,
    data: DataOption = None,
    device: DeviceOption = "auto",
    precision: PrecisionOption = "32-true",
    smoke: SmokeOption = False,
) -> None:
    """Train a checkpoint that completes images. Killed and started again, it goes on."""
    if ablation not in ABLATIONS:
        raise typer.BadParameter(f"ablation must be one of {', '.join(ABLATIONS)}")
    source = _load(dataset, images, size, data, smoke)
    chosen = completion_train_config("et", source, ablation, brief=brief)
    if smoke:
        chosen, count = smoke_completion_config(chosen), 16
    added = with_resonance(resonance, learn_strength)
    chosen = replace(chosen, config=chosen.config | added)
    if epochs is not None:
        chosen = replace(chosen, epochs=epochs)
    name, folder = checkpoint_folder(name or f"et-{source.name}", out)
    if run is None:
        run = run_folder(name, chosen, seed, source.fingerprint)
    fabric = create_fabric(device, precision)
    with Progress(console=console, disable=not fabric.is_global_zero) as progress:
        result = train_image_completer(
            source,
            chosen,
            seed=seed,
            fabric=fabric,
            parts=("val", "test", *source.sources),
            count=count,
            run_folder=run,
            progress=progress,
        )
    if fabric.is_global_zero:
        written = export_image_completer(folder, name, source, result, seed=seed)
        for part, measured in result.parts.items():
            m = summarize_over_masks(measured)
            console.print(
                f"{part:5} occluded patches: MSE {m['mse']:.5f}  PSNR {m['psnr']:.2f}  "
                f"SSIM {m['ssim']:.4f}  {m['images']} images, {m['masks']} masks of each"
            )
        typer.echo(f"{folder} {written.sha256}")


def complete_table(
    dataset: Dataset = None,
    images: Images = None,
    size: Size = 64,
    models: Annotated[str, typer.Option(help="comma-separated; et:no-hopfield is an ablation")] = (
        ",".join(tables.MODELS)
    ),
    brief: Brief = False,
    epochs: EpochsOption = None,
    count: Count = None,
    out: ResultsLogOption = None,
    data: DataOption = None,
    device: DeviceOption = "auto",
    precision: PrecisionOption = "32-true",
    smoke: SmokeOption = False,
) -> None:
    """Train every model on the same images and print the table in Markdown."""
    source = _load(dataset, images, size, data, smoke)
    path = out or Path("runs/tables") / f"complete-{source.name}{'-smoke' * smoke}.jsonl"
    fabric = create_fabric(device, precision)
    with Progress(console=console) as progress:
        results = tables.compute_rows(
            source,
            models.split(","),
            path,
            fabric,
            progress,
            brief=brief,
            epochs=epochs,
            count=64 if smoke else count,
            smoke=smoke,
        )
    typer.echo(tables.format_table(source, results))
