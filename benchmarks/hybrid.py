"""What trees cost: seconds of a hybrid over those of its plain scorer, as graphs grow.

Random graphs with ten edges a node, computed in turns by `et-tolokers`, by `et-tolokers-hybrid`,
which reads the same features, and by that with labels of every second node, in this process;
medians, and the medians of the ratios of neighbouring turns.

    python -m benchmarks.hybrid [--rounds 30]
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace

import numpy as np

from benchmarks.machine import describe
from benchmarks.overhead import graph_of
from models.base import DynamicsParams
from models.checkpoint import load_checkpoint
from models.inputs.graph import UNKNOWN, Graph
from models.paths import find_shipped
from models.tasks.node_scorer import NodeScorer

PLAIN, HYBRID = "et-tolokers", "et-tolokers-hybrid"
NODES = 30, 500, 5000


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.hybrid", description=__doc__)
    parser.add_argument("--rounds", type=int, default=30)
    args = parser.parse_args()
    rounds: int = args.rounds
    print(describe())
    plain, hybrid = map(_load, (PLAIN, HYBRID))
    print(
        "| nodes | plain, ms | hybrid, ms | over plain | of which the trees, ms "
        "| with labels, ms | over plain |"
    )
    print("|---|---|---|---|---|---|---|")
    for nodes in NODES:
        graph = graph_of(nodes, 10)
        labels = np.where(np.arange(nodes) % 2, UNKNOWN, np.arange(nodes) // 2 % 5 == 0)
        labelled = replace(graph, labels=labels.astype(np.int8))
        turns = (plain, graph), (hybrid, graph), (hybrid, labelled)
        seconds = np.array([[_time(*turn) for turn in turns] for _ in range(rounds + 1)][1:])
        trees = np.median([_time_trees(hybrid, graph) for _ in range(rounds)])
        ms = 1e3 * np.median(seconds, 0)
        _, ratio, ratio_with_labels = np.median(seconds / seconds[:, :1], 0)
        print(
            f"| {nodes} | {ms[0]:.2f} | {ms[1]:.2f} | {ratio:.2f} | {1e3 * trees:.2f} "
            f"| {ms[2]:.2f} | {ratio_with_labels:.2f} |"
        )


def _load(name: str) -> NodeScorer:
    network = load_checkpoint(find_shipped("checkpoints") / name).network
    assert isinstance(network, NodeScorer)
    return network


def _time(network: NodeScorer, graph: Graph) -> float:
    start = time.perf_counter()
    network.infer(network.pack([graph]), [DynamicsParams()])
    return time.perf_counter() - start


def _time_trees(network: NodeScorer, graph: Graph) -> float:
    trees, batch = network.features.trees, network.pack([graph])
    assert trees is not None
    table_NC = network.features.compute_node_columns(batch)
    start = time.perf_counter()
    trees(table_NC)
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
