"""Trees as arrays: as scikit-learn's, and what rows that were trained on get."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from models.inputs.tree_ensemble import RowKeys, TreeEnsemble, make_stump
from models.kernels import edge_attention
from training.tasks.anomaly.stacked_trees import BoostingConfig, read_boosting


@pytest.mark.parametrize("threads", [1, 2])
def test_equal_to_scikit_learn_bit_for_bit(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    table = rng.standard_normal((400, 6)).round(1)
    labels = (table[:, 0] * table[:, 1] + rng.standard_normal(400) > 0).astype(int)
    models = [BoostingConfig(rounds=20).build(400, seed).fit(table, labels) for seed in (0, 1)]
    folds = [read_boosting(model) for model in models]
    ensemble = TreeEnsemble.from_folds(folds, RowKeys.of_rows(table[:0]), np.empty(0))
    monkeypatch.setattr(edge_attention, "_PARALLEL_WORK", 0)
    monkeypatch.setattr(edge_attention.torch, "get_num_threads", lambda: threads)
    rows = np.r_[table, rng.standard_normal((50, 6)), np.full((1, 6), np.inf)]
    expected = np.stack([model.decision_function(rows) for model in models], 1)
    np.testing.assert_array_equal(ensemble.compute_folds(rows), expected)
    assert len(np.unique(expected)) > 100


def test_rows_that_were_trained_on_get_the_fold_that_left_them_out() -> None:
    folds = [(0.0, [make_stump(0, 1.0, -1.0, 1.0)]), (0.5, [make_stump(1, 0.0, -2.0, 2.0)])]
    trained = np.array([[1.0, -3.0], [2.0, -3.0]])
    ensemble = TreeEnsemble.from_folds(folds, RowKeys.of_rows(trained), np.array([1, 0]))
    # The same but for rounding, and two other rows; a last column that is no part of the key.
    table = torch.tensor([[1.0 + 1e-15, -3.0, 7], [2, -3, 0], [2, 3, 0], [1, 3, 0]]).double()
    # The folds say -1 and -1.5, 1 and -1.5, 1 and 2.5, -1 and 2.5.
    assert ensemble(table).tolist() == [-1.5, 1.0, 1.75, 0.75]
    loaded = TreeEnsemble(ensemble.shape)
    loaded.load_state_dict(ensemble.state_dict())
    assert loaded(table).tolist() == [-1.5, 1.0, 1.75, 0.75]


def test_keys_of_rows() -> None:
    """Rows are equal where all columns are but for rounding, whatever their sizes."""
    rng = np.random.default_rng(0)
    table = (rng.standard_normal((3000, 20)) + 1e3) * 10.0 ** rng.integers(-6, 9, 20)
    keys = RowKeys.of_rows(table)
    assert len(np.unique(keys.group_r)) == 3000
    again = RowKeys.of_rows(np.r_[table, np.nextafter(table, np.inf)])
    assert (again.group_r[:3000] == again.group_r[3000:]).all()
    assert len(np.unique(again.group_r)) == 3000
    unsure = RowKeys.of_rows(table, np.arange(20) > 0)
    assert unsure.weight_C[0] == 0
    assert (unsure.weight_C[1:] == keys.weight_C[1:]).all()
    constant = RowKeys.of_rows(np.ones((4, 2)))
    assert constant.group_r.tolist() == [0, 0, 0, 0]
