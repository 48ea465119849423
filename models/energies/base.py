"""What every energy answers: how low is each token, by which part, and which way is down."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
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


EnergyFn = Callable[[Tensor, Layout, Tensor, bool], Terms]
"""What `Energy.forward` is, called with all of its arguments."""


class Energy(nn.Module, ABC):
    """A scalar function of the activations g (N, D) of each row, with its closed-form force."""

    def prepare(self) -> EnergyFn:
        """The same function with all made ready that does not depend on g, for many steps."""
        return self

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


class LinearFeatureEnergy(Energy):
    """E(g) = phi(U g), of F linear features u = U g, so that the force is -U^T dphi/du."""

    @abstractmethod
    def feature_directions(self) -> Tensor:
        """U (F, D)."""

    @abstractmethod
    def potential(
        self, u_NF: Tensor, layout: Layout, beta_RH: Tensor, with_force: bool
    ) -> tuple[dict[str, Tensor], Tensor | None]:
        """phi per token by component, and -dphi/du (N, F), None if no force is asked for."""

    def prepare(self) -> EnergyFn:
        return PreparedSum([(1.0, self)])

    def forward(
        self, g_ND: Tensor, layout: Layout, beta_RH: Tensor, with_force: bool = True
    ) -> Terms:
        return self.prepare()(g_ND, layout, beta_RH, with_force)


class PreparedSum:
    """sum_i w_i E_i(g), with one product for the features of all that are `LinearFeatureEnergy`."""

    def __init__(self, leaves: Sequence[tuple[Tensor | float, Energy]]) -> None:
        self._featured = [(w, leaf) for w, leaf in leaves if isinstance(leaf, LinearFeatureEnergy)]
        self._rest = [
            (w, leaf.prepare()) for w, leaf in leaves if not isinstance(leaf, LinearFeatureEnergy)
        ]
        directions = [leaf.feature_directions() for _, leaf in self._featured]
        self.feature_widths = [len(u_FD) for u_FD in directions]
        self.directions_FD = torch.cat(directions) if directions else None
        # There are fewer of them to be weighed than features of tokens.
        weights = [weight for weight, _ in self._featured]
        self.weighted_directions = [
            _times(w, u_FD) for w, u_FD in zip(weights, directions, strict=True)
        ]

    def features(self, g_ND: Tensor) -> Sequence[Tensor]:
        """U g of each that has features."""
        assert self.directions_FD is not None
        return (g_ND @ self.directions_FD.T).split(self.feature_widths, 1)

    def project_back(self, pulls: Sequence[Tensor]) -> Tensor:
        """w U^T (-dphi/du), summed; where precision is mixed, in that of U."""
        both = zip(pulls, self.weighted_directions, strict=True)
        forces = [(pull_NF @ u_FD).to(u_FD.dtype) for pull_NF, u_FD in both]
        return sum(forces[1:], forces[0])

    def __call__(
        self, g_ND: Tensor, layout: Layout, beta_RH: Tensor, with_force: bool = True
    ) -> Terms:
        parts: dict[str, Tensor] = {}
        forces: list[Tensor] = []
        pulls: list[Tensor] = []
        features = self.features(g_ND) if self._featured else ()
        for (weight, leaf), u_NF in zip(self._featured, features, strict=True):
            found, pull_NF = leaf.potential(u_NF, layout, beta_RH, with_force)
            parts |= {name: _times(weight, part_N) for name, part_N in found.items()}
            if pull_NF is not None:
                pulls.append(pull_NF)
        if pulls:
            forces.append(self.project_back(pulls))
        for weight, field in self._rest:
            terms = field(g_ND, layout, beta_RH, with_force)
            parts |= {name: _times(weight, part_N) for name, part_N in terms.parts.items()}
            if terms.force_ND is not None:
                forces.append(_times(weight, terms.force_ND).to(g_ND.dtype))
        return Terms(parts, sum(forces[1:], forces[0]).to(g_ND.dtype) if forces else None)


def _times(weight: Tensor | float, value: Tensor) -> Tensor:
    return value if isinstance(weight, float) and weight == 1 else weight * value
