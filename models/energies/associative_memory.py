"""The energy by which patches are drawn to the attractors of their own workspace."""

from __future__ import annotations

import math
from typing import final

import torch

from models.energies.base import Energy, Terms
from models.layouts import Layout, PatternLayout


@final
class AssociativeMemory(Energy):
    """E(xi) = - 1/beta log sum_i exp(beta a_i . xi) + |xi|^2 / 2 + log(M) / beta + zeta^2 / 2.

    Associative Transformer eq. 7 with zeta = max_i |a_i| (eq. 8); the force is
    sum_i softmax_i(beta a . xi) a_i - xi, so one step of size 1 is the retrieval of Ramsauer et
    al. 2021. The M attractors a_i belong to the layout: they are computed from each row's input.
    The last two terms keep E at or above 0 and exert no force.

    `ModernHopfield` is the same energy on patterns that all rows share, without those terms.
    """

    def forward(
        self, g_ND: torch.Tensor, layout: Layout, beta_RH: torch.Tensor, with_force: bool = True
    ) -> Terms:
        """Components `retrieval` (the log-sum-exp) and `confinement` (the rest)."""
        if not isinstance(layout, PatternLayout) or beta_RH.shape[1] != 1:
            raise ValueError("this energy needs a row's attractors and one inverse temperature")
        beta_N1 = layout.of_tokens(beta_RH)
        z_NM = beta_N1 * layout.match(g_ND)
        floor_N = math.log(z_NM.shape[1]) / beta_N1[:, 0]
        zeta_N = layout.of_tokens(layout.reach()[:, None])[:, 0]
        parts = {
            "retrieval": -torch.logsumexp(z_NM, -1) / beta_N1[:, 0],
            "confinement": g_ND.pow(2).sum(-1) / 2 + floor_N + zeta_N.pow(2) / 2,
        }
        force_ND = layout.mix(torch.softmax(z_NM, -1)) - g_ND if with_force else None
        return Terms(parts, force_ND)

    def memory_activations(
        self, g_ND: torch.Tensor, layout: Layout, beta_RH: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """softmax(beta a . xi) (N, M), the weight of each attractor in what is retrieved; twice, as
        its share is the same."""
        assert isinstance(layout, PatternLayout)
        weight_NM = torch.softmax(layout.of_tokens(beta_RH) * layout.match(g_ND), -1)
        return weight_NM, weight_NM
