"""A graph of two tables, nodes and edges, whose columns are matched by name.

The one place that says what ids, features, relations and labels in a table mean, for training,
the command line, bulk runs and the client:

- An id is text, exactly as written. Whole numbers are written without a decimal point.
- A column is a feature by its name. With a schema every feature of the model must be there, and
  every other column must be one of `drop`.
- A relation is a name. With a schema it must be one of the model's.
- A blank value is an error, except a blank label: that node is not labelled.

Rows are counted from 1, without the header. Needs pandas and pyarrow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from basin_client.columns import read_labels, read_numbers, to_ids
from basin_client.errors import InputError
from basin_client.schema import GraphSchema, match_names, require_relation
from basin_client.tables import Table, list_names, require_distinct


@dataclass(frozen=True)
class ColumnOptions:
    """Which column is what; the same options on every command line.

    Attributes:
        features: columns to take as features; without a schema all that are nothing else if None.
        edge_features: columns of the edges to take as features; of a model if there is a schema.
        drop: columns of either table to leave out; `*` is every column that is nothing else.
        decimal: the decimal point of numbers in text.
    """

    id: str = "id"
    source: str = "source"
    target: str = "target"
    type: str = "type"
    features: Sequence[str] | None = None
    drop: Sequence[str] = ()
    decimal: str = "."
    # Left out of repr: `basin score --bulk` hashes it to recognise its run, and there the model
    # names the features of edges.
    edge_features: Sequence[str] = field(default=(), repr=False)


@dataclass(frozen=True)
class TableGraph:
    """A graph of N nodes and E edges.

    Attributes:
        ids: of the nodes, (N,): integers if the column holds integers, else text.
        x: float32 (N, F), in the order of `features`.
        edge_index: int64 (2, E), rows of the sources and targets.
        edge_type: int64 (E,), places in `relations`; None if edges have no type.
        labels: int64 (N,), 1, 0, or -1 where blank; None if there is no label.
        edge_attr: float32 (E, P), in the order of `edge_features`; None if there are none.
        notes: what was left out, one line each, to be told to the user.
    """

    ids: pd.Series
    x: np.ndarray
    edge_index: np.ndarray
    edge_type: np.ndarray | None
    features: tuple[str, ...]
    relations: tuple[str, ...]
    labels: np.ndarray | None = None
    edge_features: tuple[str, ...] = ()
    edge_attr: np.ndarray | None = None
    notes: tuple[str, ...] = ()


def graph_from_tables(
    nodes: Table,
    edges: Table,
    schema: GraphSchema | None = None,
    options: ColumnOptions | None = None,
    label: str | None = None,
) -> TableGraph:
    """Build the graph of two tables.

    Args:
        schema: features and relations of a model; None in training, where the table defines them.
        label: column of the label, 1 for fraud.

    Raises:
        InputError: naming the table, the row and the column.
    """
    options = options or ColumnOptions()
    labelled = {} if label is None else {label: "--label"}
    nodes.require_columns({options.id: "--id-column", **labelled})
    edges.require_columns({options.source: "--source-column", options.target: "--target-column"})
    dropped = _require_known_drops(nodes, edges, options)
    notes = list[str]()
    features = _select_features(nodes, schema, options, [options.id, *labelled], notes)
    edge_features = _select_edge_features(edges, schema, options, notes)
    if not len(nodes.frame):
        raise InputError(f"{nodes.name}: no rows. A graph needs at least one node.")
    index = _index_ids(nodes.column(options.id), nodes.name, options.id)
    ids = pd.Series(index)
    edge_index = np.stack(
        [
            _find_rows(index, edges.column(column), edges.name, column, nodes.name)
            for column in (options.source, options.target)
        ]
    )
    relations, edge_type = ("edge",) if schema is None else schema.relations, None
    has_types = options.type in edges.frame and options.type not in dropped
    if has_types and (len(edges.frame) or schema is not None):
        relations, edge_type = _read_types(edges, options.type, schema)
    elif schema is not None and len(edges.frame):
        schema.require_types(edges.name)
    elif schema is not None and len(relations) > 1:
        edge_type = np.zeros(0, np.int64)  # of no edges
    labels = None if label is None else read_labels(nodes, label)
    x = _read_features(nodes, features, options, ids)
    attr = None
    if edge_features:
        attr = np.empty((0, len(edge_features)), np.float32)
        if len(edges.frame):
            attr = _read_features(edges, edge_features, options)
    return TableGraph(
        *(ids, x, edge_index, edge_type, features, relations, labels, edge_features, attr),
        notes=tuple(notes),
    )


def other_columns(nodes: Table, graph: TableGraph, options: ColumnOptions) -> pd.DataFrame:
    """Return the columns of the nodes that are neither id nor feature."""
    read = {options.id, *graph.features}
    columns = {}
    for name in nodes.frame.columns:
        if name not in read:
            column = nodes.column(name)
            if pd.api.types.is_object_dtype(column):  # for outputs with one type a column
                column = column.map(str, na_action="ignore")
            columns[name] = column
    return pd.DataFrame(columns, index=nodes.frame.index)


def find_targets(graph_ids: pd.Series, targets: pd.Series, name: str, column: str) -> np.ndarray:
    """Return the rows of the nodes in a column of ids, each of which must occur once.

    Raises:
        InputError: a blank, repeated or unknown id.
    """
    if not len(targets):
        raise InputError(f"{name}: no rows. Give at least one node.")
    _index_ids(targets, name, column)
    return _find_rows(pd.Index(graph_ids), targets, name, column, "the graph")


def _require_known_drops(nodes: Table, edges: Table, options: ColumnOptions) -> set[str]:
    known = {*nodes.frame.columns, *edges.frame.columns, "*"}
    if strange := [name for name in options.drop if name not in known]:
        raise InputError(
            f"--drop {strange[0]}: neither {nodes.name} nor {edges.name} has this column. Columns: "
            f"{list_names([*nodes.frame.columns, *edges.frame.columns])}."
        )
    return set(options.drop)


def _is_index(name: object) -> bool:
    """Whether a column is the index that pandas writes without a name."""
    return str(name).startswith("Unnamed: ")


def _select_features(
    nodes: Table,
    schema: GraphSchema | None,
    options: ColumnOptions,
    reserved: Sequence[str],
    notes: list[str],
) -> tuple[str, ...]:
    """Return the names of the feature columns, in the order of the model."""
    require_distinct(list(nodes.frame.columns), nodes.name)
    columns = [str(name) for name in nodes.frame.columns if name not in reserved]
    if index := [
        name for name in columns if _is_index(name) and name not in (options.features or ())
    ]:
        notes.append(f"{nodes.name}: column {index[0]!r} has no name, so it is left out.")
        columns = [name for name in columns if name not in index]
    if options.features is not None:
        if missing := [name for name in options.features if name not in columns]:
            raise InputError(
                f"{nodes.name}: no column {missing[0]!r}, which --features names. Columns: "
                f"{list_names(columns)}."
            )
        columns = [name for name in columns if name in options.features]
    everything = "*" in options.drop
    columns = [name for name in columns if name not in options.drop]
    if schema is None:
        names = options.features or columns
        return tuple(name for name in names if name in columns)
    match_names(columns, schema, nodes.name, ignore_extra=everything)
    if everything and (extra := [name for name in columns if name not in schema.features]):
        notes.append(f"{nodes.name}: not read: {list_names(extra)}.")
    return schema.features


def _select_edge_features(
    edges: Table, schema: GraphSchema | None, options: ColumnOptions, notes: list[str]
) -> tuple[str, ...]:
    """Return the names of the feature columns of edges, in the order of the model."""
    require_distinct(list(edges.frame.columns), edges.name)
    names = tuple(options.edge_features) if schema is None else schema.edge_features
    if schema is None:
        edges.require_columns(dict.fromkeys(names, "--edge-features"))
    elif not len(edges.frame):
        pass  # no edge lacks them
    elif missing := [name for name in names if name not in edges.frame.columns]:
        raise InputError(
            f"{edges.name}: no column {missing[0]!r}, which {schema.model} reads of edges. "
            f"Columns: {list_names(edges.frame.columns)}. Add the column, or choose another model."
        )
    ends = {options.source, options.target, options.type}
    if reserved := [name for name in names if name in {*ends, "source", "target", "type"}]:
        raise InputError(
            f"{edges.name}: column {reserved[0]!r} cannot be a feature of edges: source, target "
            "and type say what an edge is. Rename the column."
        )
    read = {*ends, *names, *options.drop}
    extra = [name for name in edges.frame.columns if name not in read]
    if index := [name for name in extra if _is_index(name)]:
        notes.append(f"{edges.name}: column {index[0]!r} has no name, so it is left out.")
        extra = [name for name in extra if name not in index]
    if extra and "*" not in options.drop:
        raise InputError(
            f"{edges.name}: column {extra[0]!r} is not read: edges have "
            f"{list_names([options.source, options.target, options.type, *names])}. "
            + ("Name numbers with --edge-features NAME. " if schema is None else "")
            + "Leave such columns out with --drop NAME (drop= in Python); * is all of them: "
            f"{list_names(extra)}."
        )
    if extra:
        notes.append(f"{edges.name}: not read: {list_names(extra)}.")
    return names


def _index_ids(ids: pd.Series, name: str, column: str) -> pd.Index:
    """Return an index of unique ids, as integers if the column holds integers, else as text."""
    is_integer = pd.api.types.is_integer_dtype(ids) and not ids.isna().any()
    index = pd.Index(ids.to_numpy() if is_integer else to_ids(ids, name, column))
    if not index.is_unique:
        again = index.duplicated()
        raise InputError(
            f"{name}: row {again.argmax() + 1}, column {column!r}: the id {index[again][0]} has "
            f"occurred before ({again.sum()} such rows). Ids must be unique."
        )
    return index


def _find_rows(index: pd.Index, ids: pd.Series, name: str, column: str, nodes: str) -> np.ndarray:
    is_integer = pd.api.types.is_integer_dtype(index)
    # Of one type only: int64 and uint64 together would be compared as floats.
    if is_integer and ids.dtype == index.dtype:
        rows = index.get_indexer(pd.Index(ids.to_numpy()))
    else:
        text = to_ids(ids, name, column)
        keys = index.astype(str) if is_integer else index
        rows = keys.get_indexer(pd.Index(text))
    if (unknown := rows < 0).any():
        row = int(unknown.argmax())
        raise InputError(
            f"{name}: row {row + 1}, column {column!r}: {nodes} has no node {ids.iloc[row]!r} "
            f"({unknown.sum()} such rows). Add the node, or remove the row."
        )
    return rows.astype(np.int64)


def _read_types(
    edges: Table, column: str, schema: GraphSchema | None
) -> tuple[tuple[str, ...], np.ndarray]:
    """Return the names of the relations, and the place of each edge's relation among them."""
    codes, names = pd.factorize(to_ids(edges.column(column), edges.name, column))
    if schema is None:
        relations = tuple(sorted(map(str, names), key=_natural_order))
    else:
        relations = schema.relations
        for code, name in enumerate(names):
            if name not in relations:
                row = int((codes == code).argmax()) + 1
                require_relation(str(name), schema, f"{edges.name}: row {row}, column {column!r}")
    places = np.array([relations.index(str(name)) for name in names], np.int64)
    return relations, places[codes] if len(codes) else np.zeros(0, np.int64)


def _natural_order(name: str) -> tuple[bool, int, str]:
    """Sort whole numbers by value, before all other names."""
    is_number = name.isascii() and name.isdigit()
    return not is_number, int(name) if is_number else 0, name


def _read_features(
    table: Table, features: Sequence[str], options: ColumnOptions, ids: pd.Series | None = None
) -> np.ndarray:
    """Return columns of numbers; `ids` of the rows are for messages."""
    x = np.empty((len(table.frame), len(features)), np.float32)
    for place, feature in enumerate(features):
        values = read_numbers(table.column(feature), table.name, options.decimal)
        with np.errstate(over="ignore"):
            x[:, place] = values
        if (wrong := ~np.isfinite(x[:, place])).any():
            row = int(wrong.argmax())
            what, do = "is infinite, or too large for float32", "Change it"
            if np.isnan(values[row]):
                what, do = "is missing", "Fill it in"
            id_of_row = "" if ids is None else f" (id {ids.iloc[row]})"
            raise InputError(
                f"{table.name}: row {row + 1}{id_of_row}, column {feature!r}: the value "
                f"{what} ({wrong.sum()} in this column). {do}, remove the row, or --drop the "
                "column."
            )
    return x
