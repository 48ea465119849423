"""Decision trees on rows of a table, on CPU; see `models.inputs.tree_ensemble.TreeEnsemble`."""

from __future__ import annotations

import numpy as np
from numba import njit

from models.kernels.edge_attention import in_parts, threads_for

_STEPS = 8  # of a row through a tree, about


def add_leaves(table, feature, threshold, left, right, value, root, fold, scores):
    """Add to `scores` (N, K), float64, the leaf of each tree T that a row of `table` (N, C) reaches
    from `root` (T,), in the column of its `fold` (T,), tree after tree.

    `feature`, `threshold`, `left`, `right` and `value` are of the nodes of all trees; a leaf has
    the feature -1.
    """
    rows = len(table)
    given = table, feature, threshold, left, right, value, root, fold, scores
    threads = threads_for(rows * len(root) * _STEPS)
    if threads == 1:
        _add_leaves(0, rows, *given)
        return
    bounds = np.linspace(0, rows, 4 * threads + 1).astype(np.int64).tolist()
    in_parts(_add_leaves, bounds, threads, *given)


@njit(nogil=True, cache=True)
def _add_leaves(lo, hi, table, feature, threshold, left, right, value, root, fold, scores):
    for i in range(lo, hi):
        for t in range(len(root)):
            at = root[t]
            while feature[at] >= 0:
                at = left[at] if table[i, feature[at]] <= threshold[at] else right[at]
            scores[i, fold[t]] += value[at]
