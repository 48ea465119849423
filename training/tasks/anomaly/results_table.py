"""The tables of the README: every model on every split, in one resumable command."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from lightning_fabric import Fabric
from rich.progress import Progress

from models.inputs.features import NodeFeatures
from models.inputs.graph_batch import pack
from training.common.hardware import machines
from training.common.results_log import ResultsLog, mark
from training.datasets import NodeDataset, Split
from training.tasks.anomaly.baselines import GRAPH_BASELINES, TREES, fit_trees
from training.tasks.anomaly.configs import node_recipe
from training.tasks.anomaly.evaluate import evaluate
from training.tasks.anomaly.task import NodeRecipe
from training.tasks.anomaly.train import config_of, train_nodes
from training.trainer import parameters

COLUMNS = ("roc_auc", "pr_auc", "macro_f1", "recall_at_k")
_TITLES = {
    "roc_auc": "ROC-AUC",
    "pr_auc": "PR-AUC",
    "macro_f1": "macro-F1",
    "recall_at_k": "recall@k",
}
ARCHITECTURES = ("cdat", "et")


def run(
    dataset: NodeDataset,
    splits: Iterable[Split],
    models: Iterable[str],
    out: Path,
    fabric: Fabric,
    progress: Progress,
) -> dict[str, list[dict[str, Any]]]:
    """Train each model on each split; results of the same recipe in `out` (JSON lines) are kept."""
    ledger, models, splits = ResultsLog(out, fabric), list(models), list(splits)
    known = {*ARCHITECTURES, *GRAPH_BASELINES, *TREES}
    if unknown := [m for m in models if m.partition(":")[0] not in known]:
        raise ValueError(f"unknown model {unknown[0]!r}; known are {', '.join(sorted(known))}")
    task = progress.add_task(dataset.name, total=len(models) * len(splits))
    results: dict[str, list[dict[str, Any]]] = {model: [] for model in models}
    for split in splits:
        data = dataset.fingerprint(split)
        for model in models:
            chosen = _recipe_of(model, dataset, split)
            make = partial(_row, dataset, split, model, chosen, fabric, progress)
            key = model, split.name, _mark(model, chosen, data)
            results[model].append(ledger.row(key, make))
            progress.advance(task)
    return results


def _recipe_of(model: str, dataset: NodeDataset, split: Split) -> NodeRecipe:
    """An architecture's own recipe (`cdat:no-w` is an ablation); a baseline gets CDAT's."""
    base, _, ablation = model.partition(":")
    known = base if base in ARCHITECTURES else "cdat"
    edges = dataset.graph.edge_index.shape[1]
    return node_recipe(known, dataset.name, len(split.train), ablation or "none", edges=edges)


def _mark(model: str, chosen: NodeRecipe, data: str) -> str:
    """What a result depends on beside its model and split: kept results are those of the same."""
    return mark([data, {"hops": _tree_hops(chosen)} if model in TREES else asdict(chosen)])


def _tree_hops(chosen: NodeRecipe) -> int:
    """Trees get means over two hops at least: few as they need, none are too many for them."""
    return max(2, chosen.config["hops"])


def _row(
    dataset: NodeDataset,
    split: Split,
    model: str,
    chosen: NodeRecipe,
    fabric: Fabric,
    progress: Progress,
) -> dict[str, Any]:
    if model in TREES:
        config = config_of(dataset, chosen)
        batch = pack([dataset.graph], relations=len(dataset.relations))
        hops = _tree_hops(chosen)
        features = NodeFeatures(len(dataset.features), hops, config.bins, config.hop_bins)
        table = features.table(batch).numpy()
        logits, val, setting = fit_trees(table, dataset.labels, split, 0, (model,))[model]
        evaluation = evaluate(logits, dataset.labels, split)
    else:
        baseline = model if model in GRAPH_BASELINES else None
        result = train_nodes(
            dataset, split, chosen, seed=0, fabric=fabric, baseline=baseline, progress=progress
        )
        size = parameters(result.fitted.network)
        evaluation, val = result.evaluation, result.fitted.best_val
        setting = f"epoch {result.fitted.best_epoch}, {size} parameters"
    return {
        "dataset": dataset.name,
        "val_roc_auc": val,
        "setting": setting,
        "test": evaluation.parts["test"].as_dict(),
    }


def markdown(dataset: NodeDataset, protocol: str, results: dict[str, list[dict[str, Any]]]) -> str:
    """The table, with the protocol and the machines under it."""
    lines = [
        f"| {dataset.name}, {protocol} | " + " | ".join(_TITLES[c] for c in COLUMNS) + " |",
        "|---|" + "---|" * len(COLUMNS),
    ]
    lines += [line_of(model, rows) for model, rows in results.items()]
    count = len(next(iter(results.values())))
    lines.append(
        f"\nMean ± std in percent over {count} splits; epoch, setting, calibration and threshold "
        f"chosen on each split's validation nodes. {dataset.note or ''} "
        f"{machines(row for rows in results.values() for row in rows)}"
    )
    return "\n".join(lines)


def line_of(model: str, rows: Sequence[dict[str, Any]]) -> str:
    """The line of a model: mean and deviation of each figure over its rows."""
    cells = []
    for column in COLUMNS:
        values = 100 * np.array([row["test"][column] for row in rows])
        cells.append(f"{values.mean():.2f} ± {values.std():.2f}")
    return f"| {model} | " + " | ".join(cells) + " |"
