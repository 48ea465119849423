"""One network on one split, from the dataset to its figures."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from lightning_fabric import Fabric
from rich.progress import Progress

from models.inputs.tree_ensemble import TreeEnsemble
from models.registry import find_architectures
from models.tasks.node_config import NodeConfig
from models.tasks.node_scorer import NodeScorer
from training.datasets import NodeDataset, Split
from training.tasks.anomaly.ensemble import fit_members, list_seeds
from training.tasks.anomaly.evaluate import NodeEvaluation, evaluate_nodes, measure_nodes
from training.tasks.anomaly.neighbor_labels import fit_label_trees
from training.tasks.anomaly.stacked_trees import fit_part_weights, fit_stacked_trees
from training.tasks.anomaly.task import NodeTrainConfig, NodeTrainingTask
from training.trainer import TrainResult


@dataclass(frozen=True)
class NodeRun:
    """A fitted network, its logits (N,) of every node, and their evaluation: `with_labels` of
    those that it gives where the labels of the training nodes are known."""

    result: TrainResult
    logits: np.ndarray
    evaluation: NodeEvaluation
    network: NodeScorer
    train_config: NodeTrainConfig
    with_labels: NodeEvaluation | None = None


def network_config(dataset: NodeDataset, recipe: NodeTrainConfig) -> NodeConfig:
    """The architecture's configuration for a dataset."""
    kind = find_architectures()[recipe.model]
    values: dict[str, Any] = {"features": dataset.features, "relations": dataset.relations}
    values["edge_features"] = dataset.edge_features
    return cast(NodeConfig, kind.config_type.model_validate(values | recipe.config))


def train_node_scorer(
    dataset: NodeDataset,
    split: Split,
    recipe: NodeTrainConfig,
    *,
    seed: int,
    fabric: Fabric,
    baseline: str | None = None,
    run_folder: Path | None = None,
    progress: Progress | None = None,
) -> NodeRun:
    """Fit an architecture: feature bins from the graph without labels, then the weights.

    `baseline` names a network of `training.tasks.anomaly.baselines` to train in its stead, on the
    same features with the same loop, embedding, width and dropout, and a layer for each step. With
    `recipe.trees` it reads the same trees, and its logits are mixed with theirs likewise, and with
    those of trees that read labels of neighbours with `recipe.labels`.

    Raises:
        ValueError: a part of the split has nodes of one label only.
    """
    split.require_both_labels(dataset.labels)
    kind = cast(type[NodeScorer], find_architectures()[recipe.model])
    labels = dataset.labels

    def fit_trees(table_NC: np.ndarray, is_exact_C: np.ndarray) -> TreeEnsemble:
        assert recipe.trees is not None
        return fit_stacked_trees(table_NC, labels, split.train, recipe.trees, seed, is_exact_C)

    architecture, batch = kind.from_data(
        *(network_config(dataset, recipe), [dataset.graph], list_seeds(seed, recipe)[0]),
        fit_trees=None if recipe.trees is None else fit_trees,
    )
    architecture = cast(NodeScorer, architecture)
    encoded_NP = architecture.features(batch)
    if baseline is not None:
        recipe = replace(recipe, model=baseline, config={})
    problem = NodeTrainingTask(batch, encoded_NP, dataset.labels, split, recipe, fabric.device)
    fitted = fit_members(
        *(architecture, problem, recipe),
        seed=seed,
        fabric=fabric,
        baseline=baseline,
        run_folder=run_folder,
        progress=progress,
    )
    logits = problem.predict(fitted.network)
    network_logits = logits
    if recipe.trees is not None:
        architecture.to("cpu")
        scores_N, _ = architecture.read_parts(batch, architecture.features.compute_table(batch))
        assert scores_N is not None
        parts_NE = np.stack([logits, scores_N.numpy()], 1)
        *weights, _ = fit_part_weights(parts_NE[split.val], labels[split.val])
        weights = np.array(weights, np.float32)
        architecture.part_weights.copy_(torch.from_numpy(weights))
        logits = parts_NE @ weights
    evaluation, with_labels = evaluate_nodes(logits, labels, split), None
    if recipe.labels:
        assert recipe.trees is not None
        chosen = evaluation.calibration, evaluation.threshold
        known = labels, split, recipe.trees, chosen[0], seed
        shown_N = fit_label_trees(architecture, batch, network_logits, *known)
        with_labels = measure_nodes(shown_N, labels, split, *chosen)
    return NodeRun(fitted, logits, evaluation, architecture.to("cpu").eval(), recipe, with_labels)
