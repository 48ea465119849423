"""Loaders: benchmark files as published, PyTorch Geometric's downloads, and your own tables."""

from __future__ import annotations

import io
import os
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import scipy.io
import scipy.sparse
from basin_client.errors import InputError
from basin_client.graph_tables import ColumnOptions, graph_from_tables
from basin_client.tables import Table, read_table
from basin_client.transaction_tables import read_times

from models.inputs.graph import Graph
from training.datasets.dgl_file import read_dgl_graph
from training.datasets.nodes import NodeDataset, Split
from training.datasets.payments import build_account_graph
from training.datasets.splits import choose_split, read_part_column, split_by_time

_CARE_GNN = {
    "amazon": ("net_upu", "net_usu", "net_uvu"),
    "yelpchi": ("net_rur", "net_rtr", "net_rsr"),
}
_AMAZON_UNLABELLED = 3305
"""CARE-GNN's Amazon: the nodes before this index carry no label, and are written as honest."""
_AMAZON_SINGLE_UNLABELLED = 2295
"""The same nodes in the file of one relation, which leaves out those without an edge: no fraud is
before this index, and one of ten nodes after it."""


def data_folder() -> Path:
    """`BASIN_DATA`, or `../shared/data` beside the repository, or `data/` in it."""
    if "BASIN_DATA" in os.environ:
        return Path(os.environ["BASIN_DATA"])
    beside = Path(__file__).parents[3] / "shared" / "data"
    return beside if beside.is_dir() else Path(__file__).parents[2] / "data"


def load_node_dataset(name: str, folder: Path | None = None) -> NodeDataset:
    """A dataset by name: one of `DATASETS`, or `pyg:NAME` (see `load_pyg`).

    Looks for the file in `folder` (default: `data_folder()`); tolokers is downloaded through
    PyTorch Geometric when it is not there.

    Raises:
        FileNotFoundError: saying which file to put where.
        ValueError: for an unknown name.
    """
    folder = folder or data_folder()
    if name.startswith("pyg:"):
        return load_pyg(name.removeprefix("pyg:"), folder)
    if name not in NODE_DATASETS:
        raise ValueError(
            f"unknown dataset {name!r}; known are {', '.join(NODE_DATASETS)} and pyg:NAME"
        )
    return NODE_DATASETS[name](folder)


def _find(folder: Path, *names: str) -> Path:
    for name in names:
        for path in (folder / "fraud" / name, folder / name):
            if path.is_file():
                return path
    raise FileNotFoundError(f"put {' or '.join(names)} into {folder}, or set BASIN_DATA")


def load_tolokers(folder: Path) -> NodeDataset:
    """Tolokers with its ten official splits (Platonov et al., ICLR 2023)."""
    try:
        path = _find(folder, "tolokers.npz")
    except FileNotFoundError:
        return load_pyg("Tolokers", folder)
    with np.load(path, allow_pickle=False) as raw:
        masks = [raw[f"{part}_masks"] for part in ("train", "val", "test")]
        x, edges, labels = raw["node_features"], raw["edges"].T, raw["node_labels"]
    return _tolokers(x, edges, labels, masks)


def _tolokers(x: Any, edges: Any, labels: Any, masks: list[np.ndarray]) -> NodeDataset:
    splits = tuple(
        Split(f"official-{i}", *(np.flatnonzero(mask[i]) for mask in masks))
        for i in range(len(masks[0]))
    )
    names = tuple(f"f{i}" for i in range(x.shape[1]))
    graph = Graph(np.ascontiguousarray(x, dtype=np.float32), np.asarray(edges, dtype=np.int64))
    return NodeDataset("tolokers", graph, labels.astype(np.int64), names, official=splits)


def load_amazon(folder: Path) -> NodeDataset:
    """Amazon reviewers: CARE-GNN's file, or the single-relation one (U-P-U)."""
    return load_mat(_find(folder, "Amazon.mat", "Amazon.zip"), "amazon")


def load_yelpchi(folder: Path) -> NodeDataset:
    """YelpChi reviews: CARE-GNN's file, or the single-relation one (R-U-R)."""
    return load_mat(_find(folder, "YelpChi.mat", "YelpChi.zip"), "yelpchi")


