"""Trees in folds: who is left out of which, what is refused, and how parts are weighed."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from training.tasks.anomaly.stacked_trees import (
    BoostingConfig,
    fit_part_weights,
    fit_stacked_trees,
)


def test_a_label_that_is_noise_is_not_seen_by_its_own_node() -> None:
    """Trees that overfit tell a node's own label, but not through the fold that left it out."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((300, 4)).astype(np.float32)
    labels = rng.integers(0, 2, 300)
    config = BoostingConfig(folds=3, rounds=100, learning_rate=0.3, min_rows=2)
    trees = fit_stacked_trees(x.astype(float), labels, np.arange(300), config, seed=0)
    table = torch.from_numpy(x.astype(float))

    def accuracy(score_N: torch.Tensor) -> float:
        return float(((score_N.numpy() > 0) == labels).mean())

    assert accuracy(trees(table)) < 0.6
    assert accuracy(trees(table + 1e-6)) > 0.9  # as if they were other nodes


def test_equal_rows_are_in_one_fold() -> None:
    rng = np.random.default_rng(1)
    x = rng.integers(0, 5, (200, 2)).astype(np.float32)
    labels = rng.integers(0, 2, 200)
    config = BoostingConfig(rounds=2)
    trees = fit_stacked_trees(x.astype(float), labels, np.arange(200), config, seed=0)
    assert len(trees.key_r) == len(np.unique(x, axis=0))
    assert set(trees.fold_r.tolist()) == set(range(5))


@pytest.mark.parametrize(
    ("frauds", "kinds", "message"),
    [(3, 40, "3 have the rarer label, 40 differ"), (20, 4, "20 have the rarer label, 4 differ")],
)
def test_too_few_nodes_are_refused(frauds: int, kinds: int, message: str) -> None:
    x = (np.arange(40) % kinds).astype(np.float32)[:, None]
    labels = (np.arange(40) < frauds).astype(int)
    with pytest.raises(ValueError, match=message):
        fit_stacked_trees(x.astype(float), labels, np.arange(40), BoostingConfig(), seed=0)


def test_weights_of_parts() -> None:
    """The true log-odds get their weight, noise and what contradicts them get none."""
    rng = np.random.default_rng(0)
    truth = rng.standard_normal(20_000)
    labels = (rng.random(20_000) < 1 / (1 + np.exp(-truth))).astype(int)
    noise = rng.standard_normal((20_000, 2))
    parts = np.stack([2 * truth, noise[:, 0], noise[:, 1] - truth], 1)
    *weights, constant = fit_part_weights(parts, labels)
    assert weights[0] == pytest.approx(0.5, abs=0.03)
    assert weights[1] == pytest.approx(0.0, abs=0.03)
    assert weights[2] == pytest.approx(0.0, abs=0.03)
    assert constant == pytest.approx(0.0, abs=0.05)
    assert fit_part_weights(-truth[:, None], labels).tolist() == [1.0, 0.0]
