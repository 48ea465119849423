"""Where in its graph a node is: encodings computed per graph, never of its padding or batch."""

from __future__ import annotations

import numpy as np
from numba import njit


@njit(nogil=True, cache=True)
def _walk(indptr, indices, out):
    """out[i, k] = (S^(k+1))_ii with S = D^-1/2 A D^-1/2, from k/2 applications of S."""
    nodes, length = out.shape
    scale = np.zeros(nodes)
    for i in range(nodes):
        if indptr[i + 1] > indptr[i]:
            scale[i] = 1 / np.sqrt(indptr[i + 1] - indptr[i])
    old, new = np.zeros(nodes), np.zeros(nodes)
    for start in range(nodes):
        old[:] = 0
        old[start] = 1
        for k in range(0, length, 2):
            odd = even = 0.0
            for i in range(nodes):
                total = 0.0
                for e in range(indptr[i], indptr[i + 1]):
                    total += scale[indices[e]] * old[indices[e]]
                new[i] = scale[i] * total
                odd += old[i] * new[i]
                even += new[i] * new[i]
            out[start, k] = odd
            if k + 1 < length:
                out[start, k + 1] = even
            old, new = new, old


def compute_random_walk_pe(indptr: np.ndarray, indices: np.ndarray, length: int) -> np.ndarray:
    """Return probabilities of a random walk, float64 (N, length): column k - 1 is (D^-1 A)^k_ii.

    Dwivedi et al. 2022 ("Graph neural networks with learnable structural and positional
    representations") eq. 11. They are the same for every numbering of the nodes, and have no
    signs or bases to choose. (D^-1 A)^k and the symmetric S^k share their diagonal, and
    (S^2m)_ii = |S^m e_i|^2, so half the steps are enough. O(N E length) time, O(N length) memory.
    """
    out = np.zeros((len(indptr) - 1, length))
    _walk(indptr, indices, out)
    return out


def compute_laplacian_pe(indptr: np.ndarray, indices: np.ndarray, count: int) -> np.ndarray:
    """The `count` lowest eigenvectors of L = I - D^-1/2 A D^-1/2, float64 (N, count).

    Energy Transformer eq. 23. Their signs are arbitrary, and so is the basis of an eigenvalue that
    occurs twice: they depend on how the nodes are numbered. Signs are fixed here by the largest
    entry. Columns that a small graph does not have are zero.
    """
    nodes = len(indptr) - 1
    degree = np.diff(indptr)
    scale = np.where(degree > 0, 1 / np.sqrt(np.maximum(degree, 1)), 0)
    receivers = np.repeat(np.arange(nodes), degree)
    matrix = np.eye(nodes)
    matrix[receivers, indices] -= scale[receivers] * scale[indices]
    vectors = np.linalg.eigh(matrix)[1][:, :count]
    largest = np.abs(vectors).argmax(0)
    vectors = vectors * np.where(vectors[largest, np.arange(vectors.shape[1])] < 0, -1, 1)
    return np.pad(vectors, ((0, 0), (0, count - vectors.shape[1])))
