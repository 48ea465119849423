"""Train the networks of an ensemble, or the one of a model that is none."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import cast, final

import torch
from lightning_fabric import Fabric
from rich.progress import Progress
from torch import Tensor, nn

from models.base import temporary_seed
from models.tasks.node_scorer import NodeScorer
from training.tasks.anomaly.baselines import GRAPH_BASELINES
from training.tasks.anomaly.task import NodeTrainConfig
from training.trainer import TrainingTask, TrainResult, fit


@final
class MeanOfNetworks(nn.Module):
    """An ensemble of baselines: the mean of their logits."""

    def __init__(self, networks: list[nn.Module]) -> None:
        super().__init__()
        self.networks = nn.ModuleList(networks)

    def forward(self, *given: object) -> Tensor:
        return torch.stack([network(*given) for network in self.networks]).mean(0)


def list_seeds(seed: int, recipe: NodeTrainConfig) -> range:
    """The seeds of the members of an ensemble: those of different ensembles have none in common,
    and one network has that of its ensemble."""
    return range(seed * recipe.members, (seed + 1) * recipe.members)


def fit_members(
    architecture: NodeScorer,
    problem: TrainingTask,
    recipe: NodeTrainConfig,
    *,
    seed: int,
    fabric: Fabric,
    baseline: str | None = None,
    run_folder: Path | None = None,
    progress: Progress | None = None,
) -> TrainResult:
    """Train `recipe.members` networks, each by itself: weights, batches and the best epoch are its
    own.

    Args:
        architecture: the first network, of the first of `list_seeds`; gets the others, which read
            its features.
        seed: of the ensemble.
        baseline: trains that network of `GRAPH_BASELINES` in place of each.
    """
    own_seeds = list_seeds(seed, recipe)
    networks: list[nn.Module] = [architecture]
    networks += [architecture.build_sibling(own_seed) for own_seed in own_seeds[1:]]
    if baseline is not None:
        networks = []
        for own_seed in own_seeds:
            with temporary_seed(own_seed):
                networks.append(GRAPH_BASELINES[baseline](architecture.config))
    fitted = list[TrainResult]()
    for place, (network, own_seed) in enumerate(zip(networks, own_seeds, strict=True)):
        folder = run_folder
        if run_folder is not None and recipe.members > 1:
            folder = run_folder / f"member-{place}"
        given = network, problem, replace(recipe, members=1)
        fitted.append(fit(*given, seed=own_seed, fabric=fabric, run=folder, progress=progress))
    if recipe.members == 1:
        return fitted[0]
    whole: nn.Module = architecture
    if baseline is None:
        architecture.add_members([m for m in networks[1:] if isinstance(m, NodeScorer)])
    else:
        whole = MeanOfNetworks(networks)
    return TrainResult(
        whole,
        tuple(cast(int, result.best_epoch) for result in fitted),
        problem.validate(whole),
        fitted[0].precision,
        sum(result.seconds for result in fitted),
    )
