"""Hopfield energies: each token by itself is drawn to learned memories."""

from __future__ import annotations

from typing import Literal, final, get_args

import torch
from torch import Tensor, nn

from models.energies.base import LinearFeatureEnergy
from models.layouts import Layout

HopfieldKind = Literal["relu2", "relu", "power", "softmax"]


@final
class Hopfield(LinearFeatureEnergy):
    """E = - sum_B sum_mu G(xi_mu . g_B), Energy Transformer eq. 5, force as in eq. 9.

    `kind` chooses G, with r = G' in the force sum_mu xi_mu r(xi_mu . g):

    - `relu2`: G(s) = relu(s)^2 / 2, r = relu(s). The paper's classical network.
    - `relu`: G(s) = relu(s), r = [s > 0]. CDAT eq. 15. Its force is piecewise constant.
    - `power`: G(s) = relu(s)^n / n with n = 4, r = relu(s)^(n-1). Dense associative memory.
    - `softmax`: the sum is log sum_mu exp(b xi_mu . g) / b with a learned b > 0, r = softmax.
    """

    POWER = 4

    def __init__(self, dim: int, memories: int, kind: HopfieldKind = "relu2") -> None:
        super().__init__()
        if kind not in get_args(HopfieldKind):
            raise ValueError(
                f"unknown Hopfield kind {kind!r}; choose from {get_args(HopfieldKind)}"
            )
        self.kind = kind
        self.memories_MD = nn.Parameter(torch.randn(memories, dim) * dim**-0.5)
        self.log_sharpness = nn.Parameter(torch.zeros(()), requires_grad=kind == "softmax")

    def feature_directions(self) -> Tensor:
        return self.memories_MD

    def potential(
        self, u_NF: Tensor, layout: Layout, beta_RH: Tensor, with_force: bool
    ) -> tuple[dict[str, Tensor], Tensor | None]:
        s_NM = u_NF
        if self.kind == "relu2":
            r = s_NM.relu()
            value = torch.linalg.vector_norm(r, dim=-1).square() / 2  # one pass over r
        elif self.kind == "relu":
            value, r = s_NM.relu().sum(-1), (s_NM > 0).to(s_NM)
        elif self.kind == "power":
            up = s_NM.relu()
            value, r = up.pow(self.POWER).sum(-1) / self.POWER, up.pow(self.POWER - 1)
        else:
            b = self.log_sharpness.exp()
            value, r = torch.logsumexp(b * s_NM, -1) / b, torch.softmax(b * s_NM, -1)
        return {"hopfield": -value}, r if with_force else None

    def memory_activations(
        self, g_ND: Tensor, layout: Layout, beta_RH: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Activations r, by which memories pull, and their shares of the energy, (N, M) each.

        A share is G(s) over the sum of all G(s), 0 where none fires; of `softmax`, whose energy is
        no sum over memories, it is r.
        """
        s_NM = g_ND @ self.memories_MD.T
        if self.kind == "softmax":
            r = torch.softmax(self.log_sharpness.exp() * s_NM, -1)
            return r, r
        up = s_NM.relu()
        power = {"relu": 1, "relu2": 2, "power": self.POWER}[self.kind]
        value = up.pow(power)
        r = (s_NM > 0).to(s_NM) if power == 1 else up.pow(power - 1)
        return r, value / value.sum(-1, keepdim=True).clamp(min=torch.finfo(value.dtype).tiny)
