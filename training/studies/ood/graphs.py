"""Neighbourhoods of nodes and whole graphs as a client poses them, a network's own and other.

Others are what an operator may meet: rows of another dataset, columns in the wrong order or unit,
and rows whose parts do not belong together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd

from models.checkpoint import Checkpoint
from models.inputs.graph import Graph
from models.inputs.graph_batch import GraphBatch
from models.inputs.molecules import MoleculeError, parse_smiles
from models.tasks.graph_classifier import GraphClassifier
from models.tasks.node_scorer import NodeScorer
from training.datasets import GraphDataset, load_node_dataset, load_tu
from training.datasets.nodes import draw_sample
from training.provenance import find_molecule_table, load_graph_data, load_node_data
from training.studies.ood.rows import SAME_ROWS, RowBatches, RowSet, StudyRows
from training.tasks.anomaly.neighborhoods import REQUEST_FANOUTS, sample_neighborhoods

_AT_A_TIME = 64
_LARGEST = 1000  # nodes; a few proteins of DD would take longer than all others


def load_node_rows(
    checkpoint: Checkpoint, folder: Path | None, most: int, fitted: int
) -> StudyRows:
    network = cast(NodeScorer, checkpoint.network)
    dataset, split = load_node_data(checkpoint.manifest, folder)
    graph, rng = dataset.graph, np.random.default_rng(0)

    def of(
        posed: Graph, nodes: np.ndarray, labels: np.ndarray | None = None, *fanouts: int
    ) -> RowSet:
        batch = network.pack([posed])

        def pose() -> RowBatches:
            parts = map(_as_graph, sample_neighborhoods(batch, nodes, fanouts or REQUEST_FANOUTS))
            while some := list(islice(parts, _AT_A_TIME)):
                sizes = np.array([part.num_nodes for part in some])
                yield network.pack(some), sizes, np.cumsum(sizes) - sizes

        return RowSet(pose, labels)

    train, val = draw_sample(split.train, fitted), draw_sample(split.val, most)
    test = draw_sample(split.test, most)
    mixed, ends = rng.permutation(graph.num_nodes), rng.permutation(graph.edge_index.shape[1])
    rewired = np.stack([graph.edge_index[0], graph.edge_index[1][ends]])
    other = load_node_dataset("amazon" if dataset.name == "yelpchi-single" else "yelpchi", folder)
    foreign = _fitting(other.graph, graph)
    return StudyRows(
        {
            "train": of(graph, train, dataset.labels[train]),
            "val": of(graph, val),
            "test": of(graph, test),
        },
        {
            other.name: of(foreign, draw_sample(np.arange(foreign.num_nodes), most)),
            "columns reversed": of(_with(graph, x=graph.x[:, ::-1]), test),
            "a hundred times the unit": of(_with(graph, x=100 * graph.x), test),
            "features of other nodes": of(_with(graph, x=graph.x[mixed]), test),
            "edges at random": of(_with(graph, edge_index=rewired), test),
            f"{SAME_ROWS}, 4 neighbours": of(graph, test, None, 4),
            f"{SAME_ROWS}, 64 and 32 neighbours": of(graph, test, None, 64, 32),
        },
    )


def _as_graph(part: GraphBatch) -> Graph:
    """A sampled neighbourhood by itself, to be packed with others."""
    ends, types = [], []
    for relation, edges in enumerate(part.relations):
        receivers = np.repeat(np.arange(len(part.x_NF)), edges.degree_N.numpy())
        ends.append(np.stack([edges.indices_E.numpy(), receivers]))
        types.append(np.full(len(receivers), relation))
    return Graph(part.x_NF.numpy(), np.concatenate(ends, 1), np.concatenate(types))


def load_graph_rows(
    checkpoint: Checkpoint, folder: Path | None, most: int, fitted: int
) -> StudyRows:
    network = cast(GraphClassifier, checkpoint.network)
    dataset, split = load_graph_data(checkpoint.manifest, folder)

    def of(graphs: Sequence[Graph], labels: np.ndarray | None = None) -> RowSet:
        def pose() -> RowBatches:
            for start in range(0, len(graphs), _AT_A_TIME):
                part = graphs[start : start + _AT_A_TIME]
                yield (
                    network.pack(part),
                    np.array([graph.num_nodes for graph in part]),
                    np.arange(len(part)),
                )

        return RowSet(pose, labels)

    def those(graphs: np.ndarray) -> list[Graph]:
        return [dataset.graphs[i] for i in graphs]

    train = draw_sample(split.train[dataset.labels[split.train, 0] >= 0], fitted)
    test = those(draw_sample(split.test, most))
    others = _other_molecules if dataset.smiles is not None else _other_proteins
    return StudyRows(
        {
            "train": of(those(train), dataset.labels[train, 0]),
            "val": of(those(draw_sample(split.val, most))),
            "test": of(test),
        },
        {name: of(graphs) for name, graphs in others(dataset, test, folder, most)},
    )


def _other_molecules(
    dataset: GraphDataset, test: Sequence[Graph], folder: Path | None, most: int
) -> Iterator[tuple[str, list[Graph]]]:
    known = set(dataset.smiles or ())
    for name in ("AMES", "BBBP", "HIV", "ESOL_delaney-processed"):
        if name.lower() != dataset.name:
            yield name.partition("_")[0], _of_table(find_molecule_table(name, folder), known, most)
    yield "features of other atoms", _mixed(test)


def _of_table(path: Path, known: set[str], most: int) -> list[Graph]:
    """Molecules at random, each once, without those that are `known`."""
    texts = pd.read_csv(path)["smiles"].astype(str).to_numpy()
    found: dict[str, Graph] = {}
    for text in np.random.default_rng(0).permutation(texts):
        if len(found) == most:
            break
        try:
            molecule = parse_smiles(text)
        except MoleculeError:
            continue
        if molecule.smiles not in known:
            found[molecule.smiles] = molecule.graph
    return list(found.values())


def _other_proteins(
    dataset: GraphDataset, test: Sequence[Graph], folder: Path | None, most: int
) -> Iterator[tuple[str, list[Graph]]]:
    """ENZYMES has the same two columns, among others; DD has amino acids for nodes, and no length.

    What a column lacks is filled with the mean of the training data, a label is taken modulo the
    number of labels there are.
    """
    if dataset.name != "PROTEINS":
        raise ValueError(f"{dataset.name}: no out-of-distribution datasets are defined for it")
    mean = float(np.mean(np.concatenate([graph.x[:, 1] for graph in dataset.graphs])))
    for name in ("ENZYMES", "DD", "MUTAG"):
        graphs = [g for g in load_tu(name, folder).graphs if g.num_nodes <= _LARGEST]
        chosen = [graphs[i] for i in draw_sample(np.arange(len(graphs)), most)]
        yield name, [_as_protein(graph, mean) for graph in chosen]
    yield "ten times the unit", [_with(g, x=g.x * np.array([1, 10], np.float32)) for g in test]
    yield "features of other nodes", _mixed(test)


def _as_protein(graph: Graph, mean: float) -> Graph:
    length = graph.x[:, 1] if graph.x.shape[1] > 1 else np.full(graph.num_nodes, mean)
    x = np.stack([graph.x[:, 0] % 3, length], 1).astype(np.float32)
    return Graph(x, graph.edge_index, None, np.zeros((graph.edge_index.shape[1], 0), np.float32))


def _mixed(graphs: Sequence[Graph]) -> list[Graph]:
    """Each with its rows of features in another order: values stay, their order does not."""
    rng = np.random.default_rng(0)
    return [_with(graph, x=graph.x[rng.permutation(graph.num_nodes)]) for graph in graphs]


def _fitting(other: Graph, own: Graph) -> Graph:
    """The first columns of `other`, as many as `own` has, zeros for those that there are not."""
    width = own.x.shape[1]
    x = np.zeros((other.num_nodes, width), np.float32)
    x[:, : other.x.shape[1]] = other.x[:, :width]
    return Graph(x, other.edge_index)


def _with(graph: Graph, **changed: Any) -> Graph:
    parts = {"x": graph.x, "edge_index": graph.edge_index} | changed
    x = np.ascontiguousarray(parts["x"])
    return Graph(x, parts["edge_index"], graph.edge_type, graph.edge_attr)
