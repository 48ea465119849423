"""A small ensemble of trees."""

from __future__ import annotations

import numpy as np

from models.inputs.tree_ensemble import RowKeys, TreeEnsemble, make_stump

TREES = TreeEnsemble.from_folds(
    [
        (0.1, [make_stump(0, 0.2, -1.0, 1.0), make_stump(4, 0.1, -0.3, 0.5)]),
        (0.2, [make_stump(3, 0.4, 0.7, -0.6)]),
    ],
    RowKeys.of_rows(np.array([[0.0, 0.0, 0.0, 0.0, 0.0], [1.0, 0.5, 0.0, 0.0, 0.0]])),
    np.array([0, 1]),
)
"""Of the table of a node with two features, whatever its hops; two nodes were trained on."""
