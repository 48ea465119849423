"""Graphs as arrays, from tables, pandas, NetworkX or PyTorch Geometric.

Tables, frames and NetworkX graphs have names, which are matched with those of the model by the
rules of `basin_client.graph_tables`. Arrays without names are taken in the model's order.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from basin_client.errors import InputError, require_extra
from basin_client.schema import GraphSchema

if TYPE_CHECKING:
    from basin_client.graph_tables import TableGraph

NodeId = str | int
_MAX_EXACT_FLOAT = 2.0**53


@dataclass(frozen=True)
class Graph:
    """A graph of N nodes and E edges as arrays.

    Args:
        x: node features, (N, F).
        edge_index: sources and targets as rows of x, (2, E).
        edge_type: relation of each edge, (E,), as a place in `relation_names`, or in the model's
            relations without them; for models with several relations.
        edge_attr: edge features, (E, F').
        node_ids: id of each node; its row if None.
        feature_names: names of the columns of x; the model's order if None.
        relation_names: names of the relations, of which edge_type has the places.
        edge_feature_names: names of the columns of edge_attr; the model's order if None.
        labels: 1 fraud, 0 none, -1 unknown, (N,), for models that read labels of neighbours; None
            to score without.
    """

    x: np.ndarray
    edge_index: np.ndarray
    edge_type: np.ndarray | None = None
    edge_attr: np.ndarray | None = None
    node_ids: Sequence[NodeId] | None = None
    feature_names: Sequence[str] | None = None
    relation_names: Sequence[str] | None = None
    edge_feature_names: Sequence[str] | None = None
    labels: np.ndarray | None = None

    @classmethod
    def from_table_graph(cls, graph: TableGraph) -> Graph:
        """Keep the names of a graph of tables, so that the server checks them.

        A single relation has been checked here, and is not sent.
        """
        has_types = graph.edge_type is not None and len(graph.relations) > 1
        return cls(
            graph.x,
            graph.edge_index,
            graph.edge_type if has_types else None,
            graph.edge_attr,
            node_ids=graph.ids.tolist(),
            feature_names=graph.features,
            relation_names=graph.relations if has_types else None,
            edge_feature_names=graph.edge_features or None,
            labels=graph.labels,
        )

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the arrays by name, with the types that the server reads.

        Raises:
            InputError: `edge_index`, `edge_type` or `labels` are not whole numbers.
        """
        edge_index = _to_integers(self.edge_index, "edge_index")
        if edge_index.size and (edge_index.ndim != 2 or len(edge_index) != 2):
            raise InputError(f"edge_index has the shape {edge_index.shape}; it must be (2, E).")
        arrays = {
            "x": np.asarray(self.x, np.float32),
            "edge_index": edge_index.reshape(2, -1),
        }
        if self.edge_type is not None:
            arrays["edge_type"] = _to_integers(self.edge_type, "edge_type")
        if self.edge_attr is not None:
            arrays["edge_attr"] = np.asarray(self.edge_attr, np.float32)
        if self.labels is not None:
            arrays["labels"] = _to_integers(self.labels, "labels")
        return arrays

    def names(self) -> dict[str, list[str]]:
        """Return the names of columns and relations, if any, as fields of a request."""
        names = {"feature_names": self.feature_names, "relation_names": self.relation_names}
        names["edge_feature_names"] = self.edge_feature_names
        return {field: list(map(str, value)) for field, value in names.items() if value is not None}

    def find_rows(self, nodes: Sequence[Any]) -> list[int]:
        """Return the rows of nodes, given by id (by row if the graph has no ids).

        Raises:
            InputError: there is no such node.
        """
        if self.node_ids is None:
            return [self._check_row(node) for node in nodes]
        rows = {str(node_id): row for row, node_id in enumerate(self.node_ids)}
        places = []
        for node in nodes:
            node_id = to_node_id(node)
            if str(node_id) not in rows:
                raise InputError(f"The graph has no node {node_id!r}, which is one of the targets.")
            places.append(rows[str(node_id)])
        return places

    def _check_row(self, node: Any) -> int:
        if isinstance(node, bool | np.bool_) or not isinstance(node, int | np.integer):
            raise InputError(
                f"The target {node!r} is no row: the graph has no ids, so give rows as integers, "
                "or set node_ids."
            )
        if not 0 <= node < len(self.x):
            raise InputError(f"The target {node} is no row: there are {len(self.x)} nodes.")
        return int(node)


def needs_schema(data: Any) -> bool:
    """Whether a graph has names that are matched with those of a model."""
    if isinstance(data, Graph):
        return False
    return _is_networkx(data) or isinstance(data, tuple)


def to_graph(
    data: Any,
    features: Sequence[str] | None = None,
    *,
    schema: GraphSchema | None = None,
    drop: str | Sequence[str] = (),
    label: str | None = None,
) -> Graph:
    """Convert a graph of another library.

    Args:
        data: a `Graph`; a `torch_geometric.data.Data`; a NetworkX graph whose nodes have the
            features as attributes (or all of them in `x`) and whose edges may have `type`, and the
            features that edges have; or a tuple of nodes and edges, each a pandas frame or the path
            of a table: nodes with the column `id` and the features, edges with `source`, `target`,
            optionally `type`, and their features.
        features: columns or attributes to take as features; all others if None.
        schema: what the model reads, by name; without it `features` are taken in their order.
        drop: columns or attributes to leave out; `*` is all that the model does not read.
        label: column of tables with the labels that are known, 1 for fraud, blank if not known.

    Raises:
        TypeError: `data` is none of these.
        InputError: the graph does not fit the model, or not itself, or `label` is of no tables.
    """
    drop = [drop] if isinstance(drop, str) else drop
    if label is not None and not isinstance(data, tuple):
        raise InputError("label is a column of tables. Other graphs take labels in a Graph.")
    if isinstance(data, Graph):
        return data
    if isinstance(data, tuple) and len(data) == 2:
        nodes, edges = _to_table(data[0], "nodes"), _to_table(data[1], "edges")
        return _from_tables(nodes, edges, features, schema, drop, label)
    if _is_networkx(data):
        return _from_networkx(data, features, schema, drop)
    if hasattr(data, "edge_index") and hasattr(data, "x"):
        return _from_geometric(data)
    raise TypeError(
        f"Unsupported graph type {type(data).__name__}: pass a basin_client.Graph, a PyTorch "
        "Geometric Data, a NetworkX graph, or a tuple (nodes, edges) of pandas frames or paths."
    )


def concatenate(graphs: Sequence[Graph]) -> dict[str, np.ndarray]:
    """Join graphs into one with offset edges, as PyTorch Geometric batches them.

    `ptr` has the first row of each graph, and the number of rows.

    Raises:
        InputError: a graph has labels, which are of nodes and read by `score` alone.
    """
    if any(graph.labels is not None for graph in graphs):
        raise InputError("Graphs to classify have no labels of nodes. Leave out `labels`.")
    parts = [graph.arrays() for graph in graphs]
    ptr = np.cumsum([0, *(len(part["x"]) for part in parts)]).astype(np.int64)
    edges = [part["edge_index"] + start for part, start in zip(parts, ptr, strict=False)]
    arrays = {
        "x": np.concatenate([part["x"] for part in parts]),
        "edge_index": np.concatenate(edges, 1),
        "ptr": ptr,
    }
    if all("edge_attr" in part for part in parts):
        arrays["edge_attr"] = np.concatenate([part["edge_attr"] for part in parts])
    return arrays


def to_node_id(node: Any) -> NodeId:
    """Convert an id to a type of JSON: integers stay integers, all else becomes text.

    Raises:
        InputError: it is missing, true or false, or a float that is no whole number below 2^53.
    """
    if isinstance(node, str):
        return node
    if node is None or str(node) in ("nan", "NaT", "<NA>"):
        raise InputError("A node id is missing (None or NaN).")
    if isinstance(node, bool | np.bool_):
        raise InputError(f"The node id {node} is true or false: ids are text or integers.")
    if isinstance(node, float | np.floating):
        # pandas turns the integers of a column with gaps into floats.
        if float(node).is_integer() and abs(node) < _MAX_EXACT_FLOAT:
            return int(node)
        raise InputError(f"The node id {node} is no whole number below 2^53: use text or integers.")
    if isinstance(node, int | np.integer):
        return int(node)
    return node.decode() if isinstance(node, bytes) else str(node)


def _is_networkx(data: Any) -> bool:
    return hasattr(data, "adjacency") and hasattr(data, "nodes")


def _has_vectors(graph: Any) -> bool:
    """Whether the nodes have all features in one array `x`, and not a feature that is called x."""
    return any(np.ndim(attributes.get("x", 0)) for _, attributes in graph.nodes(data=True))


def _to_integers(values: Any, name: str) -> np.ndarray:
    array = np.asarray(values)
    if array.dtype.kind not in "iu" and array.size:
        raise InputError(f"{name} has the type {array.dtype}; it must hold integers.")
    return array.astype(np.int64)


def _from_geometric(data: Any) -> Graph:
    def get_array(name: str) -> np.ndarray | None:
        tensor = getattr(data, name, None)
        return None if tensor is None else np.asarray(tensor.detach().cpu())

    x = get_array("x")
    edge_index = get_array("edge_index")
    if x is None or edge_index is None:
        raise TypeError("The torch_geometric Data needs both x and edge_index.")
    return Graph(
        x,
        edge_index,
        get_array("edge_type"),
        get_array("edge_attr"),
        feature_names=getattr(data, "feature_names", None),
        relation_names=getattr(data, "relation_names", None),
        edge_feature_names=getattr(data, "edge_feature_names", None),
    )


# The columns that a NetworkX graph becomes have names that no attribute has.
_NODE, _SOURCE, _TARGET = "(node)", "(source)", "(target)"


def _from_networkx(
    graph: Any, features: Sequence[str] | None, schema: GraphSchema | None, drop: Sequence[str]
) -> Graph:
    with require_extra("pandas"):
        import pandas as pd

        from basin_client.graph_tables import ColumnOptions, graph_from_tables
        from basin_client.tables import Table

    if not len(graph):
        raise InputError("The graph has no nodes. It needs at least one.")
    known = {name for _, attributes in graph.nodes(data=True) for name in attributes}
    known |= {name for _, _, attributes in graph.edges(data=True) for name in attributes}
    if strange := [name for name in drop if name not in {*known, "*"}]:
        raise InputError(
            f"drop names {strange[0]!r}, which no node or edge of the graph has as an attribute."
        )
    if schema is not None and schema.edge_features and not graph.is_directed():
        raise InputError(
            f"{schema.model} reads features of edges by their direction, and the graph has none. "
            "Pass a networkx.DiGraph."
        )
    nodes = [(to_node_id(node), attributes) for node, attributes in graph.nodes(data=True)]
    edges = [
        {_SOURCE: str(to_node_id(a)), _TARGET: str(to_node_id(b)), **attributes}
        for a, b, attributes in graph.edges(data=True)
    ]
    if schema is not None and not schema.undirected and not graph.is_directed():
        edges += [{**edge, _SOURCE: edge[_TARGET], _TARGET: edge[_SOURCE]} for edge in edges]
    node_ids = [node for node, _ in nodes]
    vectors = None
    if schema is None or _has_vectors(graph):
        # Features in one array have no names.
        vectors = _stack_vectors(nodes, features)
        schema = schema and replace(schema, features=())  # only edges have names
        numbers = () if schema is None else schema.edge_features
        rows = [{_NODE: str(node)} for node in node_ids]
        edges = [
            {name: edge[name] for name in edge if name[0] == "(" or name in ("type", *numbers)}
            for edge in edges
        ]
    else:
        written = {"score", "probability"} - set(schema.features)  # by `Scores.onto`
        rows = [
            {_NODE: str(node), **{name: v for name, v in attributes.items() if name not in written}}
            for node, attributes in nodes
        ]
    taken = features if vectors is None else None
    edge_frame = pd.DataFrame(edges, dtype=object)
    node_frame = pd.DataFrame(rows, dtype=object)
    if not edges:
        edge_frame = pd.DataFrame({_SOURCE: [], _TARGET: []}, dtype=str)
    # Attributes that have been left out already are no columns.
    left = {*node_frame.columns, *edge_frame.columns, "*"}
    drop = [name for name in drop if name in left]
    columns = ColumnOptions(_NODE, _SOURCE, _TARGET, "type", taken, drop)
    read = graph_from_tables(
        Table(node_frame, "nodes of the graph"),
        Table(edge_frame, "edges of the graph"),
        schema,
        columns,
    )
    return Graph(
        read.x if vectors is None else vectors,
        read.edge_index,
        read.edge_type,
        node_ids=node_ids,
        feature_names=read.features if vectors is None else None,
        relation_names=None if read.edge_type is None else read.relations,
        edge_attr=read.edge_attr,
        edge_feature_names=read.edge_features or None,
    )


def _stack_vectors(
    nodes: Sequence[tuple[NodeId, Mapping[str, Any]]], features: Sequence[str] | None
) -> np.ndarray:
    """Return the attribute `x` of all nodes, or their attributes `features`."""
    try:
        rows = [
            attributes["x"] if features is None else [attributes[name] for name in features]
            for _, attributes in nodes
        ]
    except KeyError as error:
        raise InputError(f"A node of the graph has no attribute {error}.") from None
    try:
        return np.array(rows, np.float32)
    except ValueError:
        raise InputError(
            "The features of the nodes are not all numbers, as many for each node."
        ) from None


def _to_table(data: Any, name: str) -> Any:
    with require_extra("pandas"):
        from basin_client.tables import Table, read_table

    if isinstance(data, str | os.PathLike):
        return read_table(data)
    if isinstance(data, Table):
        return data
    if not hasattr(data, "columns"):
        raise TypeError(f"The {name} are {type(data).__name__}: pass a pandas frame or a path.")
    return Table(data.reset_index(drop=True), name)


def _from_tables(
    nodes: Any,
    edges: Any,
    features: Sequence[str] | None,
    schema: GraphSchema | None,
    drop: Sequence[str],
    label: str | None,
) -> Graph:
    from basin_client.graph_tables import ColumnOptions, graph_from_tables

    options = ColumnOptions(features=features, drop=tuple(drop))
    return Graph.from_table_graph(graph_from_tables(nodes, edges, schema, options, label))
