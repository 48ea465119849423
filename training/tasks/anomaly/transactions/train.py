"""One network, or trees, on a table of transactions, to the figures."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from lightning_fabric import Fabric
from rich.progress import Progress

from models.inputs.graph import Graph
from models.inputs.tree_ensemble import TreeEnsemble
from models.manifest import Calibration, Decision
from models.registry import find_architectures
from models.tasks.node_config import NodeConfig
from models.tasks.node_scorer import NodeScorer
from training.datasets.nodes import Split, draw_sample
from training.datasets.transactions import DescribedTransactions
from training.tasks.anomaly.configs import DYNAMICS
from training.tasks.anomaly.decisions import DecisionRule, Population, choose_threshold
from training.tasks.anomaly.ensemble import fit_members, list_seeds
from training.tasks.anomaly.evaluate import NodeMetrics, compute_node_metrics, fit_calibration
from training.tasks.anomaly.stacked_trees import (
    BoostingConfig,
    fit_part_weights,
    fit_stacked_trees,
)
from training.tasks.anomaly.task import NodeTrainConfig
from training.tasks.anomaly.transactions.task import TransactionTrainingTask
from training.trainer import TrainResult

_FEW_ROWS = 50_000  # labelled, to train on
_FITTED_ROWS = 50_000  # whose quantiles are the bins of the features
_TREE_ROWS = 200_000  # that trees are fitted to
_PERIODS = 5
BUDGET = 0.01  # share of targets that `TransactionMetrics` looks at


@dataclass(frozen=True)
class TransactionMetrics:
    """Figures on one part, and of its `BUDGET` with the highest scores."""

    all: NodeMetrics
    precision_at_budget: float
    recall_at_budget: float

    def to_dict(self) -> dict[str, float]:
        return self.all.to_dict() | {
            "precision_at_1_percent": self.precision_at_budget,
            "recall_at_1_percent": self.recall_at_budget,
        }


@dataclass(frozen=True)
class PeriodMetrics:
    """Labelled targets from one time to another: is the probability what it says, and how many
    alerts does the threshold make?"""

    begin: float
    end: float
    labelled: int
    fraud_share: float
    mean_probability: float
    alert_share: float


@dataclass(frozen=True)
class TransactionEvaluation:
    """Calibration and decision from validation, and the figures they give on each part.

    `by_time` are those of the test part, in order of time.
    """

    calibration: Calibration
    decision: Decision
    parts: dict[str, TransactionMetrics]
    by_time: tuple[PeriodMetrics, ...]


@dataclass(frozen=True)
class TransactionRun:
    """A fitted network and its evaluation."""

    result: TrainResult
    evaluation: TransactionEvaluation
    network: NodeScorer
    train_config: NodeTrainConfig


def transaction_train_config(
    model: str,
    train_rows: int,
    unit: str = "transactions",
    *,
    hybrid: bool = False,
    smoke: bool = False,
) -> NodeTrainConfig:
    """The recipe of `model` ("cdat" or "et"), by the number of labelled targets to train on, and
    whether they are transactions or accounts, of which there are fewer to a table.

    Features of the neighbours are in the series of each transaction, so none are averaged. With few
    rows the network is small and its training short: what it learns beyond that does not last until
    the validation part (docs/decisions/0034-transactions.md). A `hybrid` has boosted trees on the
    features of the target itself.

    Raises:
        ValueError: for an unknown model.
    """
    if model not in DYNAMICS:
        raise ValueError(f"unknown model {model!r}; known are {', '.join(DYNAMICS)}")
    small = {"dim": 16, "heads": 2, "head_dim": 8, "memories": 16, "hidden": 16, "encoder": 16}
    large = {"dim": 64, "heads": 4, "head_dim": 16, "memories": 128, "hidden": 64, "encoder": 128}
    few = smoke or train_rows < _FEW_ROWS
    are_accounts = unit == "accounts"
    config = {
        **{"hops": 0, "bins": 16, "self_loops": True, "dropout": 0.4, "state_dropout": 0.2},
        **{"blocks": 1, "steps": 2},
        **(small if few else large),
    }
    return NodeTrainConfig(
        model,
        DYNAMICS[model] | config,
        epochs=2 if smoke else 4 if few and not are_accounts else 12,
        learning_rate=1e-3,
        weight_decay=0.1,
        batch_nodes=128 if are_accounts else 512,
        trees=BoostingConfig() if hybrid else None,
        check_every=1,
    )


def train_transaction_scorer(
    described: DescribedTransactions,
    recipe: NodeTrainConfig,
    *,
    seed: int,
    fabric: Fabric,
    rule: DecisionRule | None = None,
    baseline: str | None = None,
    run_folder: Path | None = None,
    progress: Progress | None = None,
) -> TransactionRun:
    """Fit an architecture; `baseline` names a network to train in its stead, on the same features
    and neighbourhoods with the same loop.

    Raises:
        ValueError: a part of the split has targets of one label only.
    """
    split, labels = described.split, described.targets.labels
    split.require_both_labels(labels)
    Split(split.name, **described.measured).require_both_labels(labels)
    kind = cast(type[NodeScorer], find_architectures()[recipe.model])
    values: dict[str, Any] = {"features": described.recipe.features}
    config = cast(NodeConfig, kind.config_type.model_validate(values | recipe.config))
    rows = described.fitted
    if len(rows) > _FITTED_ROWS:
        rows = np.sort(np.random.default_rng(seed).choice(rows, _FITTED_ROWS, replace=False))
    x_NF = described.history.describe_kinds(described.targets.numbers[rows])
    alone = Graph(x_NF, np.zeros((2, 0), np.int64))
    fit_trees = None
    if recipe.trees is not None:
        plain = cast(NodeScorer, kind.from_data(config, [alone], seed)[0])
        fit_trees = partial(_fit_trees, described, plain, recipe, seed)
    first_seed = list_seeds(seed, recipe)[0]
    architecture = cast(NodeScorer, kind.from_data(config, [alone], first_seed, fit_trees)[0])
    if baseline is not None:
        recipe = replace(recipe, model=baseline)
    task = TransactionTrainingTask(described, architecture, recipe, fabric.device)
    result = fit_members(
        *(architecture, task, recipe),
        seed=seed,
        fabric=fabric,
        baseline=baseline,
        run_folder=run_folder,
        progress=progress,
    )
    network = result.network
    population = task.predict(network, described.population)
    labelled = {part: task.predict(network, rows) for part, rows in described.measured.items()}
    if recipe.trees is not None:
        architecture.to("cpu")
        scores = {part: task.predict_trees(rows) for part, rows in described.measured.items()}
        val = np.stack([labelled["val"], scores["val"]], 1)
        *weights, _ = fit_part_weights(val, labels[described.measured["val"]])
        of_network, of_trees = np.array(weights, np.float32)
        architecture.part_weights.copy_(torch.tensor([of_network, of_trees]))
        labelled = {
            part: of_network * values + of_trees * scores[part] for part, values in labelled.items()
        }
        shown = task.predict_trees(described.population)
        population = of_network * population + of_trees * shown
    evaluation = evaluate(described, labelled, population, rule or DecisionRule())
    return TransactionRun(result, evaluation, architecture.to("cpu").eval(), recipe)


def _fit_trees(
    described: DescribedTransactions,
    plain: NodeScorer,
    recipe: NodeTrainConfig,
    seed: int,
    _: np.ndarray,
    is_exact_C: np.ndarray,
) -> TreeEnsemble:
    """Fit trees to the training targets, each in its neighbourhood; `plain` has none."""
    assert recipe.trees is not None
    rows = draw_sample(described.split.train, _TREE_ROWS)
    task = TransactionTrainingTask(described, plain, recipe, torch.device("cpu"))
    labels, train = described.targets.labels[rows], np.arange(len(rows))
    return fit_stacked_trees(task.describe(rows), labels, train, recipe.trees, seed, is_exact_C)


def evaluate(
    described: DescribedTransactions,
    logits: dict[str, np.ndarray],
    population: np.ndarray,
    rule: DecisionRule,
) -> TransactionEvaluation:
    """Calibrate and choose the threshold on validation, then measure every part.

    Args:
        logits: of `described.measured`.
        population: logits of `described.population`.
    """
    targets = described.targets
    labels = {part: targets.labels[rows] for part, rows in described.measured.items()}
    calibration = fit_calibration(logits["val"], labels["val"])
    probabilities = {part: calibration(values) for part, values in logits.items()}
    decision = choose_threshold(
        rule,
        probabilities["val"],
        labels["val"],
        Population(calibration(population), described.daily_targets, targets.unit),
    )
    parts = {}
    for part, values in probabilities.items():
        truth = labels[part]
        top = np.argsort(-values, kind="stable")[: max(1, round(BUDGET * len(values)))]
        parts[part] = TransactionMetrics(
            compute_node_metrics(values, truth, decision.threshold),
            float(truth[top].mean()),
            float(truth[top].sum() / truth.sum()),
        )
    by_time = _measure_periods(
        targets.times[described.measured["test"]],
        *(probabilities["test"], labels["test"], decision.threshold),
    )
    return TransactionEvaluation(calibration, decision, parts, by_time)


def _measure_periods(
    time: np.ndarray, probabilities: np.ndarray, labels: np.ndarray, threshold: float
) -> tuple[PeriodMetrics, ...]:
    """Figures of `_PERIODS` parts of equal size, in order of time."""
    return tuple(
        PeriodMetrics(
            begin=float(time[rows[0]]),
            end=float(time[rows[-1]]),
            labelled=len(rows),
            fraud_share=float(labels[rows].mean()),
            mean_probability=float(probabilities[rows].mean()),
            alert_share=float((probabilities[rows] >= threshold).mean()),
        )
        for rows in np.array_split(np.arange(len(time)), min(_PERIODS, len(time)))
    )
