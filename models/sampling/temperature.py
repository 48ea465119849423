"""Which temperature? Entropy of the attention, its inflection, and where the energy is convex.

Everything here is float64 and closed-form. K patterns of width D by rows, P probe states.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import sqrt
from typing import NamedTuple

import numpy as np
from torch import Tensor

NUM_PROBES = 20
_GRID = np.geomspace(1e-2, 1e6, 161)
_TURNS = 48  # halvings of an interval of the grid: to the last digit
_EXACT = 256  # the smaller side of a matrix that is decomposed whole
_OVERSAMPLED, _PASSES = 10, 16
InterruptCheck = Callable[[], None]
"""Called between the parts of long work; raises to end it."""


class NoInflectionError(ValueError):
    """Attention to this memory has no inflection between beta = 0.01 and 10^6."""


class EntropyDerivatives(NamedTuple):
    """Entropy H of the attention and its derivatives, means over the probes, at each beta.

    `curvature` is d2H/dbeta2 and `log_curvature` d2H/d(ln beta)2.
    """

    entropy: np.ndarray
    slope: np.ndarray
    curvature: np.ndarray
    log_curvature: np.ndarray


def compute_similarities(patterns_KD: Tensor, states_PD: Tensor | None = None) -> np.ndarray:
    """s (P, K) of the probes: by default the first 20 stored patterns, as in the released code."""
    patterns = patterns_KD.double()
    states = patterns[:NUM_PROBES] if states_PD is None else states_PD.double()
    return (states @ patterns.T).numpy()


def compute_entropy_derivatives(
    similarity_PK: np.ndarray, beta: np.ndarray | float, watch: InterruptCheck = lambda: None
) -> EntropyDerivatives:
    """Proposition 3 with p = softmax(beta s): dH/dbeta = -beta Var_p(s), eq. 11, and from it

    d2H/dbeta2 = -(Var + beta mu_3), d2H/d(ln beta)2 = -(2 beta^2 Var + beta^3 mu_3),

    mu_3 being the third central moment of s under p.
    """
    rows = []
    for b in np.atleast_1d(np.asarray(beta, np.float64)):
        watch()
        z = b * similarity_PK
        z = z - z.max(1, keepdims=True)
        p = np.exp(z)
        total = p.sum(1, keepdims=True)
        p /= total
        entropy = np.log(total[:, 0]) - (p * z).sum(1)
        centred = similarity_PK - (p * similarity_PK).sum(1, keepdims=True)
        variance = (p * centred**2).sum(1)
        third = (p * centred**3).sum(1)
        rows.append(
            (
                entropy.mean(),
                (-b * variance).mean(),
                -(variance + b * third).mean(),
                -(2 * b**2 * variance + b**3 * third).mean(),
            )
        )
    return EntropyDerivatives(*np.array(rows).T)


def find_beta_star(similarity_PK: np.ndarray, watch: InterruptCheck = lambda: None) -> float:
    """The paper's rule, eq. 12: d2H/dbeta2 = 0 where entropy falls fastest in beta.

    Raises:
        NoInflectionError: the entropy is flat (one pattern, or all equally similar).
    """
    found = compute_entropy_derivatives(similarity_PK, _GRID, watch)
    at = int(found.slope.argmin())
    if not 0 < at < len(_GRID) - 1 or found.slope[at] >= -1e-12:
        raise NoInflectionError
    low, high = _GRID[at - 1], _GRID[at + 1]
    for _ in range(_TURNS):  # curvature is negative below the inflection
        middle = sqrt(low * high)
        if compute_entropy_derivatives(similarity_PK, middle, watch).curvature[0] < 0:
            low = middle
        else:
            high = middle
    return sqrt(low * high)


def find_beta_star_log(similarity_PK: np.ndarray, watch: InterruptCheck = lambda: None) -> float:
    """The rule of the released code: where d2H/d(ln beta)2 is least, on its grid of 50.

    It is not where the paper's eq. 12 holds, and lies below it. The grid has 50 log-spaced values
    from 0.1 to 500, a fifth apart, so that is how exact it is.
    """
    grid = np.geomspace(0.1, 500, 50)
    second = np.diff(compute_entropy_derivatives(similarity_PK, grid, watch).entropy, 2)
    return float(grid[second.argmin() + 1])


def snr(alpha: float, beta: float, dim: int) -> float:
    """Length of a step's drift over that of its noise, sqrt(alpha beta / 2 d), eq. 15."""
    return sqrt(alpha * beta / (2 * dim))


@dataclass(frozen=True)
class Regularity:
    """Proposition 1 and corollary 2, from sigma, the largest singular value of the memory.

    `lipschitz` of the gradient is at most 1 + beta sigma^2 / 2; the energy is strictly convex
    below `convex_below` = 2 / sigma^2, and there strongly so with constant 1 - beta sigma^2 / 2.
    """

    lipschitz: float
    convex_below: float

    @classmethod
    def from_patterns(cls, patterns_KD: Tensor, beta: float) -> Regularity:
        squared = float(truncated_svd(patterns_KD, 1)[0][0]) ** 2
        return cls(1 + beta * squared / 2, 2 / squared)


def truncated_svd(patterns_KD: Tensor, count: int) -> tuple[np.ndarray, np.ndarray]:
    """The largest singular values (A,), descending, and their directions (D, A), float64.

    Where the matrix is large by subspace iteration from a fixed start (Halko et al. 2011,
    algorithm 4.4): a few products, the same each time. Directions of equal singular values, or of
    none, are an arbitrary basis of theirs.
    """
    x = patterns_KD.double().numpy()
    if min(x.shape) > _EXACT:
        width = min(count + _OVERSAMPLED, *x.shape)
        basis = np.random.default_rng(0).standard_normal((x.shape[1], width))
        for _ in range(_PASSES):
            basis, _ = np.linalg.qr(x.T @ (x @ basis))
        _, s, vt = np.linalg.svd(x @ basis, full_matrices=False)
        return s[:count], basis @ vt[:count].T
    _, s, vt = np.linalg.svd(x, full_matrices=False)
    return s[:count], vt[:count].T
