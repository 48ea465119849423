"""The table of window completers: energy, transformer, U-Net and nothing, in equal time."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from lightning_fabric import Fabric
from rich.progress import Progress

from training.common.hardware import format_machines, precision_name
from training.common.results_log import ResultsLog, config_hash
from training.tasks.photos.configs import PhotoTrainConfig, photo_train_config
from training.tasks.photos.data import PhotoSet
from training.tasks.photos.masks import KINDS
from training.tasks.photos.train import measure_batch_seconds, train_photo_completer
from training.trainer import count_parameters


def compute_rows(
    photos: PhotoSet,
    cores: Sequence[str],
    seeds: Sequence[int],
    size: str,
    minutes: float,
    out: Path,
    fabric: Fabric,
    progress: Progress,
    *,
    smoke: bool = False,
) -> list[dict[str, Any]]:
    """Each network from each seed; rows of the same recipe in `out` (JSON lines) are kept, and a
    network that was being trained goes on.

    Raises:
        ValueError: for an unknown model or size.
    """
    recipes = {core: photo_train_config(core, size, epochs=1, smoke=smoke) for core in cores}
    ledger = ResultsLog(out, fabric)
    task = progress.add_task(photos.name, total=len(cores) * len(seeds))
    rows: list[dict[str, Any]] = []
    for seed in seeds:
        for core, recipe in recipes.items():
            key = (
                core,
                photos.split.name,
                config_hash([photos.fingerprint, seed, minutes, asdict(recipe)]),
            )
            machine = f"{fabric.device.type}-{precision_name(fabric)}"
            state = out.with_suffix("") / f"{core}-{key[2]}-{machine}"
            make = partial(_row, photos, recipe, seed, minutes, state, fabric, progress)
            rows.append({"model": core} | ledger.get_or_compute(key, make))
            progress.advance(task)
    return rows


def _fit_to_time(
    photos: PhotoSet,
    recipe: PhotoTrainConfig,
    minutes: float,
    state: Path,
    *,
    seed: int,
    fabric: Fabric,
) -> PhotoTrainConfig:
    """As many epochs as take `minutes` on this machine, measured once for a run."""
    timing = state / "timing.json"
    if timing.exists():
        epochs = json.loads(timing.read_text())["epochs"]
    else:
        batch_s = measure_batch_seconds(photos, recipe, seed=seed, fabric=fabric)
        epochs = max(2, round(60 * minutes / (batch_s * recipe.epoch_batches)))
        state.mkdir(parents=True, exist_ok=True)
        timing.write_text(json.dumps({"batch_s": batch_s, "epochs": epochs}))
    return replace(recipe, epochs=epochs, check_every=max(1, epochs // 20))


def _row(
    photos: PhotoSet,
    recipe: PhotoTrainConfig,
    seed: int,
    minutes: float,
    state: Path,
    fabric: Fabric,
    progress: Progress,
) -> dict[str, Any]:
    recipe = _fit_to_time(photos, recipe, minutes, state, seed=seed, fabric=fabric)
    run = train_photo_completer(
        photos, recipe, seed=seed, fabric=fabric, run_folder=state, progress=progress
    )
    return {
        "dataset": photos.name,
        "seed": seed,
        "size": recipe.config["size"],
        "minutes": minutes,
        "seconds": run.result.seconds,
        "setting": f"epoch {run.result.best_epoch} of {recipe.epochs}",
        "windows": recipe.epochs * recipe.epoch_batches * recipe.batch_windows,
        "parameters": count_parameters(run.network),
        "val": run.figures,
    }


def format_table(rows: Sequence[dict[str, Any]]) -> str:
    """A row for each network, means over seeds, with the protocol under them."""
    columns = ["all", *KINDS]
    lines = [
        "| | parameters | windows | " + " | ".join(columns) + " | doubt |",
        "|---|---|---|" + "---|" * (len(columns) + 1),
    ]
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault(row["model"], []).append(row)
    first = rows[0]["val"]
    before = [f"{first[column][0]:.2f}" if column in first else "-" for column in columns]
    lines.append("| Laplace alone | - | - | " + " | ".join(before) + " | - |")
    for model, group in groups.items():
        cells = [_cell([row["val"][c][1] for row in group if c in row["val"]]) for c in columns]
        doubt = _cell([row["val"]["doubt"] for row in group])
        windows = sum(row["windows"] for row in group) // len(group)
        head = f"| {model} | {group[0]['parameters']} | {windows} | "
        lines.append(head + " | ".join(cells) + f" | {doubt} |")
    seeds = len(rows) // len(groups)
    lines.append("")
    lines.append(
        f"PSNR over the hole in dB, mean over windows of {rows[0]['size']} pixels of the "
        f"photographs to choose by; mean ± half the range over {seeds} seed(s). "
        f"{rows[0]['minutes']:g} minutes of training each. {format_machines(rows)}"
    )
    return "\n".join(lines)


def _cell(values: Sequence[float]) -> str:
    if not values:
        return "-"
    mean = sum(values) / len(values)
    spread = f" ± {(max(values) - min(values)) / 2:.2f}" if len(values) > 1 else ""
    return f"{mean:.2f}{spread}"
