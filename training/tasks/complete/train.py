"""One network on a dataset of images, to its figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lightning_fabric import Fabric
from rich.progress import Progress

from models.architectures.et import ETImage, ETImageConfig
from models.tasks.image_completer import ImageCompleter
from training.datasets import ImageDataset
from training.tasks.complete.baselines import ViT
from training.tasks.complete.configs import VIT
from training.tasks.complete.evaluate import (
    CompletionMetrics,
    evaluate_completion,
    make_completion_function,
)
from training.tasks.complete.task import CompletionTrainConfig, CompletionTrainingTask
from training.trainer import TrainResult, fit


@dataclass(frozen=True)
class CompletionRun:
    """A fitted network with its figures on each part, one entry for each seed of the masks."""

    result: TrainResult
    parts: dict[str, list[CompletionMetrics]]
    network: ImageCompleter | ViT
    train_config: CompletionTrainConfig


def train_image_completer(
    dataset: ImageDataset,
    recipe: CompletionTrainConfig,
    *,
    seed: int,
    fabric: Fabric,
    parts: Sequence[str] = ("val", "test"),
    count: int | None = None,
    run_folder: Path | None = None,
    progress: Progress | None = None,
) -> CompletionRun:
    """Fit `recipe.model`; channels are standardised on the training images.

    `count` bounds how many images of each of `parts` are measured.
    """
    config = ETImageConfig.model_validate(recipe.config)
    kind = ViT if recipe.model == VIT else ETImage
    images = dataset.images[dataset.split.train]
    network = kind.from_data(config, images, seed)
    problem = CompletionTrainingTask(dataset, network.codec, recipe, fabric.device)
    fitted = fit(
        network, problem, recipe, seed=seed, fabric=fabric, run=run_folder, progress=progress
    )
    served = config.model_copy(update={"contrast": recipe.contrast})
    trained, network = network.state_dict(), kind.from_data(served, images, seed).to(fabric.device)
    network.load_state_dict(trained)
    measured = evaluate_completion(
        make_completion_function(network, config.patch, fabric.device),
        dataset,
        config.patch,
        recipe.occluded,
        parts=parts,
        count=count,
    )
    return CompletionRun(fitted, measured, network.to("cpu").eval(), recipe)
