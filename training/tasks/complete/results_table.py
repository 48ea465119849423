"""The table of image completion: ET, its ablations and the baselines, in one resumable command."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning_fabric import Fabric
from rich.progress import Progress
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from models.inputs.patches import build_patch_batch
from training.common.hardware import format_machines
from training.common.results_log import ResultsLog, config_hash
from training.datasets import ImageDataset
from training.tasks.complete.baselines import UNTRAINED_BASELINES
from training.tasks.complete.configs import (
    ABLATIONS,
    completion_train_config,
    smoke_completion_config,
)
from training.tasks.complete.evaluate import evaluate_completion, summarize_over_masks
from training.tasks.complete.task import CompletionTrainConfig
from training.tasks.complete.train import train_image_completer
from training.trainer import count_parameters

COLUMNS = {
    "mse": ("MSE x 1000", 1000.0),
    "psnr": ("PSNR", 1.0),
    "ssim": ("SSIM", 1.0),
    "whole_psnr": ("PSNR, whole", 1.0),
    "whole_ssim": ("SSIM, whole", 1.0),
}
MODELS = (
    *("et" + (f":{a}" if a != "none" else "") for a in ABLATIONS),
    "vit",
    *UNTRAINED_BASELINES,
)


def recipe_of(
    model: str, dataset: ImageDataset, *, brief: bool = False, smoke: bool = False
) -> CompletionTrainConfig:
    """An architecture's own recipe (`et:no-hopfield` is an ablation). What is not trained shares
    ET's patches and masks.

    Raises:
        ValueError: for an unknown model.
    """
    base, _, ablation = model.partition(":")
    if base in UNTRAINED_BASELINES:
        like = completion_train_config("et", dataset, brief=brief)
        patch = {"patch": like.config["patch"]}
        return CompletionTrainConfig(model, patch, epochs=0, occluded=like.occluded)
    chosen = completion_train_config(base, dataset, ablation or "none", brief=brief)
    return smoke_completion_config(chosen) if smoke else chosen


def compute_rows(
    dataset: ImageDataset,
    models: Sequence[str],
    out: Path,
    fabric: Fabric,
    progress: Progress,
    *,
    brief: bool = False,
    epochs: int | None = None,
    count: int | None = None,
    smoke: bool = False,
) -> dict[str, dict[str, Any]]:
    """Each model; results of the same recipe in `out` (JSON lines) are kept, and a network that
    was being trained goes on.

    Raises:
        ValueError: for an unknown model.
    """
    if unknown := [model for model in models if model not in MODELS]:
        raise ValueError(f"unknown model {unknown[0]!r}; known are {', '.join(MODELS)}")
    ledger, data = ResultsLog(out, fabric), dataset.fingerprint
    task = progress.add_task(dataset.name, total=len(models))
    results: dict[str, dict[str, Any]] = {}
    for model in models:
        chosen = recipe_of(model, dataset, brief=brief, smoke=smoke)
        if epochs is not None and model not in UNTRAINED_BASELINES:
            chosen = replace(chosen, epochs=epochs)
        key = model, dataset.split.name, config_hash([data, count, asdict(chosen)])
        state = out.with_suffix("") / f"{model.replace(':', '-')}-{key[2]}"
        make = partial(_row, dataset, model, chosen, count, state, fabric, progress)
        results[model] = ledger.get_or_compute(key, make)
        progress.advance(task)
    return results


def _row(
    dataset: ImageDataset,
    model: str,
    recipe: CompletionTrainConfig,
    count: int | None,
    state: Path,
    fabric: Fabric,
    progress: Progress,
) -> dict[str, Any]:
    parts = reported_parts(dataset)
    if model in UNTRAINED_BASELINES:
        patch = recipe.config["patch"]
        complete, share = UNTRAINED_BASELINES[model](patch), recipe.occluded
        measured = evaluate_completion(complete, dataset, patch, share, parts=parts, count=count)
        numbers, work, setting, took = 0, 0, "not trained", dict[str, Any]()
    else:
        result = train_image_completer(
            dataset,
            recipe,
            seed=0,
            fabric=fabric,
            parts=parts,
            count=count,
            run_folder=state,
            progress=progress,
        )
        measured, numbers = result.parts, count_parameters(result.network)
        work = count_flops(result.network, dataset, recipe.config["patch"])
        setting = f"epoch {result.result.best_epoch} of {recipe.epochs}"
        took = {"seconds": result.result.seconds}
    return {
        "dataset": dataset.name,
        "setting": setting,
        "parameters": numbers,
        "operations": work,
        "epochs": recipe.epochs if numbers else None,
        **took,
    } | {part: summarize_over_masks(measured[part]) for part in parts}


@torch.no_grad()
def count_flops(network: nn.Module, dataset: ImageDataset, patch: int) -> int:
    """Floating point operations of the products that complete one image, by torch's counter."""
    image = torch.from_numpy(np.zeros_like(dataset.images[:1]))
    hidden_RL = torch.zeros(1, (dataset.size // patch) ** 2, dtype=torch.bool)
    with FlopCounterMode(display=False) as counter:
        network(build_patch_batch(image, hidden_RL, patch))
    return counter.get_total_flops()


def reported_parts(dataset: ImageDataset) -> tuple[str, ...]:
    """The parts that a table has: the test part, or its sources each by itself."""
    return tuple(dataset.sources) or ("test",)


def format_table(dataset: ImageDataset, results: dict[str, dict[str, Any]]) -> str:
    """The table of each part, with the protocol and the machines under them."""
    parts = reported_parts(dataset)
    lines = []
    for part in parts:
        lines += [
            f"| {part if dataset.sources else dataset.name} | parameters | MFLOP an image | "
            + " | ".join(title for title, _ in COLUMNS.values())
            + " |",
            "|---|---|---|" + "---|" * len(COLUMNS),
        ]
        lines += [format_row(model, row, part) for model, row in results.items()]
        lines.append("")
    first = next(iter(results.values()))[parts[0]]
    trained = sorted({str(row["epochs"]) for row in results.values() if row["epochs"] is not None})
    epochs = f"Trained for {', '.join(trained)} epochs, a seed each. " if trained else ""
    lines.append(
        f"Mean ± std over {first['masks']} masks of {first['images']} test images, half of the "
        f"patches occluded; of the occluded patches unless of the whole. {epochs}Epoch chosen on "
        f"validation images; test images had no part in it. {dataset.note} "
        f"{format_machines(results.values())}"
    )
    return "\n".join(lines)


def format_row(model: str, row: dict[str, Any], part: str) -> str:
    """The line of a model in the table of a part."""
    work = f"{row['operations'] / 1e6:.0f}" if row["operations"] else "-"
    cells = [_cell(row[part], name, scale) for name, (_, scale) in COLUMNS.items()]
    return " | ".join([f"| {model}", str(row["parameters"] or "-"), work, *cells]) + " |"


def _cell(test: dict[str, float], name: str, scale: float) -> str:
    digits = 3 if name.endswith("ssim") else 2
    return f"{scale * test[name]:.{digits}f} ± {scale * test[f'{name}_std']:.{digits}f}"
