"""python -m training: train checkpoints and reproduce the tables."""

from __future__ import annotations

import typer
from basin_client.command_line import run

from training.release import cards, ship
from training.studies.hybrid_parts import hybrid_parts
from training.studies.node_columns import node_columns
from training.studies.ood.cli import out_of_distribution
from training.studies.reproduce.cli import memories, reproduce
from training.studies.resonance.cli import resonance_table
from training.tasks.anomaly.cli import anomaly, neighborhood, table
from training.tasks.anomaly.transactions.cli import payments, transactions, transactions_table
from training.tasks.classify.cli import classify, classify_table
from training.tasks.complete.cli import complete, complete_table
from training.tasks.images.cli import recognise, recognise_table
from training.tasks.photos.cli import photos, photos_table

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
for command in (
    *(classify, classify_table, complete, complete_table, recognise, recognise_table),
    *(
        anomaly,
        neighborhood,
        table,
        ship,
        cards,
        reproduce,
        memories,
        out_of_distribution,
        resonance_table,
        hybrid_parts,
        node_columns,
    ),
    *(photos, photos_table, transactions, transactions_table, payments),
):
    app.command()(command)


if __name__ == "__main__":
    run(app)
