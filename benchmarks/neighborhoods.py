"""Do scores of stored graphs, from the neighbourhood of a node, equal those of the whole graph?

Training nodes of the datasets that the shipped checkpoints were trained on: how many have the same
label by `graph_id` as in the whole graph, how far apart the probabilities are, what a neighbourhood
costs by `hops` and `max_neighbors` of POST /anomaly/score, and how many answers are said to be out
of distribution on each route: the whole graph, a stored graph, a neighbourhood that a client sends,
and transactions. Needs the datasets.

    python -m benchmarks.neighborhoods [cdat-tolokers ...]
"""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from basin_client.tables import read_table
from basin_client.transaction_tables import TransactionColumns, read_transactions

from benchmarks.machine import describe
from models.base import DynamicsParams
from models.checkpoint import Checkpoint, load_checkpoint
from models.inputs.graph_batch import GraphBatch
from models.inputs.transactions import TransactionHistory
from models.manifest import EnergyReference
from models.tasks.node_scorer import NodeScorer
from service.storage.graphs import DynamicGraph, GraphSnapshot, Schema
from training.datasets.payments import simulate_payments
from training.datasets.splits import split_by_time
from training.datasets.transactions import TransactionData
from training.provenance import load_node_data
from training.tasks.anomaly.neighborhoods import sample_neighborhoods

SCORERS = "cdat-tolokers", "et-tolokers", "cdat-yelpchi", "cdat-amazon"
PAYMENTS = "cdat-payments"
KNOBS = ((1, 32), (2, 32), (2, 128), (2, 512), (2, 1_000_000))
NODES, FEWER = 1000, 200  # by the default of the checkpoint, and by others


def score(
    checkpoint: Checkpoint, batch: GraphBatch, reference: EnergyReference | None = None
) -> tuple[np.ndarray, bool]:
    """Probabilities of all nodes, and whether the energy is out of distribution."""
    manifest = checkpoint.manifest
    output = checkpoint.network.infer(batch, [DynamicsParams()])
    energy = sum(float(s.trace[-1].energy_R.sum()) for s in output.solutions) / len(batch.x_NF)
    percentile = (reference or manifest.energy).percentile(energy, batch.log_degree_R[0])
    return manifest.calibration(output.logits.numpy()), manifest.energy.out_of_distribution(
        percentile
    )


def compare(name: str) -> None:
    loaded = load_checkpoint(Path("checkpoints") / name)
    network, manifest = loaded.network, loaded.manifest
    assert isinstance(network, NodeScorer)
    dataset, split = load_node_data(manifest)
    graph, batch = dataset.graph, network.pack([dataset.graph])
    start = time.perf_counter()
    whole, outside = score(loaded, batch)
    print(
        f"{name}: {graph.num_nodes} nodes, {graph.edge_index.shape[1]} edges, features over "
        f"{network.config.hops} hops; the whole graph takes {time.perf_counter() - start:.2f} s "
        f"and is {'' if outside else 'not '}out of distribution"
    )
    count = min(NODES, len(split.train))
    chosen = np.random.default_rng(1).choice(split.train, count, replace=False)
    sent = [score(loaded, part)[1] for part in sample_neighborhoods(batch, chosen)]
    print(f"  neighbourhoods as clients send them: out of distribution {100 * np.mean(sent):.1f} %")
    config = network.config
    schema = Schema(config.features, config.relations, edge_features=config.edge_features)
    whole_graph = GraphSnapshot(graph, list(range(graph.num_nodes)), 0)
    stored, reach = DynamicGraph(schema, whole_graph), manifest.neighborhood
    for knobs in KNOBS:
        is_default = reach is not None and knobs == (reach.hops, reach.max_neighbors)
        nodes = chosen if is_default else chosen[:FEWER]
        print(
            f"  hops {knobs[0]}, {knobs[1]} neighbours{' (default)' if is_default else ''}: ",
            end="",
        )
        report(loaded, whole, nodes, stored, knobs, is_default)


def report(
    loaded: Checkpoint,
    whole: np.ndarray,
    nodes: np.ndarray,
    stored: DynamicGraph,
    knobs: tuple[int, int],
    is_default: bool,
) -> None:
    network, threshold, reach = (
        loaded.network,
        loaded.manifest.threshold,
        loaded.manifest.neighborhood,
    )
    assert isinstance(network, NodeScorer)
    rule, reference = network.neighbor_rule, None if reach is None else reach.energy
    apart, sizes, seconds, flags, equal = [], [], [], 0, 0
    for node in nodes.tolist():
        start = time.perf_counter()
        near = stored.sample_neighborhood([node], *knobs, 0, 1 << 30, 1 << 30, rule)
        probability, outside = score(loaded, network.pack([near.graph]), reference)
        seconds.append(time.perf_counter() - start)
        apart.append(abs(float(probability[0] - whole[node])))
        equal += (probability[0] >= threshold) == (whole[node] >= threshold)
        flags += outside
        sizes.append(near.graph.num_nodes)
    percent = 100 / len(nodes)
    flagged = f"{percent * flags:.1f} %" if is_default else "null"
    print(
        f"{len(nodes)} nodes, labels equal {percent * equal:.1f} %, probabilities "
        f"{np.median(apart):.4f} apart (median), {max(apart):.2f} at most; out of distribution "
        f"{flagged}; {np.median(sizes):.0f} nodes, {1e3 * np.median(seconds):.0f} ms",
        flush=True,
    )


def judge_transactions(name: str) -> None:
    """Rows of the simulated payments that the checkpoint was trained on."""
    loaded = load_checkpoint(Path("checkpoints") / name)
    network, recipe = loaded.network, loaded.manifest.transactions
    assert recipe is not None
    columns = replace(
        TransactionColumns.from_recipe(recipe.model_dump()),
        label="is_fraud",
        id="id",
        drop=("typology",),
    )
    with TemporaryDirectory() as folder:
        table = Path(folder) / "payments.csv"
        simulate_payments(50_000).to_csv(table, index=False)
        data = TransactionData.from_table(read_transactions(read_table(table), columns), columns)
    history, _ = TransactionHistory.from_rows(recipe, data.rows)
    train = split_by_time(data.labels, data.rows.time).train
    chosen = np.random.default_rng(1).choice(train, NODES, replace=False)
    graphs = (history.build_graph(np.array([row]))[0] for row in chosen)
    flags = [score(loaded, network.pack([graph]))[1] for graph in graphs]
    print(
        f"{name}: {NODES} training transactions, out of distribution {100 * np.mean(flags):.1f} %"
    )


def main() -> None:
    print(describe())
    for name in sys.argv[1:] or (*SCORERS, PAYMENTS):
        (judge_transactions if name == PAYMENTS else compare)(name)


if __name__ == "__main__":
    main()
