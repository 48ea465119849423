"""Figures of a graph classifier, task by task, and the temperature of its probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax
from scipy.stats import rankdata
from sklearn.metrics import f1_score, roc_auc_score

from models.tasks.graph_classifier import ClassificationTask
from training.datasets import Split

_BOUNDS = (0.5, 20.0)  # of a temperature


@dataclass(frozen=True)
class TaskMetrics:
    """Figures of one task on the graphs that are labelled for it.

    `roc_auc` is that of the second of two classes, or the mean of one against the rest; None where
    a class is missing. `brier` is the mean squared error of the probabilities, summed over classes
    and halved, so that two classes read as usual.
    """

    accuracy: float
    macro_f1: float
    roc_auc: float | None
    cross_entropy: float
    brier: float
    graphs: int

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def split_logits(logits_GC: np.ndarray, tasks: Sequence[ClassificationTask]) -> list[np.ndarray]:
    """The logits of each task."""
    return np.split(logits_GC, np.cumsum([len(task.labels) for task in tasks])[:-1], axis=1)


def compute_metrics(
    logits_GC: np.ndarray,
    labels_GT: np.ndarray,
    tasks: Sequence[ClassificationTask],
    temperatures: Sequence[float] | None = None,
) -> list[TaskMetrics]:
    """The figures of every task.

    Raises:
        ValueError: a task has no labelled graph here.
    """
    results = []
    for t, logits in enumerate(split_logits(logits_GC, tasks)):
        known = labels_GT[:, t] >= 0
        labels = labels_GT[known, t]
        if len(labels) == 0:
            raise ValueError(f"{tasks[t].name}: no graph of a part of the split has a label")
        scaled = logits[known].astype(np.float64) / (temperatures[t] if temperatures else 1.0)
        log_p = log_softmax(scaled, -1)
        hot = np.eye(logits.shape[1])[labels]
        p, chosen = np.exp(log_p), log_p.argmax(-1)
        results.append(
            TaskMetrics(
                accuracy=float((chosen == labels).mean()),
                macro_f1=float(f1_score(labels, chosen, average="macro")),
                roc_auc=_roc_auc(labels, p),
                cross_entropy=float(-(log_p * hot).sum(-1).mean()),
                brier=float(((p - hot) ** 2).sum(-1).mean() / 2),
                graphs=len(labels),
            )
        )
    return results


def _roc_auc(labels: np.ndarray, p: np.ndarray) -> float | None:
    if len(np.unique(labels)) < p.shape[1]:
        return None
    if p.shape[1] == 2:
        return float(roc_auc_score(labels, p[:, 1]))
    return float(roc_auc_score(labels, p, multi_class="ovr"))


def fit_temperatures(
    logits_GC: np.ndarray, labels_GT: np.ndarray, tasks: Sequence[ClassificationTask]
) -> tuple[float, ...]:
    """T of softmax(logits / T) with the least cross entropy, for each task (Guo et al. 2017).

    Between 1/2 and 20, against targets smoothed as Platt (1999) does, by one graph more of each
    class: a network that is right on every validation graph must not become certain of everything.
    """
    found = []
    for t, logits in enumerate(split_logits(logits_GC, tasks)):
        known = np.flatnonzero(labels_GT[:, t] >= 0)
        chosen, classes = logits[known].astype(np.float64), logits.shape[1]
        target = (len(known) * np.eye(classes)[labels_GT[known, t]] + 1) / (len(known) + classes)

        def loss(log_t: float, z: np.ndarray = chosen, y: np.ndarray = target) -> float:
            return -float((y * log_softmax(z / np.exp(log_t), -1)).sum(-1).mean())

        best: Any = minimize_scalar(loss, bounds=tuple(np.log(_BOUNDS)), method="bounded")
        found.append(float(np.exp(best.x)))
    return tuple(found)


@dataclass(frozen=True)
class ClassifierEvaluation:
    """Temperatures from validation, and the figures on each part, task by task."""

    temperatures: tuple[float, ...]
    parts: dict[str, list[TaskMetrics]]

    def mean(self, part: str, figure: str) -> float | None:
        """Mean of a figure over the tasks that have it."""
        values = [getattr(task, figure) for task in self.parts[part]]
        values = [value for value in values if value is not None]
        return float(np.mean(values)) if values else None


def evaluate_classifier(
    logits_GC: np.ndarray, labels_GT: np.ndarray, split: Split, tasks: Sequence[ClassificationTask]
) -> ClassifierEvaluation:
    """Calibrate on `split.val`, then measure every part."""
    found = fit_temperatures(logits_GC[split.val], labels_GT[split.val], tasks)
    return ClassifierEvaluation(
        found,
        {
            name: compute_metrics(logits_GC[graphs], labels_GT[graphs], tasks, found)
            for name, graphs in (("train", split.train), ("val", split.val), ("test", split.test))
        },
    )


def rank_correlation(x: np.ndarray, y: np.ndarray) -> float:
    """Spearman's; ties have their mean rank, and it is 0 where all of one are equal."""
    if np.ptp(x) == 0 or np.ptp(y) == 0:
        return 0.0
    return float(np.corrcoef(rankdata(x), rankdata(y))[0, 1])
