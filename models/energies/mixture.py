"""A weighted sum of energies."""

from __future__ import annotations

from abc import abstractmethod
from typing import cast, final

import torch
from torch import Tensor, nn

from models.energies.base import Energy, Featured, Field, SumField, Terms
from models.layouts import Layout


class _Weighted(Energy):
    """sum_i w_i E_i."""

    def __init__(self, *energies: Featured) -> None:
        super().__init__()
        self.energies = nn.ModuleList(energies)

    @abstractmethod
    def weights(self) -> list[Tensor | float]:
        """One weight for each energy."""

    def leaves(self) -> list[tuple[Tensor | float, Energy]]:
        return list(self._weighted())

    def field(self) -> Field:
        return SumField(self._weighted())

    def forward(
        self, g_ND: Tensor, layout: Layout, beta_RH: Tensor, with_force: bool = True
    ) -> Terms:
        return self.field()(g_ND, layout, beta_RH, with_force)

    def _weighted(self) -> list[tuple[Tensor | float, Featured]]:
        energies = [cast(Featured, energy) for energy in self.energies]
        return list(zip(self.weights(), energies, strict=True))


@final
class Sum(_Weighted):
    """E = E_1 + E_2 + ..., Energy Transformer eq. 6."""

    def weights(self) -> list[Tensor | float]:
        return [1.0] * len(self.energies)


@final
class Balanced(_Weighted):
    """E = lambda_v E_1 + lambda_h E_2 with lambda_v + lambda_h = 1, both positive and learned.

    CDAT eq. 9; the released code has no weights.

    Args:
        initial: lambda_v before training, between 0 and 1.
    """

    def __init__(self, first: Featured, second: Featured, initial: float = 0.5) -> None:
        super().__init__(first, second)
        self.balance = nn.Parameter(torch.tensor(initial).logit())

    def weights(self) -> list[Tensor | float]:
        first = torch.sigmoid(self.balance)
        return [first, 1 - first]
