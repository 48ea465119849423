"""What surrounds a node, by name: the colours of Weisfeiler and Leman, hashed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import numpy as np
import torch
from numba import njit
from torch import Tensor, nn

_DEVIATION = 0.1  # of the embedding of a colour before training


@njit(nogil=True, cache=True, inline="always")
def _mix(h):
    """splitmix64's finaliser (Steele et al. 2014)."""
    h = (h ^ (h >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    h = (h ^ (h >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return h ^ (h >> np.uint64(31))


@njit(nogil=True, cache=True, inline="always")
def _named(values, columns):
    h = np.uint64(0x9E3779B97F4A7C15)
    for column in columns:
        h = _mix(h + np.uint64(np.int64(values[column])) + np.uint64(1))
    return h


@njit(nogil=True, cache=True)
def _colours(indptr, indices, x, x_columns, attr, attr_columns, buckets, out):
    nodes, rounds = out.shape
    edge = np.empty(len(indices), np.uint64)
    for e in range(len(indices)):
        edge[e] = _named(attr[e], attr_columns)
    old, new = np.empty(nodes, np.uint64), np.empty(nodes, np.uint64)
    for i in range(nodes):
        old[i] = _named(x[i], x_columns)
    for t in range(rounds):
        for i in range(nodes):
            out[i, t] = old[i] % np.uint64(buckets)
        for i in range(nodes):
            total = np.uint64(0)  # a sum, so that no order of the neighbours counts
            for e in range(indptr[i], indptr[i + 1]):
                total += _mix(old[indices[e]] ^ edge[e])
            new[i] = _mix(old[i] + _mix(total + np.uint64(t + 1)))
        old, new = new, old


def colours(
    indptr: np.ndarray,
    indices: np.ndarray,
    x: np.ndarray,
    x_columns: np.ndarray,
    attr: np.ndarray,
    attr_columns: np.ndarray,
    rounds: int,
    buckets: int,
) -> np.ndarray:
    """Colour of each node after 0, 1, .. rounds - 1 rounds, int64 (N, rounds) below `buckets`.

    Round 0 names a node by its categories, every round after by its own colour and the multiset
    of those of its neighbours, each with the categories of the edge between (Shervashidze et al.
    2011, algorithm 1; on molecules these are the environments of Morgan fingerprints). Where that
    algorithm numbers colours as they come, these are 64-bit hashes taken modulo `buckets`: the
    same in every graph, process and machine, and for every numbering of the nodes.

    Args:
        indptr, indices: CSR of the neighbours of each node.
        x, attr: features of nodes (N, F) and of the entries of the CSR (E, P).
        x_columns, attr_columns: which of their columns hold categories.
    """
    out = np.empty((len(indptr) - 1, rounds), np.int64)
    _colours(indptr, indices, x, x_columns, attr, attr_columns, buckets, out)
    return out


@final
class ColourEncoder(nn.Module):
    """Sum of an embedding of each colour of a node, of those that training knows well.

    A colour that few training graphs have says little of others, and one that none has would be
    read as it was initialised: `fit` tells which to leave out. In training each colour of a node
    is left out with probability `dropout`, as a whole.
    """

    familiar_C: Tensor
    first_T: Tensor

    def __init__(self, rounds: int, buckets: int, width: int, dropout: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(rounds * buckets, width) * _DEVIATION)
        self.dropout = nn.Dropout(dropout)
        self.register_buffer("familiar_C", torch.ones(rounds * buckets))
        first_T = buckets * torch.arange(rounds)
        self.register_buffer("first_T", first_T, persistent=False)

    def fit(self, graphs: Sequence[np.ndarray], least: int) -> None:
        """Read only colours of which a bucket has those of `least` of these graphs or more."""
        found_C = np.zeros(len(self.familiar_C), np.int64)
        first_T = self.first_T.numpy()
        for colours_nT in graphs:
            found_C[np.unique(colours_nT + first_T)] += 1
        self.familiar_C.copy_(torch.from_numpy(found_C >= least))

    def forward(self, colours_nT: Tensor) -> Tensor:
        """Vectors (n, width)."""
        index_nT = colours_nT + self.first_T
        share_nT = self.dropout(self.familiar_C[index_nT]).to(self.weight.dtype)
        return nn.functional.embedding_bag(
            index_nT, self.weight, mode="sum", per_sample_weights=share_nT
        )
