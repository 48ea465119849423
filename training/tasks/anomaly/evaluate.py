"""What a network is worth: chosen on validation, reported on test, nothing the other way round."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score, f1_score, roc_auc_score

from models.manifest import Calibration
from training.datasets import Split


@dataclass(frozen=True)
class NodeMetrics:
    """Figures on one part of the data. `recall_at_k` looks at the k highest scores, k = frauds."""

    roc_auc: float
    pr_auc: float
    macro_f1: float
    recall_at_k: float
    brier: float
    nodes: int
    frauds: int

    def to_dict(self) -> dict[str, float]:
        return asdict(self)


def fit_calibration(logits: np.ndarray, labels: np.ndarray) -> Calibration:
    """Platt's logistic map of logits to probabilities, fitted on validation nodes."""
    regression = LogisticRegression(C=1e6).fit(logits[:, None], labels)
    # A slope below zero would turn the ranking over; on a hopeless model the map is flat instead.
    slope = max(float(regression.coef_[0, 0]), 1e-6)
    return Calibration(slope=slope, intercept=float(regression.intercept_[0]))


def find_best_threshold(probabilities: np.ndarray, labels: np.ndarray) -> float:
    """The threshold with the best macro-F1, half-way between two observed probabilities."""
    order = np.argsort(-probabilities, kind="stable")
    ranked, hits = probabilities[order], labels[order] == 1
    frauds = hits.sum()
    above = np.arange(1, len(hits) + 1)
    true = np.cumsum(hits)
    f1_fraud = 2 * true / (above + frauds)
    benign = len(hits) - frauds
    true_benign = benign - (above - true)
    f1_benign = 2 * true_benign / np.maximum(len(hits) - above + benign, 1)
    macro = (f1_fraud + f1_benign) / 2
    macro[:-1][ranked[:-1] == ranked[1:]] = -1  # a threshold cannot part equal probabilities
    best = int(macro.argmax())
    lower = ranked[best + 1] if best + 1 < len(ranked) else 0.0
    return float((ranked[best] + lower) / 2)


def compute_node_metrics(
    probabilities: np.ndarray, labels: np.ndarray, threshold: float
) -> NodeMetrics:
    """All figures of a set of nodes with labels 0 and 1."""
    frauds = int(labels.sum())
    top = np.argsort(-probabilities, kind="stable")[:frauds]
    return NodeMetrics(
        roc_auc=float(roc_auc_score(labels, probabilities)),
        pr_auc=float(average_precision_score(labels, probabilities)),
        macro_f1=float(f1_score(labels, probabilities >= threshold, average="macro")),
        recall_at_k=float(labels[top].mean()),
        brier=float(np.mean((probabilities - labels) ** 2)),
        nodes=len(labels),
        frauds=frauds,
    )


@dataclass(frozen=True)
class NodeEvaluation:
    """Calibration and threshold from validation, and the figures they give on each part."""

    calibration: Calibration
    threshold: float
    parts: dict[str, NodeMetrics]


def evaluate_nodes(logits: np.ndarray, labels: np.ndarray, split: Split) -> NodeEvaluation:
    """Calibrate and choose the threshold on `split.val`, then measure every part."""
    calibration = fit_calibration(logits[split.val], labels[split.val])
    threshold = find_best_threshold(calibration(logits[split.val]), labels[split.val])
    return measure_nodes(logits, labels, split, calibration, threshold)


def measure_nodes(
    logits: np.ndarray,
    labels: np.ndarray,
    split: Split,
    calibration: Calibration,
    threshold: float,
) -> NodeEvaluation:
    """Measure every part with a calibration and a threshold that are given."""
    probabilities = calibration(logits)
    parts = {
        name: compute_node_metrics(probabilities[nodes], labels[nodes], threshold)
        for name, nodes in split.parts().items()
    }
    return NodeEvaluation(calibration, threshold, parts)
