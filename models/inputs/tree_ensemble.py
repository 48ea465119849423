"""Boosted trees as arrays, part of a network: their log-odds of a node are one of its columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, final

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, NonNegativeInt, PositiveInt
from torch import Tensor, nn

from models.kernels import trees as kernels

_EQUAL = 1e-8
"""Difference of keys below which rows are equal: far above what rounding makes of them, and far
below that of two of a million rows by chance."""

_CONSTANT = 1e-6
"""Deviation over the largest value of a column below which it may vary by rounding alone."""


class Tree(NamedTuple):
    """A regression tree of n nodes, the root first.

    A row goes left where its column `feature_n` is at most `threshold_n`. Leaves have `feature_n`
    -1, and what they add in `value_n`.
    """

    feature_n: np.ndarray
    threshold_n: np.ndarray
    left_n: np.ndarray
    right_n: np.ndarray
    value_n: np.ndarray

    def link(self) -> np.ndarray:
        """The children of each node (n, 2), a leaf its own."""
        children_n2 = np.stack([self.left_n, self.right_n], 1)
        is_leaf, own = self.feature_n < 0, np.arange(len(self.feature_n))
        return np.where(is_leaf[:, None], own[:, None], children_n2)

    def measure_depth(self) -> int:
        """Splits between the root and the farthest leaf."""
        children_n2, depth, level = self.link(), 0, np.zeros(1, np.int64)
        while (level := level[self.feature_n[level] >= 0]).size:
            level, depth = children_n2[level].ravel(), depth + 1
        return depth


def make_stump(column: int, threshold: float, left: float, right: float) -> Tree:
    """A tree of one split and two leaves."""
    return Tree(
        np.array([column, -1, -1]),
        np.array([threshold, 0, 0]),
        np.array([1, 0, 0]),
        np.array([2, 0, 0]),
        np.array([0, left, right]),
    )


class TreeShape(BaseModel):
    """Sizes of the arrays of a `TreeEnsemble`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    folds: PositiveInt
    trees: PositiveInt
    nodes: PositiveInt
    rows: NonNegativeInt
    columns: PositiveInt


@dataclass(frozen=True)
class RowKeys:
    """Numbers by which rows are known again: (row - `center_C`) . `weight_C`.

    Attributes:
        key_r: of each row.
        group_r: which of them are equal, numbered in order of the keys.
    """

    center_C: np.ndarray
    weight_C: np.ndarray
    key_r: np.ndarray
    group_r: np.ndarray

    @classmethod
    def of_rows(cls, table_rC: np.ndarray, is_exact_C: np.ndarray | None = None) -> RowKeys:
        """Compute them, with weights by chance that are the same for the same rows.

        Args:
            is_exact_C: columns that are the same but for rounding, wherever they are computed; all
                if None. The others weigh nothing.
        """
        columns = table_rC.shape[1]
        center_C, scale_C = np.zeros(columns), np.ones(columns)
        if len(table_rC):
            least_C = _CONSTANT * np.abs(table_rC).max(0)
            center_C, scale_C = table_rC.mean(0), np.maximum(table_rC.std(0), least_C)
        weight_C = np.random.default_rng(0).standard_normal(columns)
        weight_C /= np.where(scale_C > 0, scale_C, 1)
        if is_exact_C is not None:
            weight_C[~is_exact_C] = 0
        key_r = _weigh(table_rC, weight_C, center_C)
        order, group_r = np.argsort(key_r), np.zeros(len(key_r), np.int64)
        group_r[order] = np.cumsum(np.diff(key_r[order], prepend=-np.inf) >= _EQUAL) - 1
        return cls(center_C, weight_C, key_r, group_r)


