"""The tables of the README: every model on every split, in one resumable command."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from lightning_fabric import Fabric
from rich.progress import Progress

from models.inputs.features import NodeFeatures
from models.inputs.graph_batch import pack_graphs
from training.common.hardware import format_machines
from training.common.results_log import ResultsLog, config_hash
from training.datasets import NodeDataset, Split
from training.tasks.anomaly.baselines import BAG, GRAPH_BASELINES, TREE_MODELS, fit_bag, fit_trees
from training.tasks.anomaly.configs import (
    HYBRID,
    WITH_LABELS,
    TableModel,
    node_train_config,
)
from training.tasks.anomaly.evaluate import NodeEvaluation, evaluate_nodes
from training.tasks.anomaly.neighbor_labels import append_label_columns
from training.tasks.anomaly.stacked_trees import BoostingConfig
from training.tasks.anomaly.task import NodeTrainConfig
from training.tasks.anomaly.train import NodeRun, network_config, train_node_scorer
from training.trainer import count_parameters

_MUCH_TO_TEST = 10  # test nodes for each that is trained on
COLUMNS = ("roc_auc", "pr_auc", "macro_f1", "recall_at_k")
_TITLES = {
    "roc_auc": "ROC-AUC",
    "pr_auc": "PR-AUC",
    "macro_f1": "macro-F1",
    "recall_at_k": "recall@k",
}
ARCHITECTURES = ("cdat", "et")


def compute_rows(
    dataset: NodeDataset,
    splits: Iterable[Split],
    models: Iterable[str],
    out: Path,
    fabric: Fabric,
    progress: Progress,
) -> dict[str, list[dict[str, Any]]]:
    """Train each model on each split; results of the same recipe in `out` (JSON lines) are kept.

    A hybrid that is wanted with labels of neighbours and without is trained once: it scores both.
    """
    ledger, models, splits = ResultsLog(out, fabric), list(models), list(splits)
    parsed = {name: TableModel.from_name(name) for name in models}
    known = {*ARCHITECTURES, *GRAPH_BASELINES, *TREE_MODELS, BAG}
    if unknown := [name for name, model in parsed.items() if model.base not in known]:
        raise ValueError(f"unknown model {unknown[0]!r}; known are {', '.join(sorted(known))}")
    for model in parsed.values():
        _require_variant(model)
    task = progress.add_task(dataset.name, total=len(models) * len(splits))
    results: dict[str, list[dict[str, Any]]] = {model: [] for model in models}
    for split in splits:
        data, trained = dataset.fingerprint(split), dict[TableModel, NodeRun]()
        for name, model in parsed.items():
            chosen = _recipe_of(model, dataset, split)
            both = replace(model, variant=WITH_LABELS)
            if model.base in (*TREE_MODELS, BAG):
                make = partial(_tree_row, dataset, split, model, chosen)
            else:
                shares = model.variant in (HYBRID, WITH_LABELS) and both in parsed.values()
                recipe = _recipe_of(both, dataset, split) if shares else chosen
                make = partial(
                    *(_network_row, dataset, split, model, recipe),
                    *(trained if shares else {}, fabric, progress),
                )
            key = name, split.name, _mark(model, chosen, data)
            results[name].append(ledger.get_or_compute(key, make))
            progress.advance(task)
    return results


def _require_variant(model: TableModel) -> None:
    """Check that there is such a variant of a baseline; those of architectures are checked where
    their recipes are made."""
    base, variant = model.base, model.variant
    variants = (HYBRID, WITH_LABELS) if base in GRAPH_BASELINES else ()
    variants = (WITH_LABELS,) if base == BAG else variants
    if variant and base not in ARCHITECTURES and variant not in variants:
        known = f"known are {', '.join(variants)}" if variants else "it has none"
        raise ValueError(f"{model}: unknown variant {variant!r} of {base}; {known}")
    if model.members > 1 and base in (*TREE_MODELS, BAG):
        raise ValueError(f"{model}: ensembles are of networks; leave out *{model.members}")


def _recipe_of(model: TableModel, dataset: NodeDataset, split: Split) -> NodeTrainConfig:
    """An architecture's own recipe (`cdat:no-w` is an ablation, `et:hybrid` has trees); a baseline
    gets CDAT's, the bag that of a hybrid."""
    known = model.base if model.base in ARCHITECTURES else "cdat"
    variant = model.variant or (HYBRID if model.base == BAG else "none")
    edges = dataset.graph.edge_index.shape[1]
    recipe = node_train_config(known, dataset.name, len(split.train), variant, edges=edges)
    if model.base == BAG:
        recipe = replace(recipe, trees=BoostingConfig())  # it is tuned, whatever a hybrid has
    return replace(recipe, members=model.members)


def _mark(model: TableModel, chosen: NodeTrainConfig, data: str) -> str:
    """What a result depends on beside its model and split: kept results are those of the same."""
    return config_hash(
        [data, {"hops": _tree_hops(chosen)} if model.base in TREE_MODELS else chosen.to_dict()]
    )


