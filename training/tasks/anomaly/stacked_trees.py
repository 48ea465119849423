"""Boosted trees that a network reads: fitted in folds with scikit-learn, and kept as arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import minimize
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.model_selection import StratifiedGroupKFold

from models.inputs.tree_ensemble import RowKeys, Tree, TreeEnsemble


@dataclass(frozen=True)
class BoostingConfig:
    """How trees are boosted; `share` of the columns is looked at for each split of a tree."""

    folds: int = 5
    rounds: int = 250
    learning_rate: float = 0.03
    leaves: int = 15
    l2: float = 5.0
    share: float = 0.5
    min_rows: int = 20

    def build(self, rows: int, seed: int) -> HistGradientBoostingClassifier:
        """An unfitted model for this number of rows."""
        model = HistGradientBoostingClassifier(
            learning_rate=self.learning_rate,
            max_iter=self.rounds,
            max_leaf_nodes=self.leaves,
            l2_regularization=self.l2,
            max_features=self.share,
            min_samples_leaf=min(self.min_rows, max(2, rows // 20)),
            random_state=seed,
        )
        return model.set_params(early_stopping=False)


def fit_stacked_trees(
    table_NC: np.ndarray,
    labels: np.ndarray,
    train: np.ndarray,
    config: BoostingConfig,
    seed: int,
    is_exact_C: np.ndarray | None = None,
) -> TreeEnsemble:
    """Boost trees in folds of the nodes `train`; equal nodes are in one fold.

    Args:
        table_NC: the columns that trees read, of all nodes.
        labels: (N,); only those of `train` are read.
        is_exact_C: of the first columns, by which nodes that were trained on are known again, as
            `RowKeys` reads them; all columns if None.

    Raises:
        ValueError: fewer nodes of a label, or fewer that differ, than folds.
    """
    y, rows = labels[train], table_NC[train]
    columns = table_NC.shape[1] if is_exact_C is None else len(is_exact_C)
    keys = RowKeys.of_rows(rows[:, :columns], is_exact_C)
    _require_folds(y, keys.group_r, config.folds)
    splitter = StratifiedGroupKFold(config.folds, shuffle=True, random_state=seed)
    folds, fold_r = list[tuple[float, Sequence[Tree]]](), np.zeros(len(train), np.int64)
    for fold, (seen, left) in enumerate(splitter.split(rows, y, keys.group_r)):
        if len(np.unique(y[seen])) < 2:
            raise ValueError(
                f"Without fold {fold} of {config.folds} the nodes to train on have one label only. "
                "Label more nodes, or train without trees."
            )
        model = config.build(len(seen), seed + fold).fit(rows[seen], y[seen])
        folds.append(read_boosting(model))
        fold_r[left] = fold
    return TreeEnsemble.from_folds(folds, keys, fold_r)


def fit_part_weights(parts_nE: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Weights (E + 1,) of the log-odds of several parts, none below zero, and a constant, of the
    lowest cross entropy of their weighed sum.

    Args:
        parts_nE: log-odds of nodes to choose by.
        labels: theirs, 0 and 1.
    """
    sign_n = 2.0 * labels - 1
    columns = np.c_[parts_nE, np.ones(len(parts_nE))]

    def cross_entropy(weights: np.ndarray) -> tuple[float, np.ndarray]:
        margin_n = sign_n * (columns @ weights)
        slope_n = -sign_n / (1 + np.exp(np.clip(margin_n, -500, 500)))
        return float(np.logaddexp(0, -margin_n).mean()), columns.T @ slope_n / len(columns)

    parts = parts_nE.shape[1]
    start = np.r_[np.full(parts, 1 / parts), 0.0]
    bounds = [(0.0, None)] * parts + [(None, None)]
    weights = minimize(cross_entropy, start, jac=True, bounds=bounds).x
    return weights if weights[:-1].any() else start


def read_boosting(model: HistGradientBoostingClassifier) -> tuple[float, list[Tree]]:
    """The log-odds that a fitted booster begins with, and its trees.

    scikit-learn has no public way to them; `TreeEnsemble` is compared with its predictions in the
    tests.
    """
    trees = list[Tree]()
    predictors: Any = model._predictors
    for [predictor] in predictors:
        nodes = predictor.nodes
        if nodes["is_categorical"].any():
            raise ValueError("trees that split by categories cannot be read")
        is_leaf = nodes["is_leaf"].astype(bool)
        trees.append(
            Tree(
                np.where(is_leaf, -1, nodes["feature_idx"]).astype(np.int32),
                np.where(is_leaf, 0.0, nodes["num_threshold"]),
                nodes["left"].astype(np.int32),
                nodes["right"].astype(np.int32),
                nodes["value"].astype(np.float64),
            )
        )
    return float(model._baseline_prediction.ravel()[0]), trees


def _require_folds(y: np.ndarray, groups: np.ndarray, folds: int) -> None:
    rarest, different = min((y == 0).sum(), (y == 1).sum()), len(np.unique(groups))
    if min(rarest, different) < folds:
        raise ValueError(
            f"Trees are fitted in {folds} folds: {folds} nodes of each label that differ in their "
            f"features are needed to train on; {rarest} have the rarer label, {different} differ. "
            "Label more nodes, or train without trees."
        )
