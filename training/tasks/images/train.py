"""One network on one dataset of pictures, to its figures."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from lightning_fabric import Fabric
from rich.progress import Progress

from models.architectures.ait import AiT, AiTConfig
from training.datasets.pictures import PictureDataset
from training.metrics import Evaluation, evaluate
from training.tasks.images.configs import BASELINE
from training.tasks.images.task import RecogniseProblem, RecogniseRecipe
from training.trainer import TrainResult, fit, parameters


@dataclass(frozen=True)
class PictureRun:
    """A fitted network, its logits (S, C) of every sample, their evaluation, and the accuracy on
    each kind of test sample."""

    fitted: TrainResult
    logits: np.ndarray
    evaluation: Evaluation
    by_kind: dict[str, float]
    network: AiT
    recipe: RecogniseRecipe


def train_pictures(
    dataset: PictureDataset,
    recipe: RecogniseRecipe,
    *,
    seed: int,
    fabric: Fabric,
    run: Path | None = None,
    progress: Progress | None = None,
) -> PictureRun:
    """Fit `recipe.model`; channels are standardised on the pictures to train on."""
    config = config_of(dataset, recipe)
    shown = np.unique(dataset.picture_of[dataset.split.train])
    network = AiT.fitted(config, dataset.pixels[shown], seed)
    problem = RecogniseProblem(dataset, config, recipe, fabric.device)
    fitted = fit(network, problem, recipe, seed=seed, fabric=fabric, run=run, progress=progress)
    logits, labels_S1 = problem.predict(network), dataset.labels[:, None]
    evaluation = evaluate(logits, labels_S1, dataset.split, (dataset.task,))
    by_kind = _by_kind(dataset, logits)
    return PictureRun(fitted, logits, evaluation, by_kind, network.to("cpu").eval(), recipe)


def config_of(dataset: PictureDataset, recipe: RecogniseRecipe) -> AiTConfig:
    """The network's configuration for a dataset."""
    config = AiTConfig.model_validate(
        {
            "shape": dataset.pixels.shape[1:],
            "question": 0 if dataset.questions is None else dataset.questions.shape[1],
            "tasks": (dataset.task,),
        }
        | recipe.config
    )
    return vision_transformer(config) if recipe.model == BASELINE else config


def vision_transformer(config: AiTConfig) -> AiTConfig:
    """The same without workspaces, its feed-forwards so much wider that it weighs as much."""
    bare = config.model_copy(update={"workspace": False})
    missing = size_of(config) - size_of(bare)
    wider = round(missing / (config.blocks * (2 * config.dim + 1)))
    return bare.model_copy(update={"mlp": config.mlp + wider})


def size_of(config: AiTConfig) -> int:
    """How many numbers such a network learns."""
    with torch.device("meta"):
        return parameters(AiT(config))


def _by_kind(dataset: PictureDataset, logits_SC: np.ndarray) -> dict[str, float]:
    test = dataset.split.test
    right = logits_SC[test].argmax(-1) == dataset.labels[test]
    if dataset.kinds is None:
        return {}
    return {
        name: float(right[dataset.kinds[test] == kind].mean())
        for kind, name in enumerate(dataset.names)
    }
