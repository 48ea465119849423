"""The tables of graph classification: every model on every fold, in one resumable command."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from lightning_fabric import Fabric
from rich.progress import Progress

from training.common.hardware import format_machines
from training.common.results_log import ResultsLog, config_hash
from training.datasets import GraphDataset, Split
from training.metrics import ClassifierEvaluation, evaluate_classifier
from training.tasks.classify.baselines import BASELINE_NETWORKS, FOREST, fit_forest
from training.tasks.classify.configs import (
    as_published_config,
    candidate_configs,
    graph_train_config,
    smoke_graph_config,
)
from training.tasks.classify.task import GraphTrainConfig
from training.tasks.classify.train import train_and_select
from training.trainer import count_parameters

COLUMNS = {"accuracy": "accuracy", "macro_f1": "macro-F1", "roc_auc": "ROC-AUC"}
OURS = ("cdat", "et")


def recipes_of(
    model: str, dataset: GraphDataset, split: Split, *, smoke: bool = False
) -> tuple[GraphTrainConfig, ...]:
    """What a split chooses among: the settings, or the one that fits what it is measured on."""
    if model == FOREST:
        return ()
    chosen = graph_train_config(model, dataset.name, molecules=dataset.smiles is not None)
    if smoke:
        return (smoke_graph_config(chosen),)
    if split.name == "as-published":
        return (as_published_config(chosen, dataset.name),)
    return candidate_configs(chosen)


def compute_rows(
    dataset: GraphDataset,
    splits: Sequence[Split],
    models: Sequence[str],
    out: Path,
    fabric: Fabric,
    progress: Progress,
    *,
    seeds: int = 1,
    smoke: bool = False,
) -> dict[str, list[dict[str, Any]]]:
    """Each model on each split, `seeds` seeds each; results of the same recipes in `out` (JSON
    lines) are kept.

    Raises:
        ValueError: for an unknown model.
    """
    known = (*OURS, *BASELINE_NETWORKS, FOREST)
    if unknown := [model for model in models if model not in known]:
        raise ValueError(f"unknown model {unknown[0]!r}; known are {', '.join(known)}")
    ledger = ResultsLog(out, fabric)
    task = progress.add_task(dataset.name, total=len(models) * len(splits) * seeds)
    results: dict[str, list[dict[str, Any]]] = {model: [] for model in models}
    for seed, split in product(range(seeds), splits):
        data = dataset.fingerprint(split)
        named = f"{split.name}, seed {seed}" if seed else split.name
        for model in models:
            recipes = recipes_of(model, dataset, split, smoke=smoke)
            key = model, named, config_hash([data, *(asdict(recipe) for recipe in recipes)])
            make = partial(_row, dataset, split, model, recipes, seed, fabric, progress)
            results[model].append(ledger.get_or_compute(key, make))
            progress.advance(task)
    return results


def _row(
    dataset: GraphDataset,
    split: Split,
    model: str,
    recipes: Sequence[GraphTrainConfig],
    seed: int,
    fabric: Fabric,
    progress: Progress,
) -> dict[str, Any]:
    evaluation: ClassifierEvaluation
    if model == FOREST:
        logits = fit_forest(dataset, split, seed=seed)
        evaluation = evaluate_classifier(logits, dataset.labels, split, dataset.tasks)
        setting = "500 trees"
    else:
        best = train_and_select(
            dataset, split, recipes, seed=seed, fabric=fabric, progress=progress
        )
        evaluation = best.evaluation
        size = count_parameters(best.network)
        setting = f"{best.train_config.config}, epoch {best.result.best_epoch}, {size} parameters"
    return {
        "dataset": dataset.name,
        "setting": setting,
        **{part: {c: evaluation.mean(part, c) for c in COLUMNS} for part in ("val", "test")},
    }


def format_table(
    dataset: GraphDataset, protocol: str, results: dict[str, list[dict[str, Any]]]
) -> str:
    """The table, with the protocol and the machines under it."""
    lines = [
        f"| {dataset.name}, {protocol} | " + " | ".join(COLUMNS.values()) + " |",
        "|---|" + "---|" * len(COLUMNS),
    ]
    lines += [format_row(model, rows) for model, rows in results.items()]
    rows = next(iter(results.values()))
    count = f"{len({row['split'].partition(', seed')[0] for row in rows})} split(s)"
    if any(", seed" in row["split"] for row in rows):
        count = f"{len(rows)} runs of {count}, from other weights"
    how = (
        "Measured on the graphs the models were trained on: capacity, not accuracy."
        if protocol == "as-published"
        else "Epoch and setting chosen inside each training part; each test part measured once."
    )
    lines.append(
        f"\nMean ± std in percent over {count}. {how} {dataset.note} "
        f"{format_machines(row for rows in results.values() for row in rows)}"
    )
    return "\n".join(lines)


def format_row(model: str, rows: Sequence[dict[str, Any]]) -> str:
    """The line of `model` in a table of Markdown."""
    cells = [_cell(row["test"][column] for row in rows) for column in COLUMNS]
    return f"| {model} | " + " | ".join(cells) + " |"


def _cell(figures: Iterable[float | None]) -> str:
    values = [100 * figure for figure in figures if figure is not None]
    if len(values) == 1:
        return f"{values[0]:.2f}"
    return f"{np.mean(values):.2f} ± {np.std(values):.2f}" if values else "-"
