"""One step of Langevin dynamics on the modern Hopfield energy, for many chains together.

Shape suffixes of this package: C chains, D coordinates, K patterns, S samples, T recorded steps,
P kept states per chain, A observed axes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from enum import StrEnum
from typing import final

import numpy as np
import torch
from numba import njit
from torch import Tensor

from models.energies import ModernHopfield


class Method(StrEnum):
    """How a proposed step is taken: always, or with Metropolis' probability."""

    ULA = "ula"
    MALA = "mala"


class LangevinKernel(ABC):
    """Chains at one inverse temperature beta and step size alpha, moved in place.

    The proposal is stochastic attention eq. 10 and 20,
    xi' = (1 - alpha) xi + alpha X softmax(beta (X^T xi + b)) + sqrt(2 alpha / beta) eps.
    Two matrix products a step, each of 2 C K D operations; every buffer is made once, and lies on
    the CPU.

    Args:
        x_CD: where the chains start; taken over, not copied.
        beta: inverse temperature, positive.
        alpha: step size in (0, 1]; there no step can diverge, because the softmax is bounded.
    """

    def __init__(self, energy: ModernHopfield, x_CD: Tensor, beta: float, alpha: float) -> None:
        self.energy, self.x_CD, self.beta, self.alpha = energy, x_CD, beta, alpha
        self._patterns_KD = energy.patterns_KD
        self._keys_DK = (beta * energy.patterns_KD).T.contiguous()  # a third faster than a view
        self._offset_K = None if energy.offset_K is None else beta * energy.offset_K
        self._z_CK = x_CD.new_empty(len(x_CD), len(energy.patterns_KD))

    @property
    def noise_scale(self) -> float:
        """Standard deviation of the noise of a step, sqrt(2 alpha / beta)."""
        return (2 * self.alpha / self.beta) ** 0.5

    @property
    def acceptance_rate_C(self) -> Tensor | None:
        """Share of the steps taken that were accepted; None where all are."""
        return None

    @abstractmethod
    def step(self, noise_CD: Tensor, log_uniform_C: Tensor) -> None:
        """Move every chain.

        Args:
            noise_CD: N(0, noise_scale^2).
            log_uniform_C: logarithm of U(0, 1), used to accept or reject.
        """

    def _logits(self, x_CD: Tensor) -> Tensor:
        """beta (X^T xi + b), in a buffer that the next call overwrites."""
        if self._offset_K is None:
            return torch.mm(x_CD, self._keys_DK, out=self._z_CK)
        return torch.addmm(self._offset_K, x_CD, self._keys_DK, out=self._z_CK)


@final
class ULAKernel(LangevinKernel):
    """ULA, algorithm 1: every step is taken, at a bias that grows with alpha."""

    def step(self, noise_CD: Tensor, log_uniform_C: Tensor) -> None:
        z_CK = self._logits(self.x_CD)
        torch.softmax(z_CK, 1, out=z_CK)
        torch.add(noise_CD, self.x_CD, alpha=1 - self.alpha, out=self.x_CD)
        self.x_CD.addmm_(z_CK, self._patterns_KD, alpha=self.alpha)


@final
class MALAKernel(LangevinKernel):
    """MALA, algorithm 2: the same proposal, accepted so that exp(-beta E) is exactly stationary.

    With a = X softmax(..), the attention at xi, g = xi - a the gradient, l the log-sum-exp of the
    logits and d = xi' - xi, the logarithm of the ratio in eq. 22 is

        l' - l - beta/2 d . (a + a') - alpha beta/4 (|g'|^2 - |g|^2).

    It is eq. 22 with |xi|^2/2 and what cancels it taken out: at beta = 2000 those terms are a
    thousand times their difference, and in float32 the difference would be lost. Attention at the
    candidate is that of the next step if it is accepted, so a step costs no more products than
    one of ULA (the paper counts twice as many).
    """

    def __init__(self, energy: ModernHopfield, x_CD: Tensor, beta: float, alpha: float) -> None:
        super().__init__(energy, x_CD, beta, alpha)
        self._a_CD, self._next_a_CD = torch.empty_like(x_CD), torch.empty_like(x_CD)
        self._y_CD = torch.empty_like(x_CD)
        self._accepted_C = torch.zeros(len(x_CD), dtype=torch.int64)
        self._steps = 0
        self.log_ratio_C = torch.zeros_like(x_CD[:, 0])
        self._p_CK = torch.empty_like(self._z_CK)
        self._attend(x_CD, self._a_CD)
        self._l_C = torch.logsumexp(self._z_CK, 1)
        self._g_C = (x_CD - self._a_CD).pow(2).sum(1)

    @property
    def acceptance_rate_C(self) -> Tensor:
        return self._accepted_C / max(self._steps, 1)

    def step(self, noise_CD: Tensor, log_uniform_C: Tensor) -> None:
        y, b = self._y_CD, self._next_a_CD
        torch.add(noise_CD, self.x_CD, alpha=1 - self.alpha, out=y)
        y.add_(self._a_CD, alpha=self.alpha)
        self._attend(y, b)
        state = (self.x_CD, self._a_CD, self._l_C, self._g_C)
        candidate = (y, b, self._z_CK, self._p_CK)
        told = (log_uniform_C, self.log_ratio_C, self._accepted_C)
        _decide(_arrays(state), _arrays(candidate), _arrays(told), self.beta, self.alpha)
        self._steps += 1

    def _attend(self, x_CD: Tensor, out_CD: Tensor) -> None:
        """Logits and their softmax into buffers, attention into `out_CD`."""
        torch.softmax(self._logits(x_CD), 1, out=self._p_CK)
        torch.mm(self._p_CK, self._patterns_KD, out=out_CD)


def _arrays(tensors: tuple[Tensor, ...]) -> tuple[np.ndarray, ...]:
    return tuple(tensor.numpy() for tensor in tensors)


@njit(nogil=True, cache=True, fastmath={"reassoc", "contract", "nsz"})
def _decide(state, candidate, told, beta, alpha):
    """Take candidates y with attention b over x with attention a where the ratio says so."""
    x_CD, a_CD, l_C, g_C = state
    y_CD, b_CD, z_CK, p_CK = candidate
    log_u_C, ratio_C, accepted_C = told
    zero = x_CD[0, 0] * 0
    for c in range(len(x_CD)):
        most = np.argmax(p_CK[c])
        lse = z_CK[c, most] - np.log(p_CK[c, most])  # the largest share has the least rounding
        g = along = zero
        for i in range(x_CD.shape[1]):
            b = b_CD[c, i]
            y = y_CD[c, i]
            g += (y - b) * (y - b)
            along += (y - x_CD[c, i]) * (a_CD[c, i] + b)
        ratio = lse - l_C[c] - beta / 2 * along - alpha * beta / 4 * (g - g_C[c])
        ratio_C[c] = ratio
        if ratio > log_u_C[c]:  # False where the ratio is not a number
            x_CD[c], a_CD[c] = y_CD[c], b_CD[c]
            l_C[c], g_C[c] = lse, g
            accepted_C[c] += 1


KERNELS: dict[Method, type[LangevinKernel]] = {Method.ULA: ULAKernel, Method.MALA: MALAKernel}
