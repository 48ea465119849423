"""TUDataset files (Morris et al. 2020) as published, in their zip."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import numpy as np
import pandas as pd

from models.inputs.graph import Column, Graph
from models.tasks.graph_classifier import ClassificationTask
from training.datasets.graphs import GraphDataset
from training.datasets.sources import data_folder

TU_DATASETS = ("MUTAG", "PROTEINS", "ENZYMES", "NCI1", "Mutagenicity", "DD")
_HOME = "https://www.chrsmrrs.com/graphkerneldatasets"


def load_tu(name: str, folder: Path | None = None) -> GraphDataset:
    """A dataset from `folder`/tu/NAME.zip or `folder`/NAME.zip, downloaded if it is in neither.

    Raises:
        ValueError: for an unknown name, or a file that does not fit the others.
    """
    if name not in TU_DATASETS:
        raise ValueError(f"unknown dataset {name!r}; known are {', '.join(TU_DATASETS)}")
    folder = folder or data_folder()
    for path in (folder / "tu" / f"{name}.zip", folder / f"{name}.zip"):
        if path.is_file():
            return read_tu(path, name)
    from torch_geometric.data import download_url

    return read_tu(Path(download_url(f"{_HOME}/{name}.zip", str(folder / "tu"))), name)


def read_tu(path: Path, name: str) -> GraphDataset:
    """The graphs of one zip: labels become categories, attributes numbers."""
    with zipfile.ZipFile(path) as archive:
        inside = {Path(entry).name: entry for entry in archive.namelist()}

        def table(part: str) -> np.ndarray | None:
            entry = inside.get(f"{name}_{part}.txt")
            if entry is None:
                return None
            raw = io.BytesIO(archive.read(entry))
            return pd.read_csv(raw, header=None, skipinitialspace=True).to_numpy(np.float64)

        edges, graph_of, graph_labels = table("A"), table("graph_indicator"), table("graph_labels")
        nodes = _columns(table("node_labels"), table("node_attributes"))
        links = _columns(table("edge_labels"), table("edge_attributes"))
    if edges is None or graph_of is None or graph_labels is None:
        raise ValueError(f"{path}: not a TUDataset zip of {name}")
    row = graph_of[:, 0].astype(np.int64) - 1
    ends = edges.T.astype(np.int64) - 1
    x, node_features = nodes or (np.zeros((len(row), 1)), (Column("node", ("node",)),))
    attr, edge_features = links or (np.zeros((ends.shape[1], 0)), ())
    total = len(graph_labels)
    if (np.diff(row) < 0).any() or (row[ends[0]] != row[ends[1]]).any() or row[-1] != total - 1:
        raise ValueError(f"{path}: nodes, edges and graphs do not fit each other")
    order = np.argsort(row[ends[0]], kind="stable")
    first = np.r_[0, np.cumsum(np.bincount(row, minlength=total))]
    first_edge = np.r_[0, np.cumsum(np.bincount(row[ends[0]], minlength=total))]
    graphs = []
    for graph in range(total):
        own = order[first_edge[graph] : first_edge[graph + 1]]
        graphs.append(
            Graph(
                x[first[graph] : first[graph + 1]].astype(np.float32),
                ends[:, own] - first[graph],
                None,
                attr[own].astype(np.float32),
            )
        )
    values, labels = np.unique(graph_labels[:, 0], return_inverse=True)
    task = ClassificationTask(name="class", labels=tuple(f"{value:g}" for value in values))
    return GraphDataset(name, tuple(graphs), labels[:, None], (task,), node_features, edge_features)


def _columns(
    labels: np.ndarray | None, attributes: np.ndarray | None
) -> tuple[np.ndarray, tuple[Column, ...]] | None:
    parts: list[np.ndarray] = []
    columns: list[Column] = []
    for i, column in enumerate(() if labels is None else labels.T):
        values, index = np.unique(column, return_inverse=True)
        parts.append(index)
        columns.append(Column(f"label{i}", tuple(f"{value:g}" for value in values)))
    for i, column in enumerate(() if attributes is None else attributes.T):
        parts.append(column)
        columns.append(Column(f"attribute{i}"))
    return (np.stack(parts, 1), tuple(columns)) if parts else None