def load_mat(path: Path, name: str) -> NodeDataset:
    """A CARE-GNN .mat (net_*, features, label) or one of a single relation (Network, Label, ...).

    A .zip is read for the .mat inside. In Amazon the first 3,305 nodes carry no label and get -1,
    as Tang et al. 2022 do, and so do the 2,295 of them that the single-relation file has. The
    single-relation files are other graphs than the benchmark (isolated nodes dropped) and are
    named apart so that no figure is mistaken.

    Raises:
        ValueError: the file has neither layout, or a fraud among Amazon's nodes without a label, so
            that it is another file.
    """
    raw = path.read_bytes()
    if path.suffix == ".zip":
        with zipfile.ZipFile(io.BytesIO(raw)) as archive:
            (inside,) = (n for n in archive.namelist() if n.endswith(".mat"))
            raw = archive.read(inside)
    mat = scipy.io.loadmat(io.BytesIO(raw))
    relations = tuple(key for key in _CARE_GNN[name] if key in mat)
    if relations:
        x, labels = mat["features"], mat["label"].ravel().astype(np.int64)
        unlabelled = _AMAZON_UNLABELLED
        note = "CARE-GNN benchmark file, three relations"
        full_name = name
    elif "Network" in mat:
        x, labels = mat["Attributes"], mat["Label"].ravel().astype(np.int64)
        relations = ("Network",)
        full_name = f"{name}-single"
        unlabelled = _AMAZON_SINGLE_UNLABELLED
        note = "one relation only, isolated nodes dropped; not the papers' benchmark graph"
    else:
        raise ValueError(f"{path}: neither a CARE-GNN file nor a single-relation one")
    if name == "amazon":
        if (labels[:unlabelled] == 1).any():
            raise ValueError(
                f"{path}: of Amazon's nodes the first {unlabelled} carry no label, and here one of "
                "them is a fraud: this is another file, or another order of its nodes"
            )
        labels[:unlabelled] = -1
        note += f"; the first {unlabelled:,} nodes carry no label"
    edges, types = [], []
    for i, key in enumerate(relations):
        source, target = scipy.sparse.csr_matrix(mat[key]).nonzero()
        edges.append(np.stack([source, target]))
        types.append(np.full(len(source), i))
    x = x.toarray() if scipy.sparse.issparse(x) else np.asarray(x)
    graph = Graph(
        x.astype(np.float32), np.concatenate(edges, 1).astype(np.int64), np.concatenate(types)
    )
    names = tuple(f"f{i}" for i in range(x.shape[1]))
    return NodeDataset(full_name, graph, labels, names, relations, note=note)


def load_tfinance(folder: Path) -> NodeDataset:
    """T-Finance (Tang et al., ICML 2022), the file of DGL as its authors publish it."""
    return load_dgl(_find(folder, "tfinance", "tfinance.zip"), "tfinance")


def load_tsocial(folder: Path) -> NodeDataset:
    """T-Social (Tang et al., ICML 2022), the file of DGL as its authors publish it."""
    return load_dgl(_find(folder, "tsocial", "tsocial.zip"), "tsocial")


def load_dgl(path: Path, name: str) -> NodeDataset:
    """A graph that DGL has saved, its nodes with `feature` (N, P) and `label`, (N,) or one-hot.

    Raises:
        ValueError: it is no such file, or its nodes have neither.
    """
    read = read_dgl_graph(path)
    arrays = read.node_arrays
    if missing := sorted({"feature", "label"} - arrays.keys()):
        known = ", ".join(sorted(arrays)) or "nothing"
        raise ValueError(f"{path}: nodes have no {missing[0]!r}, but {known}")
    labels = arrays["label"].squeeze()
    labels = (labels.argmax(1) if labels.ndim == 2 else labels).astype(np.int64)
    labels[(labels != 0) & (labels != 1)] = -1
    x, relations = arrays["feature"].astype(np.float32), tuple(read.edges)
    types = np.repeat(np.arange(len(relations)), [read.edges[r].shape[1] for r in relations])
    edges = np.concatenate([read.edges[r] for r in relations], 1)
    names = tuple(f"f{i}" for i in range(x.shape[1]))
    relations = ("edge",) if len(relations) == 1 else relations
    return NodeDataset(name, Graph(x, edges, types), labels, names, relations)


def load_pyg(name: str, folder: Path) -> NodeDataset:
    """A binary node-classification dataset that PyTorch Geometric downloads.

    `Tolokers`, `Minesweeper` or `Questions` (HeterophilousGraphDataset, official splits), or
    `EllipticBitcoin` (EllipticBitcoinDataset, unlabelled nodes -1, official train
    and test; validation is a fifth of the training nodes).
    """
    from torch_geometric import datasets as pyg

    root = str(folder / "pyg")
    if name == "EllipticBitcoin":
        data = pyg.EllipticBitcoinDataset(f"{root}/elliptic")[0]
    elif name in ("Tolokers", "Minesweeper", "Questions"):
        data = pyg.HeterophilousGraphDataset(root, name)[0]
    else:
        raise ValueError(f"no loader for PyTorch Geometric's {name!r}")
    return node_dataset_from_pyg(data, name.lower())


