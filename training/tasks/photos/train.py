"""One network on windows of photographs, to its figures."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from lightning_fabric import Fabric
from rich.progress import Progress
from torch import nn

from models.base import temporary_seed
from models.tasks.window_completer import WindowConfig
from training.tasks.photos.configs import PhotoTrainConfig
from training.tasks.photos.data import PhotoSet
from training.tasks.photos.evaluate import evaluate_windows
from training.tasks.photos.peers import build_network
from training.tasks.photos.task import PhotoTrainingTask
from training.trainer import TrainResult, build_optimizer, fit, take_step

_WARM_UP, _TIMED = 3, 10  # batches
_TIMED_MASKS = 100


@dataclass(frozen=True)
class PhotoRun:
    """A fitted network with its figures on windows of the validation photographs."""

    result: TrainResult
    figures: dict[str, Any]
    network: nn.Module
    train_config: PhotoTrainConfig


def train_photo_completer(
    photos: PhotoSet,
    recipe: PhotoTrainConfig,
    *,
    seed: int,
    fabric: Fabric,
    run_folder: Path | None = None,
    progress: Progress | None = None,
) -> PhotoRun:
    """Fit `recipe.model`; on a GPU its forward and backward passes are compiled."""
    network = _build(recipe, seed, fabric)
    problem = PhotoTrainingTask(photos, recipe, fabric.device, seed=seed)
    result = fit(
        network, problem, recipe, seed=seed, fabric=fabric, run=run_folder, progress=progress
    )
    figures = evaluate_windows(network, problem.val, problem.val_kinds)
    return PhotoRun(result, figures, network.to("cpu").eval(), recipe)


def measure_batch_seconds(
    photos: PhotoSet, recipe: PhotoTrainConfig, *, seed: int, fabric: Fabric
) -> float:
    """How long a batch takes in training, on this machine, compilation not counted."""
    network = _build(recipe, seed, fabric)
    few = replace(recipe, masks=_TIMED_MASKS, val_windows=_TIMED_MASKS)  # which take time to draw
    problem = PhotoTrainingTask(photos, few, fabric.device, seed=seed)
    model, optimizer = fabric.setup(network, build_optimizer(network, problem, recipe))
    began = 0.0
    for place in range(_WARM_UP + _TIMED):
        if place == _WARM_UP:
            began = _now(fabric)
        batch = problem.source.draw(recipe.batch_windows)
        take_step(problem, model, optimizer, batch, recipe, fabric)
    return (_now(fabric) - began) / _TIMED


def _build(recipe: PhotoTrainConfig, seed: int, fabric: Fabric) -> nn.Module:
    with temporary_seed(seed):
        network = build_network(recipe.model, WindowConfig.model_validate(recipe.config))
    if fabric.device.type == "cuda":
        network.compile(dynamic=False)
    return network


def _now(fabric: Fabric) -> float:
    if fabric.device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()
