"""Trees as arrays: as scikit-learn's, and what rows that were trained on get."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from models.inputs.tree_ensemble import TreeEnsemble, hash_rows, make_stump
from models.kernels import edge_attention
from training.tasks.anomaly.stacked_trees import BoostingConfig, read_boosting


@pytest.mark.parametrize("threads", [1, 2])
def test_equal_to_scikit_learn_bit_for_bit(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    table = rng.standard_normal((400, 6)).round(1)
    labels = (table[:, 0] * table[:, 1] + rng.standard_normal(400) > 0).astype(int)
    models = [BoostingConfig(rounds=20).build(400, seed).fit(table, labels) for seed in (0, 1)]
    folds = [read_boosting(model) for model in models]
    ensemble = TreeEnsemble.from_folds(folds, np.empty((0, 2)), np.empty(0))
    monkeypatch.setattr(edge_attention, "_PARALLEL_WORK", 0)
    monkeypatch.setattr(edge_attention.torch, "get_num_threads", lambda: threads)
    rows = np.r_[table, rng.standard_normal((50, 6)), np.full((1, 6), np.inf)]
    expected = np.stack([model.decision_function(rows) for model in models], 1)
    np.testing.assert_array_equal(ensemble.compute_folds(rows), expected)
    assert len(np.unique(expected)) > 100


def test_rows_that_were_trained_on_get_the_fold_that_left_them_out() -> None:
    folds = [(0.0, [make_stump(0, 1.0, -1.0, 1.0)]), (0.5, [make_stump(1, 0.0, -2.0, 2.0)])]
    x = np.array([[1, 0], [2, 0], [3, 5]], np.float32)
    ensemble = TreeEnsemble.from_folds(folds, x[:2], np.array([1, 0]))
    table = torch.tensor([[1.0, -3.0], [2.0, -3.0], [2.0, 3.0], [1.0, 3.0]])
    again = torch.tensor([[1, -0.0], [2, 0], [3, 5], [2, 1e-45]])
    # The folds say -1 and -1.5, 1 and -1.5, 1 and 2.5, -1 and 2.5.
    assert ensemble(table, again).tolist() == [-1.5, 1.0, 1.75, 0.75]
    loaded = TreeEnsemble(ensemble.shape)
    loaded.load_state_dict(ensemble.state_dict())
    assert loaded(table, again).tolist() == [-1.5, 1.0, 1.75, 0.75]


def test_hashes_of_rows() -> None:
    x = np.array([[0, 1], [1, 0], [-0.0, 1], [0, 0]], np.float32)
    keys = hash_rows(x)
    assert keys[0] == keys[2]
    assert len({*keys.tolist()}) == 3
    assert hash_rows(x[:, :1])[3] != keys[3]  # a row of one zero, and of two
    # Checkpoints hold them.
    assert hash_rows(np.array([[1.5, -2.0]])).tolist() == [-5218352774098733266]
