"""What trees cost: seconds of a hybrid over those of its plain scorer, as graphs grow.

Random graphs with ten edges a node, computed in turns by `et-tolokers` and a hybrid of the same
features in this process; medians, and the median of the ratios of neighbouring turns.

    python -m training anomaly --model et --dataset tolokers --hybrid
    python -m benchmarks.hybrid runs/checkpoints/et-tolokers-hybrid [--rounds 30]
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np

from benchmarks.machine import describe
from benchmarks.overhead import graph_of
from models.base import DynamicsParams
from models.checkpoint import load_checkpoint
from models.inputs.graph import Graph
from models.paths import find_shipped
from models.tasks.node_scorer import NodeScorer

PLAIN = "et-tolokers"
NODES = 30, 500, 5000


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.hybrid", description=__doc__)
    parser.add_argument("hybrid", type=Path, help="folder of a checkpoint")
    parser.add_argument("--rounds", type=int, default=30)
    args = parser.parse_args()
    rounds: int = args.rounds
    print(describe())
    networks = [_load(find_shipped("checkpoints") / PLAIN), _load(args.hybrid)]
    print("| nodes | plain, ms | hybrid, ms | hybrid over plain | of which the trees, ms |")
    print("|---|---|---|---|---|")
    for nodes in NODES:
        graph = graph_of(nodes, 10)
        seconds = np.array(
            [[_time(network, graph) for network in networks] for _ in range(rounds + 1)][1:]
        )
        trees = np.median([_time_trees(networks[1], graph) for _ in range(rounds)])
        plain, hybrid = 1e3 * np.median(seconds, 0)
        ratio = np.median(seconds[:, 1] / seconds[:, 0])
        print(f"| {nodes} | {plain:.2f} | {hybrid:.2f} | {ratio:.2f} | {1e3 * trees:.2f} |")


def _load(folder: Path) -> NodeScorer:
    network = load_checkpoint(folder).network
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
    trees(table_NC, batch.x_NF)
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
