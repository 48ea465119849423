"""LayerNorm as the activation of a Lagrangian."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor, nn


@final
class EnergyLayerNorm(nn.Module):
    """g = gamma (x - mean x) / sqrt(var x + eps) + delta, Energy Transformer eq. 1.

    gamma > 0 is one scalar (kept positive as an exponential) and delta a vector, so g is the
    gradient of the Lagrangian of eq. 2 and its Jacobian is positive semi-definite (CDAT lemma
    3.2), without which the energy need not fall.
    """

    def __init__(self, dim: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps
        self.log_gamma = nn.Parameter(torch.zeros(()))
        self.delta_D = nn.Parameter(torch.zeros(dim))

    def forward(self, x_ND: Tensor) -> Tensor:
        """Activations g (N, D) of states x (N, D)."""
        gamma_D = self.log_gamma.exp().expand_as(self.delta_D)
        return nn.functional.layer_norm(x_ND, x_ND.shape[-1:], gamma_D, self.delta_D, self.eps)

    def lagrangian(self, x_ND: Tensor) -> Tensor:
        """L (N,) of eq. 2, with dL/dx = g."""
        centred = x_ND - x_ND.mean(-1, keepdim=True)
        deviation = (centred.pow(2).mean(-1) + self.eps).sqrt()
        return x_ND.shape[-1] * self.log_gamma.exp() * deviation + x_ND @ self.delta_D
