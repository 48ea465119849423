"""One network on one dataset of pictures, to its figures."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from lightning_fabric import Fabric
from rich.progress import Progress

from models.architectures.ait import AiT, AiTConfig
from training.datasets.labeled_images import LabeledImageDataset
from training.metrics import ClassifierEvaluation, evaluate_classifier
from training.tasks.images.configs import BASELINE
from training.tasks.images.task import ImageClassifierTrainConfig, ImageClassifierTrainingTask
from training.trainer import TrainResult, count_parameters, fit


@dataclass(frozen=True)
class ImageClassifierRun:
    """A fitted network, its logits (S, C) of every sample, their evaluation, and the accuracy on
    each kind of test sample."""

    result: TrainResult
    logits: np.ndarray
    evaluation: ClassifierEvaluation
    accuracy_by_kind: dict[str, float]
    network: AiT
    train_config: ImageClassifierTrainConfig


def train_image_classifier(
    dataset: LabeledImageDataset,
    recipe: ImageClassifierTrainConfig,
    *,
    seed: int,
    fabric: Fabric,
    run_folder: Path | None = None,
    progress: Progress | None = None,
) -> ImageClassifierRun:
    """Fit `recipe.model`; channels are standardised on the pictures to train on."""
    config = network_config(dataset, recipe)
    shown = np.unique(dataset.image_ids[dataset.split.train])
    network = AiT.from_images(config, dataset.pixels[shown], seed)
    problem = ImageClassifierTrainingTask(dataset, config, recipe, fabric.device)
    fitted = fit(
        network, problem, recipe, seed=seed, fabric=fabric, run=run_folder, progress=progress
    )
    logits, labels_S1 = problem.predict(network), dataset.labels[:, None]
    evaluation = evaluate_classifier(logits, labels_S1, dataset.split, (dataset.task,))
    by_kind = _by_kind(dataset, logits)
    return ImageClassifierRun(fitted, logits, evaluation, by_kind, network.to("cpu").eval(), recipe)


def network_config(dataset: LabeledImageDataset, recipe: ImageClassifierTrainConfig) -> AiTConfig:
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
    missing = count_config_parameters(config) - count_config_parameters(bare)
    wider = round(missing / (config.blocks * (2 * config.dim + 1)))
    return bare.model_copy(update={"mlp": config.mlp + wider})


def count_config_parameters(config: AiTConfig) -> int:
    """How many numbers such a network learns."""
    with torch.device("meta"):
        return count_parameters(AiT(config))


def _by_kind(dataset: LabeledImageDataset, logits_SC: np.ndarray) -> dict[str, float]:
    test = dataset.split.test
    right = logits_SC[test].argmax(-1) == dataset.labels[test]
    if dataset.kind_ids is None:
        return {}
    return {
        name: float(right[dataset.kind_ids[test] == kind].mean())
        for kind, name in enumerate(dataset.kind_names)
    }
