"""Figures of a classifier against their definitions, and what calibration mends."""

from __future__ import annotations

import numpy as np
import pytest

from models.tasks.graph_classifier import ClassificationTask
from training.metrics import compute_metrics, fit_temperatures


def test_temperature_repairs_confidence() -> None:
    rng = np.random.default_rng(0)
    logits = rng.standard_normal((20_000, 3))
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    labels = (p.cumsum(1) > rng.random((20_000, 1))).argmax(1)[:, None]
    task = (ClassificationTask(name="t", labels=("a", "b", "c")),)
    (found,) = fit_temperatures(4 * logits, labels, task)
    assert found == pytest.approx(4, rel=0.05)
    (raw,), (mended,) = (compute_metrics(4 * logits, labels, task, t) for t in (None, (found,)))
    assert mended.cross_entropy < raw.cross_entropy
    assert mended.accuracy == raw.accuracy


def test_temperature_stays_modest_where_all_is_right() -> None:
    task = (ClassificationTask(name="t", labels=("a", "b")),)
    labels = np.tile([0, 1], 20)[:, None]
    logits = np.where(np.eye(2)[labels[:, 0]] == 1, 3.0, -3.0)
    (found,) = fit_temperatures(logits, labels, task)
    assert 0.5 < found < 2
    p = 1 / (1 + np.exp(-6 / found))
    assert p == pytest.approx(41 / 42, abs=1e-3)  # 40 graphs and one more of each class


def test_figures() -> None:
    task = (ClassificationTask(name="t", labels=("a", "b")),)
    logits = np.log([[0.8, 0.2], [0.4, 0.6], [0.3, 0.7], [0.9, 0.1]])
    (m,) = compute_metrics(logits, np.array([[0], [0], [1], [-1]]), task)
    assert (m.accuracy, m.roc_auc, m.graphs) == (pytest.approx(2 / 3), 1.0, 3)
    assert m.brier == pytest.approx((0.04 + 0.36 + 0.09) / 3)
    (one_class,) = compute_metrics(logits, np.zeros((4, 1), np.int64), task)
    assert one_class.roc_auc is None
