"""python -m training: train checkpoints and reproduce the tables."""

from __future__ import annotations

import typer

from training.anomaly.command import anomaly, table
from training.classify.command import classify, classify_table
from training.complete.command import complete, complete_table
from training.ood.command import out_of_distribution
from training.recognise.command import recognise, recognise_table
from training.reproduce.command import memories, reproduce
from training.resonate.command import resonance_table
from training.ship import ship

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
for command in (
    *(classify, classify_table, complete, complete_table, recognise, recognise_table),
    *(anomaly, table, ship, reproduce, memories, out_of_distribution, resonance_table),
):
    app.command()(command)


if __name__ == "__main__":
    app()