@final
class TreeEnsemble(nn.Module):
    """The log-odds that boosted trees give a row of a table, the trees fitted in K folds.

    A row that was trained on, and whose label all folds but one have therefore seen, gets the
    log-odds of that fold alone; every other row gets the mean of the folds (stacking, Wolpert
    1992). So a network that reads them sees of the nodes that it is trained on what it will see of
    others. Rows that were trained on are recognised by the columns of the table, which are those of
    the node and of its neighbours, wherever the graph comes from: an equal row is the same row, and
    a node that has got new neighbours is another. Equal is what has an equal key (`RowKeys`), up to
    rounding.

    Attributes:
        shape: sizes of the arrays, by which an empty ensemble is built that weights are loaded
            into.
    """

    feature_n: Tensor
    threshold_n: Tensor
    child_n2: Tensor
    value_n: Tensor
    root_T: Tensor
    depth_T: Tensor
    fold_T: Tensor
    base_K: Tensor
    center_C: Tensor
    weight_C: Tensor
    key_r: Tensor
    fold_r: Tensor

    def __init__(self, shape: TreeShape) -> None:
        super().__init__()
        self.shape = shape
        n, t, r = shape.nodes, shape.trees, shape.rows
        # A leaf is its own child, so that each row takes as many steps as its tree is deep.
        self.register_buffer("feature_n", torch.zeros(n, dtype=torch.int32))
        self.register_buffer("threshold_n", torch.zeros(n, dtype=torch.float64))
        self.register_buffer("child_n2", torch.zeros(n, 2, dtype=torch.int32))
        self.register_buffer("value_n", torch.zeros(n, dtype=torch.float64))
        self.register_buffer("root_T", torch.zeros(t, dtype=torch.int32))
        self.register_buffer("depth_T", torch.zeros(t, dtype=torch.int32))
        self.register_buffer("fold_T", torch.zeros(t, dtype=torch.int32))
        self.register_buffer("base_K", torch.zeros(shape.folds, dtype=torch.float64))
        self.register_buffer("center_C", torch.zeros(shape.columns, dtype=torch.float64))
        self.register_buffer("weight_C", torch.zeros(shape.columns, dtype=torch.float64))
        self.register_buffer("key_r", torch.zeros(r, dtype=torch.float64))
        self.register_buffer("fold_r", torch.zeros(r, dtype=torch.int32))

    @classmethod
    def from_folds(
        cls,
        folds: Sequence[tuple[float, Sequence[Tree]]],
        keys: RowKeys,
        fold_r: np.ndarray,
    ) -> TreeEnsemble:
        """Build an ensemble of trees of each fold, with the log-odds that they add to.

        Args:
            keys: of the rows that were trained on.
            fold_r: the fold that each of them was left out of; one for all equal rows.
        """
        trees = [tree for _, fold in folds for tree in fold]
        sizes = [len(tree.feature_n) for tree in trees]
        _, first = np.unique(keys.group_r, return_index=True)
        shape = TreeShape(
            folds=len(folds),
            trees=len(trees),
            nodes=sum(sizes),
            rows=len(first),
            columns=len(keys.weight_C),
        )
        ensemble = cls(shape)
        root_T = np.cumsum([0, *sizes[:-1]])

        def join(parts: Sequence[np.ndarray], into: Tensor) -> None:
            into.copy_(torch.from_numpy(np.concatenate(parts)))

        join([tree.feature_n.clip(min=0) for tree in trees], ensemble.feature_n)
        join([tree.threshold_n for tree in trees], ensemble.threshold_n)
        pairs = zip(trees, root_T, strict=True)
        join([tree.link() + root for tree, root in pairs], ensemble.child_n2)
        join([tree.value_n for tree in trees], ensemble.value_n)
        join([root_T], ensemble.root_T)
        join([np.array([tree.measure_depth() for tree in trees])], ensemble.depth_T)
        join([np.full(len(fold), k) for k, (_, fold) in enumerate(folds)], ensemble.fold_T)
        join([np.array([base for base, _ in folds])], ensemble.base_K)
        join([keys.center_C], ensemble.center_C)
        join([keys.weight_C], ensemble.weight_C)
        join([keys.key_r[first]], ensemble.key_r)
        join([fold_r[first]], ensemble.fold_r)
        return ensemble

    def forward(self, table_NC: Tensor) -> Tensor:
        """Log-odds, float64 (N,), of rows of a table (N, C), of which the first columns, as many as
        there are weights, are the key.

        Computed on the CPU, and returned on the device of the table.
        """
        table = table_NC.cpu().numpy()
        scores_NK = self.compute_folds(table)
        score_N = scores_NK.mean(1)
        known_r = self.key_r.cpu().numpy()
        if len(known_r):
            weight_C, center_C = self.weight_C.cpu().numpy(), self.center_C.cpu().numpy()
            key_N = _weigh(table[:, : len(weight_C)], weight_C, center_C)
            after_N = np.searchsorted(known_r, key_N).clip(max=len(known_r) - 1)
            before_N = (after_N - 1).clip(min=0)
            is_before = key_N - known_r[before_N] < np.abs(known_r[after_N] - key_N)
            place_N = np.where(is_before, before_N, after_N)
            seen = np.flatnonzero(np.abs(known_r[place_N] - key_N) < _EQUAL)
            score_N[seen] = scores_NK[seen, self.fold_r.cpu().numpy()[place_N[seen]]]
        return torch.from_numpy(score_N).to(table_NC.device)

    def compute_folds(self, table_NC: np.ndarray) -> np.ndarray:
        """Log-odds of each fold, float64 (N, K)."""
        scores_NK = np.tile(self.base_K.cpu().numpy(), (len(table_NC), 1))
        kernels.add_leaves(
            np.ascontiguousarray(table_NC, np.float64),
            self.feature_n.cpu().numpy(),
            self.threshold_n.cpu().numpy(),
            self.child_n2.cpu().numpy(),
            self.value_n.cpu().numpy(),
            self.root_T.cpu().numpy(),
            self.depth_T.cpu().numpy(),
            self.fold_T.cpu().numpy(),
            scores_NK,
        )
        return scores_NK


def _weigh(table_NC: np.ndarray, weight_C: np.ndarray, center_C: np.ndarray) -> np.ndarray:
    return np.asarray(table_NC - center_C, np.float64) @ weight_C
