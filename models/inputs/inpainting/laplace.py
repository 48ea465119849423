"""Fill holes by Laplace's equation: the smoothest surface between the pixels that are known."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy import sparse
from scipy.sparse.linalg import splu

DIRECT_PIXELS = 1 << 18
"""Most that are solved directly: of more, factors take too long and too much memory."""
_CHECK_EVERY = 8  # iterations
_TOLERANCE = 1e-7  # of values between 0 and 1, in the last step of what is not solved directly
_MAX_ITERATIONS = 4000


def fill_harmonic(
    places_n: np.ndarray,
    shape: tuple[int, int],
    read_known: Callable[[np.ndarray], np.ndarray],
    check: Callable[[], None] = lambda: None,
) -> np.ndarray:
    """Hidden pixels (n, C), float32, each of which is the mean of its four neighbours.

    Nothing flows over the border of the image. A sparse direct solve of all holes and channels
    together; of more than a quarter of a million pixels, conjugate gradients. Every hole touches a
    known pixel; where nothing is known at all, all is 0.5.

    Args:
        places_n: the hidden pixels, as row * width + column, in order.
        shape: height and width of the image.
        read_known: values (m, C) of known pixels by their places.
        check: called every few iterations; may raise to end it.
    """
    matrix_nn, boundary_i, outside_i = _build_system(places_n, shape)
    known_iC = read_known(outside_i).astype(np.float64)
    n, channels = len(places_n), known_iC.shape[1]
    if not len(boundary_i):
        return np.full((n, channels), 0.5, np.float32)
    mean_C = known_iC.mean(0)  # solved for the difference from it
    b_nC = np.zeros((n, channels))
    np.add.at(b_nC, boundary_i, known_iC - mean_C)
    x_nC = (
        _solve_directly(matrix_nn, b_nC) if n <= DIRECT_PIXELS else _iterate(matrix_nn, b_nC, check)
    )
    return (x_nC + mean_C).astype(np.float32)


def _build_system(
    places_n: np.ndarray, shape: tuple[int, int]
) -> tuple[sparse.csr_array, np.ndarray, np.ndarray]:
    """The graph Laplacian (n, n) of the hidden pixels, and the pairs of one of them (by index) and
    a known neighbour (by place)."""
    height, width = shape
    row_n, column_n = np.divmod(places_n, width)
    neighbours = (
        (column_n > 0, -1),
        (column_n < width - 1, 1),
        (row_n > 0, -width),
        (row_n < height - 1, width),
    )
    degree_n = np.zeros(len(places_n))
    pairs_i, pairs_j, boundary, outside = [], [], [], []
    for inside_n, offset in neighbours:
        (i,) = np.nonzero(inside_n)
        place = places_n[i] + offset
        j = np.searchsorted(places_n, place)
        is_hidden = places_n[np.minimum(j, len(places_n) - 1)] == place
        degree_n[i] += 1
        pairs_i.append(i[is_hidden])
        pairs_j.append(j[is_hidden])
        boundary.append(i[~is_hidden])
        outside.append(place[~is_hidden])
    i, j = np.concatenate(pairs_i), np.concatenate(pairs_j)
    n = len(places_n)
    adjacency_nn = sparse.csr_array((np.ones(len(i)), (i, j)), shape=(n, n))
    laplacian_nn = sparse.diags_array(degree_n) - adjacency_nn
    return sparse.csr_array(laplacian_nn), np.concatenate(boundary), np.concatenate(outside)


def _solve_directly(matrix_nn: sparse.csr_array, b_nC: np.ndarray) -> np.ndarray:
    symmetric = {"SymmetricMode": True}  # and positive definite: no pivoting
    ordering = "MMD_AT_PLUS_A"
    factors = splu(matrix_nn.tocsc(), ordering, diag_pivot_thresh=0.0, options=symmetric)
    return factors.solve(b_nC)


def _iterate(
    matrix_nn: sparse.csr_array, b_nC: np.ndarray, check: Callable[[], None]
) -> np.ndarray:
    """Conjugate gradients with the diagonal as preconditioner, each channel by itself."""
    inverse_n1 = 1 / np.maximum(matrix_nn.diagonal(), 1)[:, None]
    x, r = np.zeros_like(b_nC), b_nC.copy()
    z = r * inverse_n1
    p, rz_C = z.copy(), (r * z).sum(0)
    for iteration in range(_MAX_ITERATIONS):
        if iteration % _CHECK_EVERY == 0:
            check()
        if np.abs(z).max(initial=0) < _TOLERANCE:
            break
        q = matrix_nn @ p
        alpha_C = rz_C / np.maximum((p * q).sum(0), 1e-300)
        x += alpha_C * p
        r -= alpha_C * q
        z = r * inverse_n1
        next_C = (r * z).sum(0)
        p = z + (next_C / np.maximum(rz_C, 1e-300)) * p
        rz_C = next_C
    return x
