"""What every energy answers: how low is each token, by which part, and which way is down."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

from torch import Tensor, nn

from models.layouts import Layout


class Terms(NamedTuple):
    """Value and force of an energy at one state.

    `parts` maps a component's name to its energy per token, (N,); their sum over the tokens of
    a row is the row's energy. `force_ND` is -dE/dg in closed form, None if it was not asked for.
    """

    parts: dict[str, Tensor]
    force_ND: Tensor | None

    @property
    def token_energy_N(self) -> Tensor:
        total = None
        for part in self.parts.values():
            total = part if total is None else total + part
        assert total is not None
        return total


class Energy(nn.Module, ABC):
    """A scalar function of the activations g (N, D) of each row, with its closed-form force."""

    @abstractmethod
    def forward(
        self, g_ND: Tensor, layout: Layout, beta_RH: Tensor, with_force: bool = True
    ) -> Terms:
        """Energy per token by component, and the force -dE/dg (N, D).

        Args:
            g_ND: activations.
            layout: which tokens see which, and which row each belongs to.
            beta_RH: inverse temperature per row and head, positive.
        """

    def leaves(self) -> list[tuple[Tensor | float, Energy]]:
        """The energies that this one is a sum of, each with its weight."""
        return [(1.0, self)]
