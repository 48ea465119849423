"""A weighted sum of energies."""

from __future__ import annotations

from abc import abstractmethod
from typing import cast, final

import torch
from torch import Tensor, nn

from models.energies.base import Energy, EnergyFn, PreparedSum, Terms
from models.layouts import Layout


class _Weighted(Energy):
    """sum_i w_i E_i."""

    def __init__(self, *energies: Energy) -> None:
        super().__init__()
        self.energies = nn.ModuleList(energies)

    @abstractmethod
    def weights(self) -> list[Tensor | float]:
        """One weight for each energy."""

    def leaves(self) -> list[tuple[Tensor | float, Energy]]:
        return [
            (weight * of_leaf, leaf)
            for weight, energy in zip(self.weights(), self.energies, strict=True)
            for of_leaf, leaf in cast(Energy, energy).leaves()
        ]

    def prepare(self) -> EnergyFn:
        return PreparedSum(self.leaves())

    def forward(
        self, g_ND: Tensor, layout: Layout, beta_RH: Tensor, with_force: bool = True
    ) -> Terms:
        return self.prepare()(g_ND, layout, beta_RH, with_force)


@final
class Sum(_Weighted):
    """E = E_1 + E_2 + ..., Energy Transformer eq. 6."""

    def weights(self) -> list[Tensor | float]:
        return [1.0] * len(self.energies)


@final
class Scaled(_Weighted):
    """E = a (E_1 + E_2 + ...) with a > 0 learned, so that a step of 1 is as long as was trained."""

    def __init__(self, *energies: Energy, initial: float) -> None:
        super().__init__(*energies)
        self.log_scale = nn.Parameter(torch.tensor(initial).log())

    def weights(self) -> list[Tensor | float]:
        return [self.log_scale.exp()] * len(self.energies)


@final
class Balanced(_Weighted):
    """E = lambda_v E_1 + lambda_h E_2 with lambda_v + lambda_h = 1, both positive and learned.

    CDAT eq. 9; the released code has no weights.

    Args:
        initial: lambda_v before training, between 0 and 1.
    """

    def __init__(self, first: Energy, second: Energy, initial: float = 0.5) -> None:
        super().__init__(first, second)
        self.balance = nn.Parameter(torch.tensor(initial).logit())

    def weights(self) -> list[Tensor | float]:
        first = torch.sigmoid(self.balance)
        return [first, 1 - first]
