"""Decision trees on rows of a table, on CPU; see `models.inputs.tree_ensemble.TreeEnsemble`."""

from __future__ import annotations

import numpy as np
from numba import njit

from models.kernels.edge_attention import in_parts, threads_for

_STEPS = 8  # of a row through a tree, about
_BLOCK = 64  # rows that go through all trees before the next ones


def add_leaves(table, feature, threshold, child, value, root, depth, fold, scores):
    """Add to `scores` (N, K), float64, the leaf of each tree T that a row of `table` (N, C) reaches
    from `root` (T,) in `depth` (T,) steps, in the column of its `fold` (T,), tree after tree.

    `feature`, `threshold`, `child` (n, 2) and `value` are of the nodes of all trees; both children
    of a leaf are itself.
    """
    rows = len(table)
    given = table, feature, threshold, child, value, root, depth, fold, scores
    threads = threads_for(rows * len(root) * _STEPS)
    if threads == 1:
        _add_leaves(0, rows, *given)
        return
    bounds = np.linspace(0, rows, 4 * threads + 1).astype(np.int64).tolist()
    in_parts(_add_leaves, bounds, threads, *given)


@njit(nogil=True, cache=True)
def _add_leaves(lo, hi, table, feature, threshold, child, value, root, depth, fold, scores):
    # All rows of a block take a step before the next: no branch depends on a value, which a
    # processor could not guess, and no step waits for the one before it.
    at = np.empty(_BLOCK, np.int32)
    for start in range(lo, hi, _BLOCK):
        size = min(_BLOCK, hi - start)
        for t in range(len(root)):
            at[:size] = root[t]
            for _ in range(depth[t]):
                for i in range(size):
                    is_right = not table[start + i, feature[at[i]]] <= threshold[at[i]]
                    at[i] = child[at[i], int(is_right)]
            for i in range(size):
                scores[start + i, fold[t]] += value[at[i]]
