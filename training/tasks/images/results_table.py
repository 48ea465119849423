"""The tables of recognition: every model with every seed, in one resumable command."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from lightning_fabric import Fabric
from rich.progress import Progress

from training.common.hardware import format_machines
from training.common.results_log import ResultsLog, config_hash
from training.datasets.labeled_images import LabeledImageDataset
from training.tasks.images.configs import (
    image_classifier_train_config,
    smoke_image_classifier_config,
)
from training.tasks.images.task import ImageClassifierTrainConfig
from training.tasks.images.train import (
    count_config_parameters,
    network_config,
    train_image_classifier,
)


def compute_rows(
    dataset: LabeledImageDataset,
    models: Sequence[str],
    seeds: int,
    out: Path,
    fabric: Fabric,
    progress: Progress,
    *,
    epochs: int | None = None,
    smoke: bool = False,
) -> dict[str, list[dict[str, Any]]]:
    """Each model with each seed; results of the same recipe in `out` (JSON lines) are kept, and a
    network that was being trained goes on.

    Raises:
        ValueError: for an unknown model.
    """
    recipes = {model: image_classifier_train_config(model, dataset.name) for model in models}
    if smoke:
        recipes = {
            model: smoke_image_classifier_config(recipe) for model, recipe in recipes.items()
        }
    if epochs is not None:
        recipes = {model: replace(recipe, epochs=epochs) for model, recipe in recipes.items()}
    ledger, data = ResultsLog(out, fabric), dataset.fingerprint
    task = progress.add_task(dataset.name, total=len(models) * seeds)
    results: dict[str, list[dict[str, Any]]] = {model: [] for model in models}
    for seed in range(seeds):
        for model, recipe in recipes.items():
            key = model, f"{dataset.split.name}, seed {seed}", config_hash([data, asdict(recipe)])
            state = out.with_suffix("") / f"{model.replace(':', '-')}-{key[2]}-{seed}"
            make = partial(_row, dataset, recipe, seed, state, fabric, progress)
            results[model].append(ledger.get_or_compute(key, make))
            progress.advance(task)
    return results


def _row(
    dataset: LabeledImageDataset,
    recipe: ImageClassifierTrainConfig,
    seed: int,
    state: Path,
    fabric: Fabric,
    progress: Progress,
) -> dict[str, Any]:
    result = train_image_classifier(
        dataset, recipe, seed=seed, fabric=fabric, run_folder=state, progress=progress
    )
    parts = result.evaluation.parts
    return {
        "dataset": dataset.name,
        "parameters": count_config_parameters(network_config(dataset, recipe)),
        "setting": f"{recipe.config}, epoch {result.result.best_epoch} of {recipe.epochs}",
        "val": {"accuracy": parts["val"][0].accuracy},
        "seconds": result.result.seconds,
        "test": result.accuracy_by_kind | {"accuracy": parts["test"][0].accuracy},
    }


def format_table(dataset: LabeledImageDataset, results: dict[str, list[dict[str, Any]]]) -> str:
    """The table, with the protocol and the machines under it."""
    columns = [*dataset.kind_names, "accuracy"]
    lines = [
        f"| {dataset.name} | " + " | ".join(columns) + " | parameters |",
        "|---|" + "---|" * (len(columns) + 1),
    ]
    for model, rows in results.items():
        lines.append(format_row(model, rows, columns))
    sizes = ", ".join(f"{len(samples)} {part}" for part, samples in dataset.split.parts().items())
    seeds = len(next(iter(results.values())))
    lines.append(
        f"\nMean ± std in percent over {seeds} seed(s) of the weights; {sizes}. Epoch chosen on "
        f"the validation part, test part measured once, each picture by itself. {dataset.note} "
        f"{format_machines(row for rows in results.values() for row in rows)}"
    )
    return "\n".join(lines)


def format_row(model: str, rows: Sequence[dict[str, Any]], columns: Sequence[str]) -> str:
    """The line of a model, of a row for each seed."""
    cells = [_cell(row["test"][column] for row in rows) for column in columns]
    return f"| {model} | " + " | ".join(cells) + f" | {rows[0]['parameters']} |"


def _cell(figures: Iterable[float]) -> str:
    values = [100 * figure for figure in figures]
    return f"{np.mean(values):.2f} ± {np.std(values):.2f}"
