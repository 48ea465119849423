"""Do scores of stored graphs, from the neighbourhood of a node, equal those of the whole graph?

Nodes by chance of the datasets that the shipped checkpoints were trained on: how many have the same
label, how far apart the probabilities are, how many are said to be out of distribution, and what a
neighbourhood costs, by `hops` and `max_neighbors` of POST /anomaly/score. Needs the datasets.

    python -m benchmarks.neighborhoods [cdat-tolokers ...]
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np

from benchmarks.machine import describe
from models.base import DynamicsParams
from models.checkpoint import Manifest, load_checkpoint
from models.inputs.graph import Graph
from models.tasks.node_scorer import NodeScorer
from service.storage.graphs import DynamicGraph, GraphSnapshot, Schema
from training.datasets.sources import load_node_dataset

DATASETS = {
    "cdat-tolokers": "tolokers",
    "et-tolokers": "tolokers",
    "cdat-yelpchi": "yelpchi",
    "cdat-amazon": "amazon",
}
KNOBS = ((1, 32), (2, 32), (2, 128), (2, 1_000_000), (3, 32))
NODES = 100


def score(network: NodeScorer, manifest: Manifest, graph: Graph) -> tuple[np.ndarray, bool]:
    """Probabilities of all nodes, and whether the energy is out of distribution."""
    output = network.infer(network.pack([graph]), [DynamicsParams()])
    energy = sum(float(s.trace[-1].energy_R.sum()) for s in output.solutions) / graph.num_nodes
    assert manifest.energy is not None
    outside = manifest.energy.out_of_distribution(manifest.energy.percentile(energy))
    return manifest.calibration(output.logits.numpy()), outside


def compare(name: str, dataset: str) -> None:
    loaded = load_checkpoint(Path("checkpoints") / name)
    network, manifest = loaded.network, loaded.manifest
    assert isinstance(network, NodeScorer)
    graph = load_node_dataset(dataset).graph
    whole, outside = score(network, manifest, graph)
    config = network.config
    print(
        f"{name}: {graph.num_nodes} nodes, {graph.edge_index.shape[1]} edges; features over "
        f"{config.hops} hops; the whole graph is {'' if outside else 'not '}out of distribution"
    )
    schema = Schema(config.features, config.relations)
    stored = DynamicGraph(schema, GraphSnapshot(graph, list(range(graph.num_nodes)), 0))
    chosen = np.random.default_rng(0).choice(graph.num_nodes, NODES, replace=False)
    for hops, neighbors in KNOBS:
        start = time.perf_counter()
        apart, sizes, flags, equal = list[float](), list[int](), 0, 0
        for node in chosen.tolist():
            near = stored.sample_neighborhood([node], hops, neighbors, 0, 1 << 30, 1 << 30).graph
            probability, outside = score(network, manifest, near)
            apart.append(abs(float(probability[0] - whole[node])))
            equal += (probability[0] >= manifest.threshold) == (whole[node] >= manifest.threshold)
            flags += outside
            sizes.append(near.num_nodes)
        ms = 1e3 * (time.perf_counter() - start) / NODES
        print(
            f"  hops {hops}, {neighbors} neighbours: labels equal {equal} %, probabilities "
            f"{np.median(apart):.3f} apart (median), {max(apart):.2f} at most; out of distribution "
            f"{flags} %; {np.median(sizes):.0f} nodes, {ms:.0f} ms",
            flush=True,
        )


def main() -> None:
    print(describe())
    for name in sys.argv[1:] or DATASETS:
        compare(name, DATASETS[name])


if __name__ == "__main__":
    main()
