"""Models and graphs that are scored in parts, and their scores as a whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from basin.bulk.plan import Plan
from models import checkpoint
from models.base import DynamicsParams
from models.inputs.graph import Graph
from models.inputs.tree_ensemble import RowKeys, TreeEnsemble, make_stump
from models.manifest import EnergyReference, Feature, Manifest
from models.tasks.node_scorer import FitTrees, NodeScorer
from service.endpoints.common.convergence import ConvergenceReports
from service.endpoints.common.dynamics import as_trained

ENERGY = EnergyReference(levels=(0.0, 0.5, 1.0), values=(-50.0, -10.0, 10.0))

RELATIONS = ("r", "s")


def make_trees(table_NC: np.ndarray, is_exact_C: np.ndarray) -> TreeEnsemble:
    """Two folds, of which some nodes were trained on."""
    folds = [
        (0.1, [make_stump(0, 0.0, -1.0, 1.0), make_stump(9, 0.5, -0.5, 1.5)]),
        (0.2, [make_stump(7, 0.3, 1.0, -2.0)]),
    ]
    keys = RowKeys.of_rows(table_NC[::2], is_exact_C)
    return TreeEnsemble.from_folds(folds, keys, np.arange(len(keys.key_r)) % 2)


def save_model(
    folder: Path,
    architecture: type[NodeScorer],
    graph: Graph,
    fit_trees: FitTrees | None = None,
    **config: Any,
) -> Path:
    """Save a checkpoint of the architecture's example, with changes to its configuration."""
    example, _ = architecture.build_example(3)
    settings = architecture.config_type.model_validate(
        example.config.model_dump() | {"edge_features": ()} | config
    )
    network, _ = architecture.from_data(cast(Any, settings), [graph], 1, fit_trees)
    if fit_trees is not None:
        network.part_weights.copy_(torch.tensor([0.7, 0.4]))
    if graph.labels is not None:
        columns = network.features.count_node_columns(len(network.config.relations))
        stumps = [make_stump(columns, 0.3, -1.0, 2.0), make_stump(columns + 3, 1.0, 0.0, 0.5)]
        keys = RowKeys.of_rows(np.empty((0, columns)))
        network.add_label_trees(TreeEnsemble.from_folds([(0.2, stumps)], keys, np.empty(0)), 0.3)
        network.label_weights.copy_(torch.tensor([[0.5, 0.2, 0.1, -0.3], [0.4, 0.1, 0.9, 0.7]]))
    manifest = Manifest(
        name="random",
        version="1",
        architecture=architecture.name,
        task="anomaly",
        config=network.config.model_dump(mode="json"),
        knobs=checkpoint.read_trained_params(network),
        features=tuple(Feature(name=f, minimum=-4, maximum=4, mean=0) for f in "abcde"),
        energy=ENERGY,
        training={},
        metrics={},
    )
    checkpoint.save_checkpoint(folder / "random", network, manifest, "# Random\n")
    return folder / "random"


def random_graph(nodes: int = 90, edges: int = 400, seed: int = 0) -> Graph:
    """A graph with two relations, in which some nodes have no neighbour."""
    rng = np.random.default_rng(seed)
    ends = (nodes * 0.9 * rng.random((2, edges)) ** 2).astype(np.int64)
    x = rng.standard_normal((nodes, 5)).astype(np.float32)
    attr = rng.standard_normal((edges, 2)).astype(np.float32)
    return Graph(x, ends, rng.integers(0, 2, edges), attr)


def score_whole(
    model: Path, graph: Graph, params: DynamicsParams
) -> tuple[np.ndarray, dict[str, Any]]:
    network = cast(NodeScorer, checkpoint.load_checkpoint(model).network)
    output = network.infer(network.pack([graph]), [params])
    reports = ConvergenceReports(output.solutions, as_trained=as_trained(network, params))
    return output.logits.numpy(), reports.row(0, graph.num_nodes, ENERGY, ())


def start(
    folder: Path, model: Path, graph: Graph, params: DynamicsParams, parts: int | None
) -> tuple[Path, Plan]:
    return folder, Plan.from_model(model, "a graph", params, parts).start(folder, graph)


CONFIGS = {
    "two relations, two blocks": {},
    "directed": {"undirected": False},
    "self-loops": {"self_loops": True, "combine": "max"},
    "no attention": {"attention": False},
    "no features of neighbours": {"hops": 0},
    "trees": {"fit_trees": make_trees, "hops": 3},
    "trees and features of edges": {"fit_trees": make_trees, "edge_features": ("a", "b")},
    "features of edges": {"edge_features": ("a", "b")},
    "features of directed edges": {"edge_features": ("a", "b"), "undirected": False},
    "one relation": {"relations": ("r",), "combine": "max", "blocks": 1, "encoder": 0},
}
