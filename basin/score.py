"""`basin score`: score the nodes of a graph in two tables."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import pandas as pd
import typer
from basin_client import Client, Dynamics, Graph, InputError
from basin_client.command_line import (
    Decimal,
    Drop,
    Encoding,
    Features,
    IdColumn,
    Separator,
    SourceColumn,
    TargetColumn,
    TypeColumn,
)
from basin_client.graph_tables import ColumnOptions, find_targets, graph_from_tables, other_columns
from basin_client.tables import Table, read_table

from basin.console import (
    AsJson,
    Key,
    Model,
    Out,
    Params,
    Server,
    connect,
    console,
    parse_dynamics,
    parse_params,
    tell,
    with_progress_bar,
)
from basin.io import add_columns, require_table_suffix, write_table

if TYPE_CHECKING:
    from models.base import DynamicsParams


def score(
    nodes: Annotated[
        Path, typer.Argument(help="Table with an id and one column per feature; - is stdin.")
    ],
    edges: Annotated[
        Path, typer.Argument(help="Table with source, target and optionally type; - is stdin.")
    ],
    targets: Annotated[
        Path | None, typer.Option(help="Table with the ids of the nodes to print; else all.")
    ] = None,
    id_column: IdColumn = "id",
    source_column: SourceColumn = "source",
    target_column: TargetColumn = "target",
    type_column: TypeColumn = "type",
    features: Features = None,
    drop: Drop = None,
    separator: Separator = None,
    encoding: Encoding = None,
    decimal: Decimal = ".",
    label: Annotated[
        str | None,
        typer.Option(
            help="Column of the nodes with labels that are known, 1 for fraud, blank if not known, "
            "for a model that reads labels of neighbours."
        ),
    ] = None,
    model: Model = None,
    params: Params = None,
    server: Server = None,
    key: Key = None,
    out: Out = None,
    as_json: AsJson = False,
    bulk: Annotated[
        Path | None,
        typer.Option(
            help="Score the graph in parts, without a server, and store the progress in this "
            "folder: the same command resumes it. Tables may be folders of Parquet files."
        ),
    ] = None,
    parts: Annotated[
        int | None,
        typer.Option(help="With --bulk: number of parts; default one per million edges."),
    ] = None,
    ray: Annotated[
        str | None,
        typer.Option(
            help="With --bulk: a Ray cluster that shares the folder: local, auto or host:port."
        ),
    ] = None,
) -> None:
    """Score how suspicious each node of a graph is.

    Columns are matched with the features of the model by name. Columns that are left out with
    --drop are printed beside the scores.
    """
    if bulk is not None and server is not None:
        raise typer.BadParameter("--bulk runs without a server: do not set --server or BASIN_URL.")
    if bulk is None and (parts is not None or ray is not None):
        raise typer.BadParameter("--parts and --ray need --bulk.")
    if str(nodes) == str(edges) == "-":
        raise typer.BadParameter("Only one of the two tables can come from standard input.")
    require_table_suffix(out)
    options = ColumnOptions(
        id_column, source_column, target_column, type_column, features, drop or (), decimal
    )
    target_ids = None
    if targets is not None:
        target_table = read_table(targets, separator=separator, encoding=encoding)
        target_table.require_columns({id_column: "--id-column"})
        target_ids = target_table.column(id_column)
    if bulk is not None:
        from basin.bulk import score_tables

        table, convergence = score_tables(
            nodes,
            edges,
            bulk,
            targets=target_ids,
            model=model,
            params=_to_params(parse_params(params)),
            options=options,
            label=label,
            separator=separator,
            encoding=encoding,
            parts=parts,
            ray=ray,
            show_progress=lambda stages: with_progress_bar(stages, "stages"),
            tell=tell,
        )
    else:
        node_table = read_table(nodes, separator=separator, encoding=encoding)
        edge_table = read_table(edges, separator=separator, encoding=encoding)
        with connect(server, key) as client:
            table, convergence = _score_tables(
                *(client, node_table, edge_table, label, target_ids, options, model),
                parse_dynamics(params),
            )
    write_table(table, out, as_json=as_json)
    _print_convergence(convergence)


def _score_tables(
    client: Client,
    nodes: Table,
    edges: Table,
    label: str | None,
    targets: pd.Series | None,
    options: ColumnOptions,
    model: str | None,
    dynamics: Dynamics | None,
) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Return the scores beside the columns that the model does not read, and the convergence."""
    read = graph_from_tables(nodes, edges, client.graph_schema(model), options, label)
    for note in read.notes:
        tell(note)
    rows = np.arange(len(read.ids))
    if targets is not None:
        rows = find_targets(read.ids, targets, "targets", options.id)
    graph = Graph.from_table_graph(read)
    names = None if targets is None else read.ids.iloc[rows].tolist()
    scores = client.score(graph, names, model=model, dynamics=dynamics)
    others = other_columns(nodes, read, options).iloc[rows]
    return add_columns(scores.to_pandas(), others), scores.convergence.raw


def _to_params(values: dict[str, Any]) -> DynamicsParams:
    """Check parameters of the dynamics as the server does.

    Raises:
        InputError: one of them is unknown or out of range.
    """
    from pydantic import ValidationError

    from service.endpoints.common.schemas import Dynamics as DynamicsSchema

    try:
        return DynamicsSchema.model_validate(values).to_params()
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise InputError(f"--set {where}: {first['msg']}.") from None


def _print_convergence(convergence: dict[str, Any]) -> None:
    names = ("energy_drop", "steps", "residual", "stop_reason", "energy_percentile")
    text = "  ".join(f"{name} {convergence.get(name)}" for name in names)
    console.print(text, highlight=False, style="dim")
