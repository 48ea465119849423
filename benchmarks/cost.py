"""Seconds per cost: is a request that explains charged as one that only scores?

Each request is computed by itself on one thread of torch, without HTTP: the neighborhood in
`examples/tolokers.json`, random graphs (one with a target of more neighbors than are tried), and
molecules, short and long; plain, with each kind of reasons, and with explanations. The requests of
a round have a random order, so that nothing periodic meets one of them each time. Printed are the
cost that a quota is charged, the median milliseconds, the nanoseconds per cost, and those over the
plain request's.

    python -m benchmarks.cost [rounds]
"""

from __future__ import annotations

import json
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.machine import describe
from models import checkpoint
from models.base import RUN_ALONE, DynamicsParams
from models.inputs.graph import Graph
from models.inputs.molecules import parse_smiles
from models.paths import find_shipped
from service.endpoints.anomaly.infer import pack_if_large, score, workload_of
from service.endpoints.anomaly.parse import ScoreInputs
from service.endpoints.classify.infer import classify
from service.endpoints.common.cost import count_graph_tokens, count_tokens, estimate_cost
from service.endpoints.common.schemas import Dynamics
from service.registry.handles import Classifier, Scorer, handle_for

INCLUDES = ((), ("attention",), ("memories",), ("components",), ("explanation",))
_MOLECULES = ("CCO", "c1ccccc1N(=O)=O", "CC(=O)Oc1ccccc1C(=O)O", "CN1C=NC2=C1C(=O)N(C(=O)N2C)C")

Work = tuple[float, Callable[[], object]]
"""The cost of a request, and what computes it."""


def _load(name: str) -> Any:
    return handle_for(checkpoint.load_checkpoint(find_shipped("checkpoints") / name))


def _example() -> tuple[Graph, np.ndarray]:
    body = json.loads((Path(__file__).parents[1] / "examples" / "tolokers.json").read_text())
    x, edges = (np.array(body["graph"][name]) for name in ("x", "edge_index"))
    return Graph(x.astype(np.float32), edges), np.arange(3)


def _random_graph(model: Scorer, nodes: int, edges: int, neighbors: int = 0) -> Graph:
    """A graph whose first node has `neighbors` more edges."""
    rng = np.random.default_rng(0)
    ends = rng.integers(0, nodes, (2, edges))
    ends[0, :neighbors] = 0
    return Graph(rng.random((nodes, len(model.features)), np.float32), ends)


def _make_scores(model: Scorer, graph: Graph, targets: np.ndarray) -> dict[str, Work]:
    works = dict[str, Work]()
    for include in INCLUDES:
        knobs = Dynamics.model_validate({}), DynamicsParams(), frozenset(include)
        task = ScoreInputs(model, graph, None, targets, *knobs)
        compute = partial(score, task, pack_if_large(task), RUN_ALONE)
        works["".join(include) or "plain"] = workload_of(task).cost, compute
    return works


def _make_classes(model: Classifier, smiles: Sequence[str]) -> dict[str, Work]:
    graphs, params = [parse_smiles(each).graph for each in smiles], DynamicsParams()
    tokens, num_tasks = sum(map(count_tokens, graphs)), len(model.tasks)
    explained = sum(count_graph_tokens(model.network, graph, num_tasks) for graph in graphs)
    works = dict[str, Work]()
    for include in INCLUDES:
        anew = explained if "explanation" in include else 0
        cost = estimate_cost(model.network, params, tokens, include, anew)
        compute = partial(classify, model, graphs, params, RUN_ALONE, include)
        works["".join(include) or "plain"] = cost, compute
    return works


def _measure(case: str, works: dict[str, Work], rounds: int) -> None:
    seconds: dict[str, list[float]] = {name: [] for name in works}
    order = random.Random(0)
    for number in range(rounds + 1):
        for name in order.sample(list(works), len(works)):
            _, compute = works[name]
            started = time.perf_counter()
            compute()
            if number:  # the first one is not counted
                seconds[name].append(time.perf_counter() - started)
    plain_ns = 1e9 * statistics.median(seconds["plain"]) / works["plain"][0]
    for name, (cost, _) in works.items():
        median_s = statistics.median(seconds[name])
        per_cost_ns = 1e9 * median_s / cost
        figures = f"{cost:.3g} | {1e3 * median_s:.2f} | {per_cost_ns:.0f}"
        print(f"| {case} | {name} | {figures} | {per_cost_ns / plain_ns:.2f} |")


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    torch.set_num_threads(1)
    scorer, ames = _load("cdat-tolokers"), _load("cdat-ames")
    few = np.arange(4)
    cases = {
        "examples/tolokers.json": _make_scores(scorer, *_example()),
        "300 nodes, 1,200 edges": _make_scores(scorer, _random_graph(scorer, 300, 1_200), few),
        "3,000 nodes, 30,000 edges": _make_scores(
            scorer, _random_graph(scorer, 3_000, 30_000, 100), few[:1]
        ),
        "16 molecules of 3 to 14 atoms": _make_classes(ames, 4 * _MOLECULES),
        "4 molecules of 100 atoms": _make_classes(ames, 4 * ("C" * 100,)),
    }
    print(describe())
    print(
        "\n| request | include | cost | ms | ns per cost | over plain |\n|---|---|---|---|---|---|"
    )
    with torch.inference_mode():
        for case, works in cases.items():
            _measure(case, works, rounds)


if __name__ == "__main__":
    main()
