"""`basin score-transactions`: score the rows of a table of transactions, or their accounts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
import typer
from basin_client import Client, InputError
from basin_client.command_line import Decimal, Drop, Encoding, Separator
from basin_client.schema import scores_accounts
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
Time = Annotated[str | None, typer.Option(help="Column of the time; else as in training.")]
Source = Annotated[
    str | None, typer.Option("--source", help="Column of the payer; else as in training.")
]
Target = Annotated[
    str | None, typer.Option("--target", help="Column of the payee; else as in training.")
]
Amount = Annotated[str | None, typer.Option(help="Column of the amount; else as in training.")]
_MAX_ROWS = 20_000  # of one request
_AT_A_TIME = {"transactions": 2048, "accounts": 512}  # rows


def score_transactions(
    table: Annotated[Path, typer.Argument(help="Table with the columns of the model; - is stdin.")],
    model: Model = None,
    id_column: Annotated[
        str | None,
        typer.Option("--id", help="Column of the id; else `id`, or rows are numbered from 1."),
    ] = None,
    time: Time = None,
    source_column: Source = None,
    target_column: Target = None,
    amount: Amount = None,
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
    """Score transactions, each by its own row and by the rows before it; or accounts, each by the
    rows up to its last one, where the model scores these.

    A table should reach back by two of the longest windows of the model. Columns that are left
    out with --drop are printed beside the scores.
    """
    if bulk and server is not None:
        raise typer.BadParameter("--bulk runs without a server: do not set --server or BASIN_URL.")
    require_table_suffix(out)
    source = read_table(table, separator=separator, encoding=encoding)
    if id_column is None and "id" in source.frame.columns:
        id_column = "id"
    named = {"time": time, "source": source_column, "target": target_column, "amount": amount}
    options: dict[str, Any] = {
        "id": id_column,
        "drop": drop or (),
        "decimal": decimal,
        "unlabelled": unlabelled,
    }
    if bulk:
        recipe, source, read, scores = _score_locally(source, named, model, options, last)
    else:
        if len(source.frame) > _MAX_ROWS:
            raise InputError(
                f"{source.name} has {len(source.frame)} rows; at most {_MAX_ROWS} go into one "
                "request. Score them with --bulk."
            )
        with connect(server, key) as client:
            model = model or _choose_model(client)
            recipe = client.graph_schema(model).require_transactions()
            source = _rename_columns(source, named, recipe)
            columns = TransactionColumns.from_recipe(recipe, **options)
            read = read_transactions(source, columns)
            require_kind_of_time(read, recipe)
            rows = _select_targets(recipe, read, last)
            # Named by place: ids are printed as the table has them.
            result = client.score_transactions(
                source.frame,
                None if rows is None else rows.tolist(),
                drop="*",
                decimal=decimal,
                unlabelled=unlabelled,
                model=model,
            )
        scores = result.to_pandas()
    for note in read.notes:
        tell(note)
    rows = _select_targets(recipe, read, last)
    if rows is not None:
        scores["node_id"] = read.ids[rows]
        scores = add_columns(scores, source.frame.drop(columns=id_column or []).iloc[rows])
    write_table(scores, out, as_json=as_json)


def _choose_model(client: Client) -> str | None:
    """Return the only model that reads transactions, where the default one reads graphs.

    Raises:
        InputError: there is none, or there are several.
    """
    if client.graph_schema().transactions is not None:
        return None
    names = [model["name"] for model in client.models() if model["route"] == "/anomaly/score"]
    names = [name for name in names if client.graph_schema(name).transactions is not None]
    if len(names) != 1:
        some = f"Name one with --model: {', '.join(names)}." if names else "Train one."
        raise InputError(f"{len(names)} models of the server read transactions. {some}")
    tell(f"model: {names[0]}")
    return names[0]


def _rename_columns(
    table: Table, named: Mapping[str, str | None], recipe: Mapping[str, Any]
) -> Table:
    """Give the columns that options name the names that they had in training.

    Raises:
        InputError: a named column is not there.
    """
    renamed = {column: str(recipe[what]) for what, column in named.items() if column is not None}
    table.require_columns({column: f"--{what}" for what, column in named.items() if column})
    return Table(table.frame.rename(columns=renamed), table.name)


def _select_targets(
    recipe: Mapping[str, Any], read: TransactionTable, last: int | None
) -> np.ndarray | None:
    """Return the rows to print: all, or the last ones of the table; None for all accounts.

    Raises:
        InputError: `last` of a model that scores accounts.
    """
    if not scores_accounts(recipe):
        return np.arange(len(read))[-(last or len(read)) :]
    if last is not None:
        raise InputError("--last is of transactions, and this model scores accounts: leave it out.")
    return None


def _score_locally(
    source: Table,
    named: Mapping[str, str | None],
    model: str | None,
    options: dict[str, Any],
    last: int | None,
) -> tuple[Mapping[str, Any], Table, TransactionTable, pd.DataFrame]:
    """Score in this process, some thousand transactions at a time; return the columns of the model
    too, and the table with these."""
    from basin.bulk.tables import find_model
    from models.base import DynamicsParams
    from models.checkpoint import load_checkpoint
    from models.inputs.transactions import (
        RollingHistory,
        TransactionError,
        Transactions,
        find_last_states,
    )
    from models.tasks.node_scorer import NodeScorer
    from service.endpoints.anomaly.infer import labelled

    folder, manifest = find_model(model)
    recipe = manifest.transactions
    if recipe is None:
        raise InputError(
            f"The model {manifest.name} reads graphs, not transactions. Name another with --model."
        )
    fields = recipe.model_dump()
    source = _rename_columns(source, named, fields)
    read = read_transactions(source, TransactionColumns.from_recipe(fields, **options))
    require_kind_of_time(read, fields)
    wanted = _select_targets(fields, read, last)
    network = load_checkpoint(folder).network
    assert isinstance(network, NodeScorer)
    labels = None if read.labels is None else read.labels.astype(np.int8)
    rows = Transactions(
        read.time, read.source, read.target, read.amount, read.text, read.numbers, labels
    )
    order = np.argsort(rows.time, kind="stable")
    try:
        rolling = RollingHistory(recipe, rows, order)
    except TransactionError as error:
        raise InputError(f"{source.name}: {error}") from None
    if wanted is None:
        states = find_last_states(rows, order, recipe)
        names, numbers = list(states), np.array(list(states.values()))
    else:
        rank = np.empty(len(order), np.int64)
        rank[order] = np.arange(len(order))
        names, numbers = wanted, rank[wanted]
    per_row, step = rolling.history.targets_per_row, _AT_A_TIME[recipe.scores]
    by_time = np.argsort(numbers)
    place_T = numbers[by_time] // per_row
    logits_T = np.empty(len(numbers), np.float32)
    for start in with_progress_bar(range(0, len(rows), step), "transactions"):
        [first, *_] = rolling.advance(min(start + step, len(rows)))
        chosen = by_time[slice(*np.searchsorted(place_T, [start, start + step]))]
        if len(chosen):
            graph, _, nodes = rolling.history.build_graph(
                numbers[chosen] + per_row * (first - start)
            )
            output = network.infer(network.pack([graph]), [DynamicsParams()])
            logits_T[chosen] = output.logits.cpu().numpy()[nodes]
    if not np.isfinite(logits_T).all():
        raise InputError(f"{source.name}: a score is not finite. Check the units of its columns.")
    results = pd.DataFrame(labelled(manifest, logits_T, np.arange(len(logits_T))))
    scores = results.rename(columns={"row": "node_id"})
    return fields, source, read, scores.assign(node_id=names)
