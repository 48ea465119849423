"""One network on one split, from the dataset to its figures."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
from lightning_fabric import Fabric
from rich.progress import Progress

from models.base import seeded
from models.registry import architectures
from models.tasks.node_scorer import NodeConfig, NodeScorer
from training.datasets import NodeDataset, Split
from training.tasks.anomaly.baselines import GRAPH_BASELINES
from training.tasks.anomaly.evaluate import Evaluation, evaluate
from training.tasks.anomaly.task import NodeProblem, NodeRecipe
from training.trainer import TrainResult, fit


@dataclass(frozen=True)
class Run:
    """A fitted network, its logits (N,) of every node, and their evaluation."""

    fitted: TrainResult
    logits: np.ndarray
    evaluation: Evaluation
    network: NodeScorer
    recipe: NodeRecipe


def config_of(dataset: NodeDataset, recipe: NodeRecipe) -> NodeConfig:
    """The architecture's configuration for a dataset."""
    kind = architectures()[recipe.model]
    values: dict[str, Any] = {"features": dataset.features, "relations": dataset.relations}
    return cast(NodeConfig, kind.config_type.model_validate(values | recipe.config))


def train_nodes(
    dataset: NodeDataset,
    split: Split,
    recipe: NodeRecipe,
    *,
    seed: int,
    fabric: Fabric,
    baseline: str | None = None,
    run: Path | None = None,
    progress: Progress | None = None,
) -> Run:
    """Fit an architecture: feature bins from the graph without labels, then the weights.

    `baseline` names a network of `training.tasks.anomaly.baselines` to train in its stead, on the
    same features with the same loop, embedding, width and dropout, and a layer for each step.

    Raises:
        ValueError: a part of the split has nodes of one label only.
    """
    split.require_both(dataset.labels)
    kind = cast(type[NodeScorer], architectures()[recipe.model])
    architecture, batch = kind.fitted(config_of(dataset, recipe), [dataset.graph], seed)
    network = architecture = cast(NodeScorer, architecture)
    encoded_NP = architecture.features(batch)
    if baseline is not None:
        with seeded(seed):
            network = GRAPH_BASELINES[baseline](architecture.config)
        recipe = replace(recipe, model=baseline, config={})
    problem = NodeProblem(batch, encoded_NP, dataset.labels, split, recipe, fabric.device)
    fitted = fit(network, problem, recipe, seed=seed, fabric=fabric, run=run, progress=progress)
    logits = problem.predict(network)
    evaluation = evaluate(logits, dataset.labels, split)
    return Run(fitted, logits, evaluation, architecture.to("cpu").eval(), recipe)
