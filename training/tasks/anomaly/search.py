"""Look for a better recipe within a time, by validation nodes alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from lightning_fabric import Fabric
from rich.progress import Progress

from training.common.results_log import ResultKey, ResultsLog, config_hash
from training.datasets import NodeDataset, Split
from training.tasks.anomaly.configs import HYBRID, WITH_LABELS, node_train_config
from training.tasks.anomaly.task import NodeTrainConfig
from training.tasks.anomaly.train import train_node_scorer

MODELS = ("et", "cdat")

_NETWORK: dict[str, Sequence[Any]] = {
    "hops": (1, 2, 3, 4),
    "bins": (4, 8, 16),
    "hop_bins": (2, 4, 8, 16),
    "encoder": (0, 128, 256, 512),
    "hidden": (64, 256),
    "dropout": (0.2, 0.4, 0.6),
    "state_dropout": (0.0, 0.2, 0.4),
    "distinct": (False, True),
    "steps": (1, 2, 3, 4),
    "blocks": (1, 2),
}
_LOOP: dict[str, Sequence[Any]] = {
    "epochs": (15, 30, 60, 120),
    "learning_rate": (3e-4, 1e-3, 3e-3),
    "weight_decay": (0.0, 0.01, 0.1, 0.3),
    "sparsity": (0.0, 0.03, 0.1, 0.3),
    "batch_nodes": (256, 512, 1024, 2048),
}
_TREES: dict[str, Sequence[Any]] = {
    "rounds": (100, 250, 400),
    "leaves": (7, 15, 31),
    "share": (0.3, 0.5, 1.0),
    "l2": (1.0, 5.0, 20.0),
}
_MOST_CHANGES = 3  # of one recipe
_MOST_TRIALS = 1000  # where time is left, most changes have been tried


@dataclass(frozen=True)
class Trial:
    """A recipe that was tried: what it was, the ROC-AUC of the score on the validation nodes, and
    the seconds that it took."""

    recipe: NodeTrainConfig
    name: str
    value: float
    seconds: float


def search_recipe(
    dataset: NodeDataset,
    split: Split,
    minutes: float,
    log: ResultsLog,
    *,
    models: Sequence[str],
    variants: Sequence[str],
    seed: int,
    fabric: Fabric,
    progress: Progress,
    tell: Callable[[str], None],
    adapt: Callable[[NodeTrainConfig], NodeTrainConfig] = lambda recipe: recipe,
) -> list[Trial]:
    """Train the recipes of `models` and `variants` as they are, then changes of the best so far.

    A recipe is begun if it would end within the time by the longest so far; the first always is.
    The test nodes are not looked at. What `log` has of the same data is not trained again, and
    counts with the time that it took.

    Args:
        minutes: for all of it.
        variants: "none", `HYBRID` or `WITH_LABELS`.
        tell: shows a line for each recipe.
        adapt: what is done to the recipes that it begins with.

    Returns:
        All that were tried, the best first. What cannot be trained is left out, as trees are where
        there are too few frauds.

    Raises:
        ValueError: none of those that it begins with can be trained.
    """
    rng, data = np.random.default_rng(seed), dataset.fingerprint(split)
    edges, trials = dataset.graph.edge_index.shape[1], list[Trial]()

    def describe(recipe: NodeTrainConfig) -> dict[str, Any]:
        run = train_node_scorer(dataset, split, recipe, seed=seed, fabric=fabric, progress=progress)
        evaluation = run.with_labels or run.evaluation
        return {"val_roc_auc": evaluation.parts["val"].roc_auc}

    failed = list[ValueError]()

    def take(name: str, recipe: NodeTrainConfig) -> None:
        key = ResultKey(name, split.name, config_hash([data, seed, recipe.to_dict()]))
        try:
            row = log.get_or_compute(key, partial(describe, recipe))
        except ValueError as error:
            failed.append(error)
            tell(f"{name}: not trained: {error}")
            return
        trials.append(Trial(recipe, name, row["val_roc_auc"], row["seconds"]))
        best = max(trial.value for trial in trials)
        tell(f"{name}: validation ROC-AUC {row['val_roc_auc']:.4f}, best {best:.4f}")

    def has_time() -> bool:
        seconds = [trial.seconds for trial in trials]
        return not trials or sum(seconds) + max(seconds) <= 60 * minutes

    began = [(model, variant) for variant in variants for model in models]
    for model, variant in began:
        if has_time():
            recipe = node_train_config(model, dataset.name, len(split.train), variant, edges=edges)
            take(model if variant == "none" else f"{model}:{variant}", adapt(recipe))
    if not trials:
        raise failed[0]
    tried = [trial.recipe for trial in trials]
    for _ in range(_MOST_TRIALS):
        if not has_time():
            break
        best = max(trials, key=lambda trial: trial.value)
        changed, what = _change(best.recipe, rng)
        if changed in tried:
            continue
        tried.append(changed)
        take(f"{best.name.partition(' ')[0]} {what}", changed)
    return sorted(trials, key=lambda trial: -trial.value)


def list_variants(*, hybrid: bool, labels: bool) -> tuple[str, ...]:
    """Return which variants of a recipe a search begins with."""
    return (WITH_LABELS,) if labels else (HYBRID,) if hybrid else ("none", HYBRID)


def _change(recipe: NodeTrainConfig, rng: np.random.Generator) -> tuple[NodeTrainConfig, str]:
    """Return a recipe with some settings changed, and these as text."""
    space: list[tuple[str, str, Sequence[Any]]] = [("config", *each) for each in _NETWORK.items()]
    space += [("loop", *each) for each in _LOOP.items()]
    if recipe.trees is not None:
        space += [("trees", *each) for each in _TREES.items()]
    if recipe.batch_nodes is None:  # the whole graph in each step: that is what the size asks for
        space = [each for each in space if each[1] != "batch_nodes"]
    names = list[str]()
    for place in rng.permutation(len(space))[: rng.integers(1, _MOST_CHANGES + 1)]:
        where, name, choices = space[place]
        value = choices[rng.integers(len(choices))]
        names.append(f"{name}={value}")
        if where == "config":
            recipe = replace(recipe, config=recipe.config | {name: value})
        elif where == "loop":
            recipe = replace(recipe, **{name: value})
        else:
            assert recipe.trees is not None
            recipe = replace(recipe, trees=replace(recipe.trees, **{name: value}))
    return recipe, " ".join(names)
