"""The table of window completers: energy, transformer, U-Net and nothing, in equal time."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from lightning_fabric import Fabric
from rich.progress import Progress

from training.common.hardware import format_machines, precision_name
from training.common.results_log import ResultKey, ResultRow, ResultsLog, config_hash
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
) -> dict[str, list[ResultRow]]:
    """Each network from each seed, by network; rows of the same recipe in `out` (JSON lines) are
    kept, and a network that was being trained goes on.

    Raises:
        ValueError: for an unknown model or size.
    """
    recipes = {core: photo_train_config(core, size, smoke=smoke) for core in cores}
    machine = f"{fabric.device.type}-{precision_name(fabric)}"
    jobs: list[tuple[ResultKey, Callable[[], ResultRow]]] = []
    for seed in seeds:
        for core, recipe in recipes.items():
            recipe_hash = config_hash([photos.fingerprint, seed, minutes, asdict(recipe)])
            state = out.with_suffix("") / f"{core}-{recipe_hash}-{machine}"
            make = partial(_row, photos, recipe, seed, minutes, state, fabric, progress)
            jobs.append((ResultKey(core, photos.split.name, recipe_hash), make))
    return ResultsLog(out, fabric).get_or_compute_all(jobs, progress, photos.name)


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


def format_table(results: Mapping[str, Sequence[ResultRow]]) -> str:
    """A row for each network, means over seeds, with the protocol under them."""
    names = ["all", *(kind.replace(" ", "_") for kind in KINDS)]
    titles = [name.replace("_", " ") for name in names]
    lines = [
        "| | parameters | windows | " + " | ".join(titles) + " | doubt |",
        "|---|---|---|" + "---|" * (len(names) + 1),
    ]
    rows = [row for group in results.values() for row in group]
    before = [_cell(rows[:1], f"prefill_psnr_{name}") for name in names]
    lines.append("| Laplace alone | - | - | " + " | ".join(before) + " | - |")
    for model, group in results.items():
        cells = [_cell(group, f"psnr_{name}") for name in names]
        windows = sum(row["windows"] for row in group) // len(group)
        head = f"| {model} | {group[0]['parameters']} | {windows} | "
        lines.append(head + " | ".join([*cells, _cell(group, "doubt")]) + " |")
    lines.append("")
    lines.append(
        f"PSNR over the hole in dB, mean over windows of {rows[0]['size']} pixels of the "
        f"validation photographs; mean ± half the range over {len(rows) // len(results)} seed(s). "
        f"{rows[0]['minutes']:g} minutes of training each. {format_machines(rows)}"
    )
    return "\n".join(lines)


def _cell(rows: Sequence[ResultRow], name: str) -> str:
    values = [row["val"][name] for row in rows if name in row["val"]]
    if not values:
        return "-"
    mean = sum(values) / len(values)
    spread = f" ± {(max(values) - min(values)) / 2:.2f}" if len(values) > 1 else ""
    return f"{mean:.2f}{spread}"
