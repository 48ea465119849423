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

from training.common.hardware import machines
from training.common.results_log import ResultsLog, mark
from training.datasets.pictures import PictureDataset
from training.tasks.images.configs import recognise_recipe, smoke_pictures
from training.tasks.images.task import RecogniseRecipe
from training.tasks.images.train import config_of, size_of, train_pictures


def run(
    dataset: PictureDataset,
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
    recipes = {model: recognise_recipe(model, dataset.name) for model in models}
    if smoke:
        recipes = {model: smoke_pictures(recipe) for model, recipe in recipes.items()}
    if epochs is not None:
        recipes = {model: replace(recipe, epochs=epochs) for model, recipe in recipes.items()}
    ledger, data = ResultsLog(out, fabric), dataset.fingerprint
    task = progress.add_task(dataset.name, total=len(models) * seeds)
    results: dict[str, list[dict[str, Any]]] = {model: [] for model in models}
    for seed in range(seeds):
        for model, recipe in recipes.items():
            key = model, f"{dataset.split.name}, seed {seed}", mark([data, asdict(recipe)])
            state = out.with_suffix("") / f"{model.replace(':', '-')}-{key[2]}-{seed}"
            make = partial(_row, dataset, recipe, seed, state, fabric, progress)
            results[model].append(ledger.row(key, make))
            progress.advance(task)
    return results


def _row(
    dataset: PictureDataset,
    recipe: RecogniseRecipe,
    seed: int,
    state: Path,
    fabric: Fabric,
    progress: Progress,
) -> dict[str, Any]:
    result = train_pictures(dataset, recipe, seed=seed, fabric=fabric, run=state, progress=progress)
    parts = result.evaluation.parts
    return {
        "dataset": dataset.name,
        "parameters": size_of(config_of(dataset, recipe)),
        "setting": f"{recipe.config}, epoch {result.fitted.best_epoch} of {recipe.epochs}",
        "val": {"accuracy": parts["val"][0].accuracy},
        "seconds": result.fitted.seconds,
        "test": result.by_kind | {"accuracy": parts["test"][0].accuracy},
    }


def markdown(dataset: PictureDataset, results: dict[str, list[dict[str, Any]]]) -> str:
    """The table, with the protocol and the machines under it."""
    columns = [*dataset.names, "accuracy"]
    lines = [
        f"| {dataset.name} | " + " | ".join(columns) + " | parameters |",
        "|---|" + "---|" * (len(columns) + 1),
    ]
    for model, rows in results.items():
        lines.append(line_of(model, rows, columns))
    sizes = ", ".join(f"{len(samples)} {part}" for part, samples in dataset.split.parts().items())
    seeds = len(next(iter(results.values())))
    lines.append(
        f"\nMean ± std in percent over {seeds} seed(s) of the weights; {sizes}. Epoch chosen on "
        f"the validation part, test part measured once, each picture by itself. {dataset.note} "
        f"{machines(row for rows in results.values() for row in rows)}"
    )
    return "\n".join(lines)


def line_of(model: str, rows: Sequence[dict[str, Any]], columns: Sequence[str]) -> str:
    """The line of a model, of a row for each seed."""
    cells = [_cell(row["test"][column] for row in rows) for column in columns]
    return f"| {model} | " + " | ".join(cells) + f" | {rows[0]['parameters']} |"


def _cell(figures: Iterable[float]) -> str:
    values = [100 * figure for figure in figures]
    return f"{np.mean(values):.2f} ± {np.std(values):.2f}"
