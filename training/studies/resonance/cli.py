"""The command that asks what resonance is good for."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.progress import Progress

from models.checkpoint import load_checkpoint
from training.cli_options import (
    DataOption,
    DeviceOption,
    EpochsOption,
    PrecisionOption,
    ResultsLogOption,
    SmokeOption,
    console,
    create_fabric,
)
from training.common.results_log import ResultsLog
from training.studies.resonance import results_table
from training.studies.resonance.study import RetrainOptions, load_study


def _numbers(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not numbers with commas between them") from None


def resonance_table(
    dataset: Annotated[
        str, typer.Option(help="tolokers, AMES or what else a checkpoint is named after")
    ] = "tolokers",
    models: Annotated[str, typer.Option(help="comma-separated")] = "cdat,et",
    retrain: Annotated[
        bool, typer.Option("--retrain", help="train with each resonance and without, too")
    ] = False,
    seeds: Annotated[int, typer.Option(help="of new weights", min=1)] = 1,
    strengths: Annotated[str, typer.Option(help="lambda, comma-separated")] = "0.1,0.2,0.4",
    vigilances: Annotated[str, typer.Option(help="rho, comma-separated")] = "0.4,0.55,0.7",
    folder: Annotated[Path, typer.Option(help="folder of checkpoints")] = Path("checkpoints"),
    epochs: EpochsOption = None,
    out: ResultsLogOption = None,
    data: DataOption = None,
    device: DeviceOption = "auto",
    precision: PrecisionOption = "32-true",
    smoke: SmokeOption = False,
) -> None:
    """What each resonance does to the test figure of a checkpoint, as a table in Markdown."""
    grid = results_table.resonance_grid(_numbers(strengths), _numbers(vigilances))
    grid = grid[:1] if smoke else grid
    path = out or Path("runs/tables") / f"resonance{'-smoke' * smoke}.jsonl"
    fabric, rows = create_fabric(device, precision) if retrain else None, []
    for model in models.split(","):
        name = f"{model}-{dataset.lower()}"
        if not (folder / name).is_dir():
            console.print(f"{name} is not in {folder}: left out. Train it, and run this again.")
            continue
        subject = load_study(load_checkpoint(folder / name), data)
        rows += results_table.evaluate_checkpoint(subject, ResultsLog(path), grid)
        if fabric is not None:
            ledger = ResultsLog(path, fabric)
            with Progress(console=console) as progress:
                how = RetrainOptions(fabric, progress, smoke, epochs)
                rows += results_table.evaluate_retrained(subject, ledger, grid, seeds, how)
    if rows:
        typer.echo(results_table.format_table(rows))
