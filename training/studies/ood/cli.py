"""The command that asks how well the energy, and what else, tells rows from elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from models.checkpoint import load_checkpoint
from models.tasks.window_completer import WindowCompleter
from training.cli_options import DataOption, ResultsLogOption, SmokeOption, console
from training.studies.ood import results_table
from training.studies.ood.rows import MAX_ROWS, MAX_TRAIN_ROWS


def out_of_distribution(
    folder: Annotated[Path, typer.Option(help="folder of checkpoints")] = Path("checkpoints"),
    only: Annotated[str | None, typer.Option(help="some of them, comma-separated")] = None,
    out: ResultsLogOption = None,
    data: DataOption = None,
    smoke: SmokeOption = False,
) -> None:
    """Test rows of each checkpoint against rows from elsewhere, as tables in Markdown."""
    wanted = None if only is None else only.split(",")
    names = sorted(path.name for path in folder.iterdir() if path.is_dir())
    if unknown := sorted({*(wanted or ())} - {*names}):
        raise typer.BadParameter(f"{folder} has no {unknown[0]}")
    checkpoints = [
        load_checkpoint(folder / name) for name in names if wanted is None or name in wanted
    ]
    chosen = [each for each in checkpoints if not isinstance(each.network, WindowCompleter)]
    for left_out in {each.manifest.name for each in checkpoints} - {
        each.manifest.name for each in chosen
    }:
        console.print(f"Left out: {left_out}: this study does not support et-window checkpoints.")
    path = out or Path("runs/tables") / f"out-of-distribution{'-smoke' * smoke}.jsonl"
    most, fitted = (16, 256) if smoke else (MAX_ROWS, MAX_TRAIN_ROWS)
    typer.echo(
        results_table.format_tables(results_table.run_study(chosen, path, data, most, fitted))
    )