def _tree_hops(chosen: NodeTrainConfig) -> int:
    """Trees get means over two hops at least: few as they need, none are too many for them."""
    return max(2, chosen.config["hops"])


def _tree_row(
    dataset: NodeDataset, split: Split, model: TableModel, chosen: NodeTrainConfig
) -> dict[str, Any]:
    config = network_config(dataset, chosen)
    batch = pack_graphs(
        [dataset.graph],
        num_relations=len(dataset.relations),
        edge_features=len(dataset.edge_features),
    )
    features = NodeFeatures(
        *(len(dataset.features), _tree_hops(chosen), config.bins, config.hop_bins),
        deviation_hops=config.deviation_hops,
    )
    table = features.compute_table(batch).numpy()
    if model.base in TREE_MODELS:
        logits, val, setting = fit_trees(table, dataset.labels, split, 0, (model.base,))[model.base]
    else:
        is_exact_C = features.mark_means(len(dataset.relations))
        if chosen.labels:
            table = append_label_columns(table, batch, dataset.labels, split)
        logits, val, setting = fit_bag(table, dataset.labels, split, 0, is_exact_C)
    evaluation = evaluate_nodes(logits, dataset.labels, split)
    return _to_row(dataset, evaluation, val, setting)


def _network_row(
    dataset: NodeDataset,
    split: Split,
    model: TableModel,
    recipe: NodeTrainConfig,
    trained: dict[TableModel, NodeRun],
    fabric: Fabric,
    progress: Progress,
) -> dict[str, Any]:
    """The row of a network, of which `trained` has those of the same recipe by their name without
    a variant."""
    key = replace(model, variant="")
    if key not in trained:
        baseline = model.base if model.base in GRAPH_BASELINES else None
        trained[key] = train_node_scorer(
            dataset, split, recipe, seed=0, fabric=fabric, baseline=baseline, progress=progress
        )
    run = trained[key]
    size = count_parameters(run.result.network)
    evaluation = run.with_labels if model.variant == WITH_LABELS else run.evaluation
    assert evaluation is not None
    setting = f"epoch {run.result.best_epoch}, {size} parameters"
    return _to_row(dataset, evaluation, run.result.best_val, setting)


def _to_row(
    dataset: NodeDataset, evaluation: NodeEvaluation, val: float, setting: str
) -> dict[str, Any]:
    return {
        "dataset": dataset.name,
        "val_roc_auc": val,
        "setting": setting,
        "test": evaluation.parts["test"].to_dict(),
    }


def format_table(
    dataset: NodeDataset, protocol: str, results: dict[str, list[dict[str, Any]]]
) -> str:
    """The table, with the protocol and the machines under it."""
    lines = [
        f"| {dataset.name}, {protocol} | " + " | ".join(_TITLES[c] for c in COLUMNS) + " |",
        "|---|" + "---|" * len(COLUMNS),
    ]
    lines += [format_row(model, rows) for model, rows in results.items()]
    count = len(next(iter(results.values())))
    lines.append(
        f"\nMean ± std in percent over {count} splits; epoch, setting, calibration and threshold "
        f"chosen on each split's validation nodes. {dataset.note or ''} "
        f"{format_machines(row for rows in results.values() for row in rows)}"
    )
    return "\n".join(lines)


def format_differences(
    results: dict[str, list[dict[str, Any]]], base: str, splits: Sequence[Split]
) -> str:
    """A table of each model's figures minus those of `base`, split by split: the mean and its
    error.

    The error is sqrt(1 / k + test / train) times the deviation over the k splits (Nadeau and
    Bengio, Inference for the Generalization Error, 2003): the splits share nodes, so that the
    deviation over sqrt(k) alone would be too small. Where few nodes are trained on, as 1 %, the
    training parts hardly share any and that estimate, made for small test parts, does not hold: the
    error is the deviation over sqrt(k) there, of the draw of training nodes.
    """
    shared = float(np.mean([len(split.test) / len(split.train) for split in splits]))
    shared = shared if shared < _MUCH_TO_TEST else 0.0
    factor = np.sqrt(1 / len(splits) + shared)
    lines = [
        f"| minus {base} | " + " | ".join(_TITLES[c] for c in COLUMNS) + " |",
        "|---|" + "---|" * len(COLUMNS),
    ]
    for model, rows in results.items():
        if model == base:
            continue
        cells = []
        for column in COLUMNS:
            pairs = zip(rows, results[base], strict=True)
            values = [100 * (row["test"][column] - other["test"][column]) for row, other in pairs]
            error = factor * np.std(values, ddof=1) if len(values) > 1 else np.nan
            cells.append(f"{np.mean(values):+.2f} ± {error:.2f}")
        lines.append(f"| {model} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def format_row(model: str, rows: Sequence[dict[str, Any]]) -> str:
    """The line of a model: mean and deviation of each figure over its rows."""
    cells = []
    for column in COLUMNS:
        values = 100 * np.array([row["test"][column] for row in rows])
        cells.append(f"{values.mean():.2f} ± {values.std():.2f}")
    return f"| {model} | " + " | ".join(cells) + " |"
