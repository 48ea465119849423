"""What further columns of nodes give boosted trees, each alone and all but each.

Beside the columns of a node scorer (features, log degree, their means over one and two hops and
deviations over one): log PageRank, core number, triangles, clustering coefficient, deviations over
two and three hops, the difference from the neighbours' mean, means weighed by degree, and the
neighbours' maximum and minimum.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated

import networkx as nx
import numpy as np
import scipy.sparse as sp
import typer
from sklearn.metrics import average_precision_score, roc_auc_score

from models.inputs.features import NodeFeatures
from models.inputs.graph_batch import pack_graphs
from training.cli_options import DataOption
from training.common.hardware import processor_name
from training.datasets import NodeDataset, Split, load_node_dataset, random_splits
from training.tasks.anomaly.stacked_trees import BoostingConfig

_DAMPING, _ROUNDS = 0.85, 50  # of PageRank
_SEEDS = 2


def compute_columns(dataset: NodeDataset) -> dict[str, np.ndarray]:
    """Each kind of column (N, c), on the edges of all relations as one undirected graph."""
    nodes = dataset.graph.num_nodes
    source, target = np.asarray(dataset.graph.edge_index, np.int64)
    ends = np.r_[source, target], np.r_[target, source]
    adjacency = sp.csr_matrix((np.ones(2 * len(source)), ends), (nodes, nodes))
    adjacency.setdiag(0)
    adjacency.eliminate_zeros()
    adjacency.data[:] = 1
    x = dataset.graph.x.astype(np.float64)
    degree = np.asarray(adjacency.sum(1)).ravel()
    mean = sp.diags(1 / np.maximum(degree, 1)) @ adjacency
    rank = np.full(nodes, 1 / nodes)
    for _ in range(_ROUNDS):
        spread = mean.T @ rank + rank[degree == 0].sum() / nodes
        rank = (1 - _DAMPING) / nodes + _DAMPING * spread
    core = nx.core_number(nx.from_scipy_sparse_array(adjacency))
    triangles = np.asarray(adjacency.multiply(adjacency @ adjacency).sum(1)).ravel() / 2
    own = np.c_[x, np.log1p(degree)]
    means, squares = [own], [own**2]
    for _ in range(3):
        means.append(mean @ means[-1])
        squares.append(mean @ squares[-1])
    deviations = [np.sqrt(np.maximum(q - m**2, 0)) for m, q in zip(means, squares, strict=True)]
    weights = np.maximum(adjacency @ degree, 1)[:, None]
    return {
        "PageRank": np.log(rank * nodes)[:, None],
        "core number": np.array([[core[node]] for node in range(nodes)], np.float64),
        "triangles": np.log1p(triangles)[:, None],
        "clustering": (triangles / np.maximum(degree * (degree - 1) / 2, 1))[:, None],
        "deviations, 2 hops": deviations[2],
        "deviations, 3 hops": deviations[3],
        "difference": x - means[1][:, :-1],
        "weighed means": adjacency @ (degree[:, None] * x) / weights,
        **_extremes(adjacency, x),
    }


def _extremes(adjacency: sp.csr_matrix, x: np.ndarray) -> dict[str, np.ndarray]:
    largest, least = np.zeros_like(x), np.zeros_like(x)
    for node in np.flatnonzero(np.diff(adjacency.indptr)):
        near = x[adjacency.indices[adjacency.indptr[node] : adjacency.indptr[node + 1]]]
        largest[node], least[node] = near.max(0), near.min(0)
    return {"maximum": largest, "minimum": least}


def _list_tables(
    base: np.ndarray, more: Mapping[str, np.ndarray]
) -> Iterator[tuple[str, np.ndarray]]:
    yield "as they are", base
    for name, columns in more.items():
        yield f"with {name}", np.c_[base, columns]
    both = "deviations, 2 hops", "deviations, 3 hops"
    yield "with deviations, 2 and 3 hops", np.c_[base, more[both[0]], more[both[1]]]
    yield "with all", np.c_[base, *more.values()]
    for name in more:
        rest = [columns for other, columns in more.items() if other != name]
        yield f"with all but {name}", np.c_[base, *rest]
    rest = [columns for other, columns in more.items() if other not in both]
    yield "with all but deviations", np.c_[base, *rest]


def _measure(table: np.ndarray, labels: np.ndarray, splits: tuple[Split, ...]) -> str:
    figures = []
    for split in splits:
        logits = np.zeros(len(labels))
        for seed in range(_SEEDS):
            model = BoostingConfig().build(len(split.train), seed)
            model.fit(table[split.train], labels[split.train])
            logits += model.decision_function(table)
        figures.append(
            [
                roc_auc_score(labels[split.val], logits[split.val]),
                roc_auc_score(labels[split.test], logits[split.test]),
                average_precision_score(labels[split.test], logits[split.test]),
            ]
        )
    means, stds = 100 * np.mean(figures, 0), 100 * np.std(figures, 0)
    return " | ".join(f"{m:.2f} ± {s:.2f}" for m, s in zip(means, stds, strict=True))


def node_columns(
    dataset: Annotated[str, typer.Option(help="tolokers, amazon or yelpchi")] = "tolokers",
    splits: Annotated[int, typer.Option(help="how many, official or random with 40 %")] = 5,
    data: DataOption = None,
) -> None:
    """Print what further columns of nodes give boosted trees, each alone and all but each."""
    source = load_node_dataset(dataset, data)
    chosen = (source.official or random_splits(source, 0.4, splits))[:splits]
    features = NodeFeatures(len(source.features), hops=2, bins=16, hop_bins=4)
    batch = pack_graphs([source.graph], num_relations=len(source.relations))
    base = features.compute_table(batch).numpy()
    typer.echo(f"{source.name}, {len(chosen)} splits, {_SEEDS} seeds; {processor_name()}\n")
    typer.echo("| columns | number | ROC-AUC, validation | ROC-AUC, test | PR-AUC, test |")
    typer.echo("|---|---|---|---|---|")
    for name, table in _list_tables(base, compute_columns(source)):
        figures = _measure(table, source.labels, chosen)
        typer.echo(f"| {name} | {table.shape[1]} | {figures} |")
