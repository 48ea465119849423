"""The commands of photographs: train a checkpoint that completes them, or compare networks."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.progress import Progress

from training.cli_options import (
    DataOption,
    DeviceOption,
    EpochsOption,
    Name,
    Out,
    PrecisionOption,
    ResultsLogOption,
    RunFolder,
    SmokeOption,
    checkpoint_folder,
    console,
    create_fabric,
    run_folder,
)
from training.tasks.photos.configs import CORES, photo_train_config
from training.tasks.photos.data import PhotoSet, load_bsds, load_photo_folder
from training.tasks.photos.export import export_photo_completer
from training.tasks.photos.results_table import compute_rows, format_table
from training.tasks.photos.train import train_photo_completer

Images = Annotated[
    Path | None, typer.Option(help="folder with your photographs; else those of BSDS500")
]
Size = Annotated[str, typer.Option(help="of the network: small for a CPU, large for a GPU")]


def _load(images: Path | None, data: Path | None, smoke: bool) -> PhotoSet:
    if images is None:
        return load_bsds(data, count=4 if smoke else None)
    own = load_photo_folder(images)
    if own.note:
        console.print(own.note, markup=False, highlight=False)
    return own


def photos(
    images: Images = None,
    size: Size = "small",
    seed: int = 0,
    epochs: EpochsOption = None,
    batch: Annotated[int | None, typer.Option(help="windows of a batch", min=1)] = None,
    jpeg_share: Annotated[
        float | None,
        typer.Option(help="of windows compressed as JPEG of quality 30 to 95", min=0, max=1),
    ] = None,
    name: Name = None,
    out: Out = None,
    run: RunFolder = None,
    data: DataOption = None,
    device: DeviceOption = "auto",
    precision: PrecisionOption = "32-true",
    smoke: SmokeOption = False,
) -> None:
    """Train a checkpoint that completes photographs. Killed and started again, it goes on.

    `small` takes some three hours of one core, `large` five minutes of an H200.
    """
    chosen = photo_train_config(
        "et", size, epochs=epochs, batch_windows=batch, jpeg_share=jpeg_share, smoke=smoke
    )
    source = _load(images, data, smoke)
    name, folder = checkpoint_folder(name or "et-photos", out)
    if run is None:
        run = run_folder(name, chosen, seed, source.fingerprint)
    fabric = create_fabric(device, precision)
    with Progress(console=console, disable=not fabric.is_global_zero) as progress:
        result = train_photo_completer(
            source, chosen, seed=seed, fabric=fabric, run_folder=run, progress=progress
        )
    if fabric.is_global_zero:
        written = export_photo_completer(folder, name, source, result, seed=seed)
        figures = result.figures
        console.print(
            f"hidden pixels: PSNR {figures['psnr_all']:.2f} dB, prefilled "
            f"{figures['prefill_psnr_all']:.2f} dB"
        )
        typer.echo(f"{folder} {written.sha256}")


def photos_table(
    images: Images = None,
    models: Annotated[str, typer.Option(help="comma-separated")] = ",".join(CORES),
    size: Size = "small",
    minutes: Annotated[float, typer.Option(help="of training each", min=0.01)] = 10,
    seeds: Annotated[int, typer.Option(help="number of seeds", min=1)] = 3,
    out: ResultsLogOption = None,
    data: DataOption = None,
    device: DeviceOption = "auto",
    precision: PrecisionOption = "32-true",
    smoke: SmokeOption = False,
) -> None:
    """Train every network for the same time on the same photographs, and print the table."""
    source = _load(images, data, smoke)
    path = out or Path("runs/tables") / f"photos-{size}-{minutes:g}min{'-smoke' * smoke}.jsonl"
    fabric = create_fabric(device, precision)
    with Progress(console=console) as progress:
        results = compute_rows(
            source,
            models.split(","),
            range(seeds),
            size,
            minutes,
            path,
            fabric,
            progress,
            smoke=smoke,
        )
    typer.echo(format_table(results))