def node_dataset_from_pyg(data: Any, name: str) -> NodeDataset:
    """A `torch_geometric.data.Data` with x, edge_index, binary y and perhaps masks."""
    labels = data.y.numpy().astype(np.int64)
    labels[(labels != 0) & (labels != 1)] = -1
    splits = _official(data, labels)
    x = data.x.numpy().astype(np.float32)
    names = tuple(f"f{i}" for i in range(x.shape[1]))
    graph = Graph(x, data.edge_index.numpy())
    return NodeDataset(name, graph, labels, names, official=splits)


def _official(data: Any, labels: np.ndarray) -> tuple[Split, ...]:
    """The splits that the masks tell; unlabelled nodes left out."""
    found = {part: getattr(data, f"{part}_mask", None) for part in ("train", "val", "test")}
    masks = {
        part: mask.numpy().reshape(len(labels), -1) & (labels >= 0)[:, None]
        for part, mask in found.items()
        if mask is not None
    }
    if "train" not in masks or "test" not in masks:
        return ()
    if "val" not in masks:  # a fifth of each label among the training nodes
        drawn = np.zeros_like(masks["train"])
        for column, train in zip(drawn.T, masks["train"].T, strict=True):
            for label in (0, 1):
                nodes = np.random.default_rng(0).permutation(
                    np.flatnonzero(train & (labels == label))
                )
                column[nodes[: len(nodes) // 5]] = True
        masks["train"], masks["val"] = masks["train"] & ~drawn, drawn
    return tuple(
        Split(f"official-{i}", *(np.flatnonzero(masks[p][:, i]) for p in ("train", "val", "test")))
        for i in range(masks["train"].shape[1])
    )


def load_node_tables(
    nodes: Path,
    edges: Path,
    label: str,
    options: ColumnOptions | None = None,
    *,
    split: str | None = None,
    separator: str | None = None,
    encoding: str | None = None,
) -> NodeDataset:
    """Read your own data: one row per node and one per edge, see `basin_client.graph_tables`.

    Args:
        nodes: table with an id, the label (1, 0, blank for unknown) and numeric features.
        edges: table with the ids of source and target, a type if there are several relations, and
            features if the options name some.
        options: which column is what.
        split: `time:NAME`, `column:NAME`, `group:NAME` or a file, see `training.datasets.splits`;
            the column is no feature unless the options name it.
        separator, encoding: of CSV, see `basin_client.tables.read_table`.

    Raises:
        InputError: naming the file, the row and the column that cannot be used.
        ValueError: `split` leaves a part empty, or does not say what is in which.
    """
    node_table = read_table(nodes, separator=separator, encoding=encoding)
    edge_table = read_table(edges, separator=separator, encoding=encoding)
    kind, _, column = (split or "").partition(":")
    options = options or ColumnOptions()
    described = node_table
    named = {*(options.features or ()), *options.drop}
    if column in node_table.frame.columns and column not in named:
        described = Table(node_table.frame.drop(columns=column), node_table.name)
    read = graph_from_tables(described, edge_table, options=options, label=label)
    assert read.labels is not None
    if not read.features:
        raise InputError(f"{nodes}: no column is left as a feature. A node needs at least one.")
    ids, labels, official = read.ids.to_numpy(), read.labels, tuple[Split, ...]()
    notes = list(read.notes)
    if kind == "time":
        node_table.require_columns({column: "--split"})
        times, _, time_notes = read_times(node_table, column, options.decimal)
        notes += [
            *time_notes,
            "Split by time: what came later is in the graph that describes the nodes to train on, "
            "as it is in all of them.",
        ]
        official = (split_by_time(labels, times, f"time:{column}"),)
    elif split is not None:
        read_column = partial(read_part_column, node_table)
        official = (choose_split(labels, ids, split, read_column, lambda row: f"id {ids[row]}"),)
    return NodeDataset(
        nodes.name.partition(".")[0],
        Graph(read.x, read.edge_index, read.edge_type, read.edge_attr),
        read.labels,
        read.features,
        read.relations,
        note=" ".join(notes),
        official=official,
        edge_features=read.edge_features,
        ids=ids,
    )


NODE_DATASETS: dict[str, Callable[[Path], NodeDataset]] = {
    "tolokers": load_tolokers,
    "amazon": load_amazon,
    "yelpchi": load_yelpchi,
    "tfinance": load_tfinance,
    "tsocial": load_tsocial,
    "payments-accounts": lambda _: build_account_graph(),
    "payments-accounts-plain": lambda _: build_account_graph(with_amounts=False),
}
