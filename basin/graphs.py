"""Graphs that a server stores, their transactions and alerts."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
import typer
from basin_client import InputError
from basin_client.columns import to_ids
from basin_client.command_line import Decimal, Drop, Encoding, Separator
from basin_client.tables import Table, read_table
from basin_client.transaction_tables import read_known_labels

from basin.console import (
    AsJson,
    Key,
    Out,
    Server,
    connect,
    require_server,
    tell,
    with_progress_bar,
)
from basin.io import require_table_suffix, write_table
from basin.transactions import Unlabelled

_AT_A_TIME = 1000  # rows of one request; at the default limits 1,953 fit, with two accounts each
_COLUMNS = ("id", "model", "num_nodes", "num_edges", "revision")

graphs = typer.Typer(no_args_is_help=True, help=__doc__)
GraphId = Annotated[str, typer.Argument(help="Id of a stored graph.")]
Nodes = Annotated[
    Path | None, typer.Option(help="Table with `id` and one column per feature; - is stdin.")
]
Edges = Annotated[
    Path | None,
    typer.Option(
        help="Table with `source`, `target`, optionally `type`, and a column per feature of edges."
    ),
]


@graphs.command("list")
def list_graphs(
    server: Server = None, key: Key = None, out: Out = None, as_json: AsJson = False
) -> None:
    """List the stored graphs."""
    require_table_suffix(out)
    with connect(require_server(server), key) as client:
        rows = [{name: graph.get(name) for name in _COLUMNS} for graph in client.graphs()]
    write_table(pd.DataFrame(rows, columns=list(_COLUMNS)), out, as_json=as_json)


@graphs.command()
def put(
    graph: GraphId,
    model: Annotated[str, typer.Option(help="Model that scores the graph.")],
    nodes: Nodes = None,
    edges: Edges = None,
    threshold: Annotated[
        float | None,
        typer.Option(help="Probability from which on a transaction or node raises an alert."),
    ] = None,
    daily_budget: Annotated[
        float | None,
        typer.Option(help="Of transactions: alerts a day, about; in place of --threshold."),
    ] = None,
    keep: Annotated[
        float | None,
        typer.Option(help="Of transactions: those older than the newest by more are forgotten."),
    ] = None,
    webhook: Annotated[str | None, typer.Option(help="URL to which each alert is sent.")] = None,
    alerts: Annotated[
        bool,
        typer.Option(
            "--alerts",
            help="Of nodes: score them now and after each change, and raise alerts; implied by "
            "--threshold, --webhook, --hops and --max-neighbors.",
        ),
    ] = False,
    hops: Annotated[
        int | None, typer.Option(help="Of nodes: reach of a score for alerts, in edges.")
    ] = None,
    max_neighbors: Annotated[
        int | None, typer.Option(help="Of nodes: neighbors of each that are followed for alerts.")
    ] = None,
    label: Annotated[
        str | None,
        typer.Option(
            help="Of nodes: column with labels that are known, 1 for fraud, blank if not known, "
            "for a model that reads labels of neighbors; `basin graphs label` adds more."
        ),
    ] = None,
    drop: Drop = None,
    separator: Separator = None,
    encoding: Encoding = None,
    server: Server = None,
    key: Key = None,
) -> None:
    """Store a graph, or replace one: of nodes and edges, or, without tables, of transactions, which
    is empty at first."""
    if (nodes is None) != (edges is None):
        raise typer.BadParameter("--nodes and --edges go together.")
    if nodes is not None and (daily_budget is not None or keep is not None):
        raise typer.BadParameter(
            "--daily-budget and --keep are of transactions: leave out --nodes."
        )
    if nodes is None and (alerts or hops is not None or max_neighbors is not None):
        raise typer.BadParameter(
            "--alerts, --hops and --max-neighbors are of nodes and edges: give --nodes and --edges."
        )
    with connect(require_server(server), key) as client:
        if nodes is None or edges is None:
            if drop:
                raise typer.BadParameter("--drop is of tables: give it with `basin graphs add`.")
            if label is not None:
                raise typer.BadParameter("--label is of nodes and edges: give --nodes and --edges.")
            stored = client.store_transaction_graph(
                graph,
                model=model,
                threshold=threshold,
                daily_budget=daily_budget,
                keep=keep,
                webhook=webhook,
            )
        else:
            tables = [
                read_table(path, separator=separator, encoding=encoding).frame
                for path in (nodes, edges)
            ]
            given = {"threshold": threshold, "webhook": webhook}
            given |= {"hops": hops, "max_neighbors": max_neighbors}
            options: Any = {name: value for name, value in given.items() if value is not None}
            stored = client.store_graph(
                graph,
                tuple(tables),
                drop=drop or (),
                label=label,
                model=model,
                alerts=options if options or alerts else None,
            )
    _tell_size(stored)


@graphs.command()
def patch(
    graph: GraphId,
    nodes: Nodes = None,
    edges: Edges = None,
    delete_node: Annotated[
        list[str] | None, typer.Option(help="Id of a node; may be given several times.")
    ] = None,
    separator: Separator = None,
    encoding: Encoding = None,
    server: Server = None,
    key: Key = None,
) -> None:
    """Add or replace nodes of a graph, add edges, delete nodes: atomically, up to 10,000."""

    def read(path: Path | None) -> pd.DataFrame | tuple[()]:
        if path is None:
            return ()
        return read_table(path, separator=separator, encoding=encoding).frame

    if nodes is None and edges is None and not delete_node:
        raise typer.BadParameter("Give --nodes, --edges or --delete-node.")
    with connect(require_server(server), key) as client:
        changes = {"nodes": read(nodes), "edges": read(edges), "delete_nodes": delete_node or ()}
        _tell_size(client.change_graph(graph, **changes))


@graphs.command()
def add(
    graph: GraphId,
    table: Annotated[Path, typer.Argument(help="Table of transactions; - is stdin.")],
    id_column: Annotated[str, typer.Option("--id", help="Column of the id.")] = "id",
    score: Annotated[
        bool, typer.Option(help="Score them too; otherwise they are the past of those to come.")
    ] = True,
    unlabelled: Unlabelled = None,
    drop: Drop = None,
    separator: Separator = None,
    encoding: Encoding = None,
    decimal: Decimal = ".",
    server: Server = None,
    key: Key = None,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Store transactions in a graph and score them, in order of time. Doing it twice has the effect
    of once."""
    require_table_suffix(out)
    source = read_table(table, separator=separator, encoding=encoding)
    options: dict[str, Any] = {
        "id": id_column,
        "drop": drop or (),
        "decimal": decimal,
        "unlabelled": unlabelled,
    }
    with connect(require_server(server), key) as client:
        order = _order_by_time(source, client.graph(graph), options)
        scores, added = list[pd.DataFrame](), 0
        starts = range(0, len(order), _AT_A_TIME)
        for start in with_progress_bar(starts, "transactions"):
            rows = source.frame.iloc[order[start : start + _AT_A_TIME]]
            if score:
                result = client.add_transactions(graph, rows, **options)
                scores.append(result.to_pandas())
                added += result.raw["added"]
            else:
                added += client.store_transactions(graph, rows, **options)["added"]
    tell(f"{added} of {len(order)} transactions are new.")
    if scores:
        frame = pd.concat(scores, ignore_index=True)
        frame["rank"] = frame["score"].rank(ascending=False, method="first").astype(int)
        write_table(frame, out, as_json=as_json)


