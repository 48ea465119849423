"""The energy by which the unknown part of an image is drawn to stored images."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor

from models.energies.base import Energy, Terms
from models.layouts import Layout, PatternLayout


@final
class ClampedMemory(Energy):
    """E(u) = - 1/beta log sum_k exp(beta s_k) + |u - sum_k p_k x_ku|^2 / 2, p = softmax(beta s).

    For xi = (u, v) with the coordinates v known, s_k = -|v - x_kv|^2 / 2 compares with what is
    known alone, so where u begins has no part in the answer. p is the posterior over k of a mixture
    of Gaussians of variance 1/beta around the stored patterns x_k; u comes to rest at its mean, in
    one step of size 1. The first term is the logarithm of the likelihood of v, up to a constant.

    `ModernHopfield.condition_on` compares by products, and u takes part. Patterns of unit length
    are as near as their product is large; parts of them, and patterns of any length, are not.

    Each token is a row, and an image to complete. The layout has the patterns, of unit length.

    Args:
        norm_K: lengths of the patterns.
        score_RK: s of each row.
        hidden_D: which coordinates are not known; a state holds those alone.
    """

    heads = 1
    norm_K: Tensor
    score_RK: Tensor
    hidden_D: Tensor

    def __init__(self, norm_K: Tensor, score_RK: Tensor, hidden_D: Tensor) -> None:
        super().__init__()
        self.register_buffer("norm_K", norm_K)
        self.register_buffer("score_RK", score_RK)
        self.register_buffer("hidden_D", hidden_D)

    def forward(
        self, g_ND: Tensor, layout: Layout, beta_RH: Tensor, with_force: bool = True
    ) -> Terms:
        """Components `retrieval` (the log-sum-exp) and `confinement` (the rest)."""
        assert isinstance(layout, PatternLayout)
        z_RK = beta_RH * self.score_RK
        mean_RD = layout.mix(torch.softmax(z_RK, -1) * self.norm_K)
        pull_RD = mean_RD[:, self.hidden_D] - g_ND
        parts = {
            "retrieval": -torch.logsumexp(z_RK, -1) / beta_RH[:, 0],
            "confinement": pull_RD.pow(2).sum(-1) / 2,
        }
        return Terms(parts, pull_RD if with_force else None)

    def memory_activations(
        self, g_ND: Tensor, layout: Layout, beta_RH: Tensor
    ) -> tuple[Tensor, Tensor]:
        """p (N, K), the weight of each pattern in what is retrieved; twice, as its share is the
        same."""
        weight_NK = torch.softmax(beta_RH * self.score_RK, -1)
        return weight_NK, weight_NK
