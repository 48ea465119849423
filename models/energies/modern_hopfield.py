"""The modern Hopfield energy: a state is drawn to stored patterns and held near the origin."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor

from models.energies.base import Energy, Terms
from models.layouts import Layout


@final
class ModernHopfield(Energy):
    """E(xi) = - 1/beta log sum_k exp(beta (x_k . xi + b_k)) + |xi|^2 / 2 + c.

    Stochastic attention eq. 3 (Ramsauer et al. 2021) with b = 0 and c = 0; the force is
    X softmax(beta (X^T xi + b)) - xi, eq. 4. Each token is a state by itself, whatever the layout.
    The patterns are data, not parameters. K patterns of width D, by rows.

    The offsets b are what coordinates that are known leave behind: for xi = (u, v) with v given,
    E(u, v) = -1/beta log sum_k exp(beta (x_ku . u + x_kv . v)) + |u|^2 / 2 + |v|^2 / 2, the same
    energy on fewer coordinates (`given`). So sampling under a condition is sampling, exactly.
    """

    heads = 1
    patterns_KD: Tensor
    offset_K: Tensor | None

    def __init__(
        self, patterns_KD: Tensor, offset_K: Tensor | None = None, constant: float = 0.0
    ) -> None:
        super().__init__()
        if patterns_KD.ndim != 2 or 0 in patterns_KD.shape:
            raise ValueError("patterns must be a matrix with a row per pattern")
        self.register_buffer("patterns_KD", patterns_KD)
        self.register_buffer("offset_K", offset_K)
        self.ground = constant

    def forward(
        self, g_ND: Tensor, layout: Layout, beta_RH: Tensor, with_force: bool = True
    ) -> Terms:
        """Components `retrieval` (the log-sum-exp) and `confinement` (the rest)."""
        if beta_RH.shape[1] != self.heads:
            raise ValueError("this energy has one inverse temperature per row")
        beta_N1 = layout.of_tokens(beta_RH)
        z_NK = beta_N1 * self.match_patterns(g_ND)
        parts = {
            "retrieval": -torch.logsumexp(z_NK, -1) / beta_N1[:, 0],
            "confinement": g_ND.pow(2).sum(-1) / 2 + self.ground,
        }
        force_ND = torch.softmax(z_NK, -1) @ self.patterns_KD - g_ND if with_force else None
        return Terms(parts, force_ND)

    def match_patterns(self, x_ND: Tensor) -> Tensor:
        """x_k . xi + b_k (N, K)."""
        s_NK = x_ND @ self.patterns_KD.T
        return s_NK if self.offset_K is None else s_NK + self.offset_K

    def weights(self, x_ND: Tensor, beta: float) -> Tensor:
        """Attention to each pattern, softmax(beta match) (N, K)."""
        return torch.softmax(beta * self.match_patterns(x_ND), -1)

    def value(self, x_ND: Tensor, beta: float) -> Tensor:
        """E (N,) at one temperature."""
        lse_N = torch.logsumexp(beta * self.match_patterns(x_ND), -1)
        return x_ND.pow(2).sum(-1) / 2 + self.ground - lse_N / beta

    def condition_on(self, known_D: Tensor, values_k: Tensor) -> ModernHopfield:
        """The energy of the coordinates where the mask `known_D` is false, the others at `values`.

        Raises:
            ValueError: every coordinate is known.
        """
        known_Kk = self.patterns_KD[:, known_D]
        offset_K = known_Kk @ values_k
        if self.offset_K is not None:
            offset_K = offset_K + self.offset_K
        ground = self.ground + float(values_k.double().pow(2).sum()) / 2
        return ModernHopfield(self.patterns_KD[:, ~known_D].contiguous(), offset_K, ground)
