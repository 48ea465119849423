"""What each part of a hybrid gives on test nodes, and what its steps or its networks do."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import Annotated

import numpy as np
import torch
import typer
from lightning_fabric import Fabric
from rich.progress import Progress
from sklearn.metrics import average_precision_score, roc_auc_score

from models.base import DynamicsParams
from models.inputs.graph_batch import GraphBatch
from training.cli_options import DataOption, DeviceOption, Members, console, create_fabric
from training.common.hardware import processor_name
from training.datasets import NodeDataset, Split, load_node_dataset, random_splits
from training.tasks.anomaly.configs import WITH_LABELS, node_train_config
from training.tasks.anomaly.neighbor_labels import show_training_labels
from training.tasks.anomaly.task import NodeTrainConfig
from training.tasks.anomaly.train import train_node_scorer

_STEPS = (0, 1, 2, 4, 16, 64)


def score_parts(
    dataset: NodeDataset,
    split: Split,
    recipe: NodeTrainConfig,
    fabric: Fabric,
    progress: Progress | None = None,
) -> dict[str, np.ndarray]:
    """Train a hybrid that reads labels, and return the logits (N,) of its parts, of what is mixed
    of them, and of the network and the hybrid after other numbers of steps than the trained one; of
    an ensemble, of each network alone and mixed with the trees as the mean is.
    """
    run = train_node_scorer(dataset, split, recipe, seed=0, fabric=fabric, progress=progress)
    network = run.network
    batch = network.pack([dataset.graph])
    table_NC = network.features.compute_table(batch)
    known_N = torch.from_numpy(show_training_labels(dataset.labels, split))
    shown = GraphBatch(batch.x_NF, batch.relations, labels_N=known_N)
    scores_N, by_labels = network.read_parts(shown, table_NC)
    assert scores_N is not None
    assert by_labels is not None
    encoded_NP = network.features.encode(table_NC)

    @torch.no_grad()
    def compute_network(steps: int) -> torch.Tensor:
        return network(batch, [DynamicsParams(steps=steps)], encoded_NP)

    trained = compute_network(network.config.steps)
    parts = {
        "trees": scores_N,
        "trees that read labels": by_labels.score_N,
        "network that reads the trees": trained,
        "network and trees": network.mix(trained, scores_N),
        "all, with labels": network.mix(trained, scores_N, by_labels),
    }
    if network.config.members > 1:
        with torch.no_grad():
            alone_KN = network.compute_members(batch, encoded_NP)
        for place, logits_N in enumerate(alone_KN):
            parts[f"network {place}"] = logits_N
            parts[f"network {place} and trees"] = network.mix(logits_N, scores_N)
            parts[f"network {place}, with labels"] = network.mix(logits_N, scores_N, by_labels)
    for steps in _STEPS if network.config.members == 1 else ():
        alone, after = compute_network(steps), f"{steps} step{'s' * (steps != 1)}"
        parts[f"network, {after}"] = alone
        parts[f"network and trees, {after}"] = network.mix(alone, scores_N)
    return {name: logits_N.numpy() for name, logits_N in parts.items()}


def hybrid_parts(
    model: Annotated[str, typer.Option(help="et or cdat")] = "et",
    dataset: Annotated[str, typer.Option(help="tolokers, amazon or yelpchi")] = "tolokers",
    splits: Annotated[int, typer.Option(help="how many, official or random with 40 %")] = 5,
    members: Members = 1,
    data: DataOption = None,
    device: DeviceOption = "auto",
) -> None:
    """Print what each part of a hybrid gives on test nodes, and what its steps do."""
    source = load_node_dataset(dataset, data)
    chosen = (source.official or random_splits(source, 0.4, splits))[:splits]
    figures, fabric = defaultdict[str, list[list[float]]](list), create_fabric(device, "32-true")
    edges, trained = source.graph.edge_index.shape[1], 0
    with Progress(console=console) as progress:
        for split in chosen:
            rows = len(split.train)
            recipe = node_train_config(model, source.name, rows, WITH_LABELS, edges=edges)
            recipe = replace(recipe, members=members)
            y, test = source.labels[split.test], split.test
            for name, logits_N in score_parts(source, split, recipe, fabric, progress).items():
                given = y, logits_N[test]
                figures[name].append([roc_auc_score(*given), average_precision_score(*given)])
            trained = recipe.config.get("steps", 2)
    typer.echo(
        f"{members} {model} on {source.name}, {len(chosen)} splits, trained for {trained} steps; "
        f"{processor_name()}\n\n| part | ROC-AUC | PR-AUC |\n|---|---|---|"
    )
    for name, values in figures.items():
        means, stds = 100 * np.mean(values, 0), 100 * np.std(values, 0)
        cells = " | ".join(f"{m:.2f} ± {s:.2f}" for m, s in zip(means, stds, strict=True))
        typer.echo(f"| {name} | {cells} |")
