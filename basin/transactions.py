"""`basin score-transactions`: score the rows of a table of transactions."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
import typer
from basin_client import InputError
from basin_client.command_line import Decimal, Drop, Encoding, Separator
from basin_client.tables import Table, read_table
from basin_client.transaction_tables import (
    TransactionColumns,
    TransactionTable,
    read_transactions,
    require_kind_of_time,
)

from basin.console import AsJson, Key, Model, Out, Server, connect, tell, with_progress_bar
from basin.io import add_columns, require_table_suffix, write_table

Unlabelled = Annotated[
    str | None,
    typer.Option(help="Value of the label that means unknown, where the model reads labels."),
]
_MAX_ROWS = 20_000  # of one request
_AT_A_TIME = 2048


def score_transactions(
    table: Annotated[Path, typer.Argument(help="Table with the columns of the model; - is stdin.")],
    model: Model = None,
    id_column: Annotated[
        str | None, typer.Option("--id", help="Column of the id; else rows are numbered from 1.")
    ] = None,
    last: Annotated[
        int | None,
        typer.Option(help="Number of rows to print, the last of the table; else all.", min=1),
    ] = None,
    unlabelled: Unlabelled = None,
    drop: Drop = None,
    separator: Separator = None,
    encoding: Encoding = None,
    decimal: Decimal = ".",
    server: Server = None,
    key: Key = None,
    bulk: Annotated[
        bool, typer.Option("--bulk", help="Score without a server; for any number of rows.")
    ] = False,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Score transactions, each by its own row and by the rows before it.

    A table should reach back by two of the longest windows of the model. Columns that are left
    out with --drop are printed beside the scores.
    """
    if bulk and server is not None:
        raise typer.BadParameter("--bulk runs without a server: do not set --server or BASIN_URL.")
    require_table_suffix(out)
    source = read_table(table, separator=separator, encoding=encoding)
    options: dict[str, Any] = {
        "id": id_column,
        "drop": drop or (),
        "decimal": decimal,
        "unlabelled": unlabelled,
    }
    if bulk:
        read, scores = _score_locally(source, model, options, last)
    else:
        if len(source.frame) > _MAX_ROWS:
            raise InputError(
                f"{source.name} has {len(source.frame)} rows; at most {_MAX_ROWS} go into one "
                "request. Score them with --bulk."
            )
        with connect(server, key) as client:
            recipe = client.graph_schema(model).require_transactions()
            columns = TransactionColumns.from_recipe(recipe, **options)
            read = read_transactions(source, columns)
            require_kind_of_time(read, recipe)
            rows = _select_rows(read, last)
            # Named by place: ids are printed as the table has them.
            result = client.score_transactions(
                source.frame,
                rows.tolist(),
                drop="*",
                decimal=decimal,
                unlabelled=unlabelled,
                model=model,
            )
        scores = result.to_pandas()
    for note in read.notes:
        tell(note)
    rows = _select_rows(read, last)
    scores["node_id"] = read.ids[rows]
    others = source.frame.drop(columns=id_column or []).iloc[rows]
    write_table(add_columns(scores, others), out, as_json=as_json)


def _select_rows(read: TransactionTable, last: int | None) -> np.ndarray:
    """Return the rows to print: all, or the last ones of the table."""
    return np.arange(len(read))[-(last or len(read)) :]


def _score_locally(
    source: Table, model: str | None, options: dict[str, Any], last: int | None
) -> tuple[TransactionTable, pd.DataFrame]:
    """Score in this process, some thousand transactions at a time."""
    from basin.bulk.tables import find_model
    from models.base import DynamicsParams
    from models.checkpoint import load_checkpoint
    from models.inputs.transactions import RollingHistory, TransactionError, Transactions
    from models.tasks.node_scorer import NodeScorer
    from service.endpoints.anomaly.infer import labelled

    folder, manifest = find_model(model)
    recipe = manifest.transactions
    if recipe is None:
        raise InputError(f"The model {manifest.name} reads graphs, not transactions.")
    columns = TransactionColumns.from_recipe(recipe.model_dump(), **options)
    read = read_transactions(source, columns)
    require_kind_of_time(read, recipe.model_dump())
    network = load_checkpoint(folder).network
    assert isinstance(network, NodeScorer)
    labels = None if read.labels is None else read.labels.astype(np.int8)
    columns_read = read.time, read.source, read.target, read.amount, read.text, read.numbers
    rows = Transactions(*columns_read, labels)
    order = np.argsort(rows.time, kind="stable")
    try:
        rolling = RollingHistory(recipe, rows, order)
    except TransactionError as error:
        raise InputError(f"{source.name}: {error}") from None
    is_wanted = np.zeros(len(rows), bool)
    is_wanted[_select_rows(read, last)] = True
    logits_N = np.empty(len(rows), np.float32)
    for start in with_progress_bar(range(0, len(rows), _AT_A_TIME), "transactions"):
        chosen = order[start : start + _AT_A_TIME]
        to_score = is_wanted[chosen]
        places = rolling.advance(start + len(chosen))[to_score]
        if len(places):
            graph, _, nodes = rolling.history.build_graph(places)
            output = network.infer(network.pack([graph]), [DynamicsParams()])
            logits_N[chosen[to_score]] = output.logits.cpu().numpy()[nodes]
    logits_N = logits_N[is_wanted]
    if not np.isfinite(logits_N).all():
        raise InputError(f"{source.name}: a score is not finite. Check the units of its columns.")
    results = labelled(manifest, logits_N, np.arange(len(logits_N)))
    return read, pd.DataFrame(results).rename(columns={"row": "node_id"})
