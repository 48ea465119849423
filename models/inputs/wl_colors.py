"""What surrounds a node, by name: the colours of Weisfeiler and Leman, hashed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import numpy as np
import torch
from numba import njit
from torch import Tensor, nn

from models.nn.dropout import Dropout

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
def _colours(indptr, indices, x, x_columns, attr, attr_columns, out):
    nodes, rounds = out.shape
    edge = np.empty(len(indices), np.uint64)
    for e in range(len(indices)):
        edge[e] = _named(attr[e], attr_columns)
    old, new = np.empty(nodes, np.uint64), np.empty(nodes, np.uint64)
    for i in range(nodes):
        old[i] = _named(x[i], x_columns)
    for t in range(rounds):
        for i in range(nodes):
            out[i, t] = np.int64(_mix(old[i] + np.uint64(t)) >> np.uint64(1))
        for i in range(nodes):
            total = np.uint64(0)  # a sum, so that no order of the neighbours counts
            for e in range(indptr[i], indptr[i + 1]):
                total += _mix(old[indices[e]] ^ edge[e])
            new[i] = _mix(old[i] + _mix(total + np.uint64(t + 1)))
        old, new = new, old


def compute_wl_colors(
    indptr: np.ndarray,
    indices: np.ndarray,
    x: np.ndarray,
    x_columns: np.ndarray,
    attr: np.ndarray,
    attr_columns: np.ndarray,
    rounds: int,
) -> np.ndarray:
    """Colour of each node after 0, 1, .. rounds - 1 rounds, int64 (N, rounds), at least 0.

    Round 0 names a node by its categories, every round after by its own colour and the multiset
    of those of its neighbours, each with the categories of the edge between (Shervashidze et al.
    2011, algorithm 1; on molecules these are the environments of Morgan fingerprints). Where that
    algorithm numbers colours as they come, these are hashes of 63 bits, of the round too: the same
    in every graph, process and machine, and for every numbering of the nodes.

    Args:
        indptr, indices: CSR of the neighbours of each node.
        x, attr: features of nodes (N, F) and of the entries of the CSR (E, P).
        x_columns, attr_columns: which of their columns hold categories.
    """
    out = np.empty((len(indptr) - 1, rounds), np.int64)
    _colours(indptr, indices, x, x_columns, attr, attr_columns, out)
    return out


def find_frequent_colors(graphs: Sequence[np.ndarray], min_graphs: int) -> np.ndarray:
    """The colours that `least` graphs or more have, in order; `graphs` are as of `colours`."""
    each = [np.unique(colours_nT) for colours_nT in graphs]
    names, counts = np.unique(np.concatenate(each), return_counts=True)
    return names[counts >= min_graphs]


@final
class WLColorEncoder(nn.Module):
    """Sum of an embedding of each colour of a node that it knows; others say nothing.

    A colour that few training graphs have says little of others, and one that none has nothing.
    In training each colour of a node is left out with probability `dropout`, as a whole.

    `names_V` are the colours it knows, in order, to be set before use.
    """

    names_V: Tensor

    def __init__(self, count: int, width: int, dropout: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(count, width) * _DEVIATION)
        self.dropout = Dropout(dropout)
        self.register_buffer("names_V", torch.zeros(count, dtype=torch.int64))

    def forward(self, colours_nT: Tensor) -> Tensor:
        """Vectors (n, width)."""
        place_nT = torch.searchsorted(self.names_V, colours_nT.contiguous()).clamp(
            max=len(self.names_V) - 1
        )
        known_nT = (self.names_V[place_nT] == colours_nT).to(self.weight.dtype)
        return nn.functional.embedding_bag(
            place_nT, self.weight, mode="sum", per_sample_weights=self.dropout(known_nT)
        )
