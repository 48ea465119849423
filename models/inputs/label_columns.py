"""Labels of neighbours as columns of a node, never its own."""

from __future__ import annotations

import numpy as np
import torch
from scipy.sparse import csr_matrix
from torch import Tensor

from models.inputs.graph_batch import GraphBatch
from models.layouts import EdgeList

_SMOOTHING = 5.0, 50.0
"""Labels of the prior rate that are added to those one step and two steps away."""


def describe_labels(batch: GraphBatch, prior: float) -> Tensor:
    """Describe each node by the known labels of its neighbours, and of theirs.

    Along each relation, with n_1 neighbours of a known label of which k_1 are fraud, and n_2, k_2
    over the walks of two steps that do not come back to the node, the columns are

        (k_1 + 5 prior) / (n_1 + 5), log(1 + n_1), (k_2 + 50 prior) / (n_2 + 50), log(1 + n_2).

    Args:
        batch: with `labels_N`, of relations that are seen from both ends.
        prior: rate of fraud where nothing is known.

    Returns:
        float64 (N, 4 relations). The label of a node is in none of its own columns.
    """
    assert batch.labels_N is not None
    known_N2 = mark_known(batch.labels_N.cpu().numpy())
    outside, columns = batch.outside, list[np.ndarray]()
    for place, relation in enumerate(batch.relations):
        near_NN = _to_sparse(relation)
        degree_N1 = np.diff(near_NN.indptr).astype(np.float64)[:, None]
        one_N2, two_N2 = near_NN @ known_N2, 0.0
        if outside is not None and outside.labels is not None:
            degree_N1 = degree_N1 + outside.count[place][:, None]
            one_N2 = one_N2 + outside.labels[place, :, :2]
            two_N2 = outside.labels[place, :, 2:]
        # Of the walks of two steps as many come back as there are neighbours.
        two_N2 = two_N2 + near_NN @ one_N2 - degree_N1 * known_N2
        for sums_N2, smoothing in zip((one_N2, two_N2), _SMOOTHING, strict=True):
            number_N, frauds_N = sums_N2.T
            columns += [(frauds_N + smoothing * prior) / (number_N + smoothing), np.log1p(number_N)]
    return torch.from_numpy(np.stack(columns, 1))


def mark_known(labels_N: np.ndarray) -> np.ndarray:
    """Return whether each label is known, and whether it is fraud: float64 (N, 2)."""
    return np.stack([labels_N >= 0, labels_N == 1], 1).astype(np.float64)


def is_labelled_around(columns_NC: Tensor) -> Tensor:
    """Return which nodes have a known label within two steps, by `describe_labels`; bool (N,)."""
    return (columns_NC[:, 1::2] > 0).any(1)


def _to_sparse(relation: EdgeList) -> csr_matrix:
    indptr, indices = relation.indptr_N1.cpu().numpy(), relation.indices_E.cpu().numpy()
    nodes = len(indptr) - 1
    return csr_matrix((np.ones(len(indices)), indices, indptr), (nodes, nodes))
