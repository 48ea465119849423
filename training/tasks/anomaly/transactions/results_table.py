"""The table of a split by time: energy models, networks and trees on the same features."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from lightning_fabric import Fabric
from rich.progress import Progress
from sklearn.metrics import average_precision_score

from training.common.hardware import format_machines
from training.common.results_log import ResultKey, ResultRow, ResultsLog, config_hash
from training.datasets.transactions import DescribedTransactions
from training.tasks.anomaly.baselines import GRAPH_BASELINES, TREE_MODELS, list_trees
from training.tasks.anomaly.configs import DYNAMICS, HYBRID, TableModel
from training.tasks.anomaly.decisions import DecisionRule
from training.tasks.anomaly.task import NodeTrainConfig
from training.tasks.anomaly.transactions.train import (
    BUDGET,
    TransactionEvaluation,
    evaluate,
    train_transaction_scorer,
    transaction_train_config,
)
from training.trainer import count_parameters

MODELS = (*DYNAMICS, *GRAPH_BASELINES, *TREE_MODELS)
_AT_A_TIME = 4096
_COLUMNS = {
    "roc_auc": "ROC-AUC",
    "pr_auc": "PR-AUC",
    "precision_at_1_percent": "precision@1%",
    "recall_at_1_percent": "recall@1%",
}


def compute_rows(
    described: DescribedTransactions,
    models: Sequence[str],
    seeds: Sequence[int],
    out: Path,
    fabric: Fabric,
    progress: Progress,
    *,
    smoke: bool = False,
) -> dict[str, list[ResultRow]]:
    """Train each model from each seed; results of the same recipe in `out` (JSON lines) are kept.

    Raises:
        ValueError: for an unknown model.
    """
    parsed = [TableModel.from_name(name) for name in models]
    for model in parsed:
        _require_known(model)
    data = [described.fingerprint, described.recipe.model_dump(mode="json")]
    jobs: list[tuple[ResultKey, Callable[[], ResultRow]]] = []
    for seed in seeds:
        for model in parsed:
            config = _recipe(described, model, smoke)
            recipe = "trees" if model.base in TREE_MODELS else config.to_dict()
            mark = config_hash([data, seed, recipe, smoke])
            key = ResultKey(str(model), described.split.name, mark)
            make = partial(_compute_row, described, model, seed, fabric, progress, smoke)
            jobs.append((key, make))
    return ResultsLog(out, fabric).get_or_compute_all(jobs, progress, described.data.name)


def _require_known(model: TableModel) -> None:
    networks = *DYNAMICS, *GRAPH_BASELINES
    known = (*MODELS, *(f"{network}:{HYBRID}" for network in networks))
    kind = str(replace(model, members=1))
    if kind not in known:
        raise ValueError(f"unknown model {kind!r}; known are {', '.join(known)}")
    if model.members > 1 and model.base not in networks:
        raise ValueError(f"{model}: ensembles are of networks; leave out *{model.members}")


def _recipe(described: DescribedTransactions, model: TableModel, smoke: bool) -> NodeTrainConfig:
    """An architecture's own recipe; a baseline gets CDAT's."""
    known = model.base if model.base in DYNAMICS else "cdat"
    num_train, unit = len(described.split.train), described.targets.unit
    is_hybrid = model.variant == HYBRID
    recipe = transaction_train_config(known, num_train, unit, hybrid=is_hybrid, smoke=smoke)
    return replace(recipe, members=model.members)


def _compute_row(
    described: DescribedTransactions,
    model: TableModel,
    seed: int,
    fabric: Fabric,
    progress: Progress,
    smoke: bool,
) -> ResultRow:
    rule = DecisionRule("budget", BUDGET)
    if model.base in TREE_MODELS:
        evaluation, val, setting = _fit_trees(described, model.base, seed, rule, smoke)
    else:
        config, base = _recipe(described, model, smoke), model.base
        run = train_transaction_scorer(
            described,
            config,
            seed=seed,
            fabric=fabric,
            rule=rule,
            baseline=None if base in DYNAMICS else base,
            progress=progress,
        )
        evaluation, val = run.evaluation, run.result.best_val
        size = count_parameters(run.result.network)
        setting = f"epoch {run.result.best_epoch}, {size} parameters"
    return {
        "dataset": described.data.name,
        "seed": seed,
        "val_pr_auc": val,
        "setting": setting,
        "test": evaluation.parts["test"].to_dict(),
    }


def _fit_trees(
    described: DescribedTransactions, kind: str, seed: int, rule: DecisionRule, smoke: bool
) -> tuple[TransactionEvaluation, float, str]:
    """Trees on a target's features alone, and on them beside the means over the earlier
    transactions that it is linked with; the better by validation PR-AUC."""
    measured, labels = described.measured, described.targets.labels
    best: tuple[float, str, TransactionEvaluation] | None = None
    for name, select in (
        ("own", lambda rows: described.describe(rows)[:, described.recipe.own_features]),
        ("own and linked", partial(_append_means, described)),
    ):
        tables = {part: select(rows) for part, rows in measured.items()}
        y = labels[measured["train"]]
        weight = np.where(y == 1, (y == 0).sum() / (y == 1).sum(), 1.0)
        candidates = list_trees(kind, len(y), seed)
        for trees in candidates[:1] if smoke else candidates:
            trees.fit(tables["train"], y, sample_weight=weight)
            logits = {part: _predict_logits(trees, table) for part, table in tables.items()}
            value = float(average_precision_score(labels[measured["val"]], logits["val"]))
            if best is None or value > best[0]:
                population = _predict_logits(trees, select(described.population))
                evaluation = evaluate(described, logits, population, rule)
                best = value, f"{trees!r}, features {name}", evaluation
    assert best is not None
    return best[2], best[0], best[1]


def _append_means(described: DescribedTransactions, rows: np.ndarray) -> np.ndarray:
    """Features of targets beside their means over what is linked with them, (n, F)."""
    own_features = described.recipe.own_features
    linked_features = slice(own_features.start or None)  # of accounts those of transactions
    parts = []
    for start in range(0, len(rows), _AT_A_TIME):
        graph, own = described.build_graph(rows[start : start + _AT_A_TIME])
        source, target = graph.edge_index
        place = np.full(graph.num_nodes, -1)
        place[own] = np.arange(len(own))
        source, place = source[place[target] >= 0], place[target][place[target] >= 0]
        linked = graph.x[source, linked_features]
        sums = np.zeros((len(own), linked.shape[1]))
        np.add.at(sums, place, linked)
        counts = np.maximum(np.bincount(place, minlength=len(own)), 1)[:, None]
        means = (sums / counts).astype(np.float32)
        parts.append(np.concatenate([graph.x[own][:, own_features], means], 1))
    return np.concatenate(parts)


def _predict_logits(trees: Any, table: np.ndarray) -> np.ndarray:
    p = trees.predict_proba(table)[:, 1].clip(1e-6, 1 - 1e-6)
    return np.log(p / (1 - p))


def format_table(
    described: DescribedTransactions, results: Mapping[str, Sequence[ResultRow]]
) -> str:
    """The table in Markdown, with the protocol and the machines under it."""
    lines = [
        f"| {described.data.name}, {described.targets.unit}, split {described.split.name} | "
        + " | ".join(_COLUMNS.values())
        + " | val |",
        "|---|" + "---|" * (len(_COLUMNS) + 1),
    ]
    for model, rows in results.items():
        cells = [_cell([row["test"][name] for row in rows]) for name in _COLUMNS]
        cells.append(_cell([row["val_pr_auc"] for row in rows]))
        lines.append(f"| {model} | " + " | ".join(cells) + " |")
    measured, unit = described.measured, described.targets.unit
    count = len(next(iter(results.values())))
    lines.append(
        f"\nTest part: {len(measured['test'])} labelled {unit}. Mean ± std in "
        f"percent over {count} seeds; epoch, trees, calibration and threshold by the validation "
        f"part ({len(measured['val'])}), whose PR-AUC is the last column. {described.data.note} "
        f"{format_machines(row for rows in results.values() for row in rows)}"
    )
    return "\n".join(lines)


def _cell(values: Sequence[float]) -> str:
    percent = 100 * np.array(values)
    return f"{percent.mean():.2f} ± {percent.std():.2f}"