@graphs.command()
def label(
    graph: GraphId,
    table: Annotated[Path, typer.Argument(help="Table of ids and labels; - is stdin.")],
    label_column: Annotated[
        str, typer.Option("--label", help="Column of the label: 1 fraud, 0 none, blank unknown.")
    ] = "label",
    id_column: Annotated[str, typer.Option("--id", help="Column of the id.")] = "id",
    unlabelled: Unlabelled = None,
    separator: Separator = None,
    encoding: Encoding = None,
    server: Server = None,
    key: Key = None,
) -> None:
    """Tell what stored transactions or nodes turned out to be. It counts for transactions to come,
    and from now on for the neighbors of nodes."""
    source = read_table(table, separator=separator, encoding=encoding)
    source.require_columns({id_column: "--id", label_column: "--label"})
    ids = to_ids(source.column(id_column), source.name, id_column)
    labels = read_known_labels(source, label_column, unlabelled)
    known = {id: one for id, one in zip(ids, labels.tolist(), strict=True) if one >= 0}
    if len(known) < int((labels >= 0).sum()):
        raise InputError(f"{source.name}: an id in {id_column!r} has two labels. Give one.")
    items, changed = list(known.items()), 0
    with connect(require_server(server), key) as client:
        for start in range(0, len(items), _AT_A_TIME):
            part = dict(items[start : start + _AT_A_TIME])
            changed += client.add_labels(graph, part)["changed"]
    tell(f"{changed} of {len(items)} labels are new.")


@graphs.command("score")
def score_nodes(
    graph: GraphId,
    targets: Annotated[list[str], typer.Argument(help="Ids of nodes or transactions.")],
    model: Annotated[str | None, typer.Option(help="Model; by default that of the graph.")] = None,
    server: Server = None,
    key: Key = None,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Score nodes of a stored graph from their neighbourhood, or stored transactions."""
    require_table_suffix(out)
    with connect(require_server(server), key) as client:
        stored = client.graph(graph)
        scores = client.score_nodes(graph, targets, model=model or stored.get("model"))
    write_table(scores.to_pandas(), out, as_json=as_json)


@graphs.command()
def watch(
    graph: GraphId,
    after: Annotated[
        str | None, typer.Option(help="`event_id` of an alert: print those that follow it.")
    ] = None,
    count: Annotated[
        int | None, typer.Option(help="Stop after this many; else go on until interrupted.", min=1)
    ] = None,
    server: Server = None,
    key: Key = None,
) -> None:
    """Print the alerts of a graph, one JSON object a line, and those to come."""
    with connect(require_server(server), key) as client:
        for alert in islice(client.watch_alerts(graph, after=after), count):
            print(json.dumps(alert, ensure_ascii=False), flush=True)


@graphs.command()
def delete(graph: GraphId, server: Server = None, key: Key = None) -> None:
    """Delete a stored graph, with its alerts."""
    with connect(require_server(server), key) as client:
        client.forget_graph(graph)


def _order_by_time(source: Table, stored: dict[str, Any], options: dict[str, Any]) -> list[int]:
    """Return the rows in order of time, so that none is late in a later request."""
    from basin_client.schema import GraphSchema
    from basin_client.transaction_tables import (
        TransactionColumns,
        read_transactions,
        require_kind_of_time,
    )

    recipe = GraphSchema.from_model(stored).require_transactions()
    read = read_transactions(source, TransactionColumns.from_recipe(recipe, **options))
    require_kind_of_time(read, recipe)
    if not len(read):
        raise InputError(f"{source.name}: there are no rows.")
    for note in read.notes:
        tell(note)
    return read.time.argsort(kind="stable").tolist()


def _tell_size(stored: dict[str, Any]) -> None:
    tell(f"{stored['id']}: {stored['num_nodes']} nodes, revision {stored['revision']}.")
