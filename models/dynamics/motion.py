"""How the state moves under a force."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, final

import torch
from torch import Tensor, nn


class Motion(nn.Module, ABC):
    """dx/dt of a state x with the force -dE/dg on its activation: the force, less what controls x.

    Attributes:
        has_control: whether anything does.
    """

    has_control: ClassVar[bool]

    @abstractmethod
    def control(self, x_ND: Tensor) -> Tensor | None:
        """What holds x (N, D) against pure descent. None if nothing does."""

    def drift(self, x_ND: Tensor, force_ND: Tensor) -> Tensor:
        """dx/dt (N, D), in units where tau = 1."""
        return subtract_control(force_ND, self.control(x_ND))


def subtract_control(force_ND: Tensor, control_ND: Tensor | None) -> Tensor:
    """dx/dt (N, D) where both are known."""
    return force_ND if control_ND is None else force_ND - control_ND


@final
class Descent(Motion):
    """tau dx/dt = -dE/dg, Energy Transformer eq. 6."""

    has_control = False

    def control(self, x_ND: Tensor) -> Tensor | None:
        return None


@final
class ControlledDynamics(Motion):
    """tau dx/dt = W x - (1 + omega) x - dE/dg, CDAT eq. 2 and 4.

    W = P^T diag(Q) P is symmetric and of rank `coupling_rank`, eq. 8, in feature space: it never
    depends on how nodes are numbered (in the released code P spans the tokens and W is not
    symmetric). `locality` adds the Gaussian prior of eq. 3, J0 exp(-d^2 / 2 a^2) with d the
    distance of two features on a ring. omega > 0 is learned through a softplus.

    Args:
        coupling_rank: r of eq. 8; 0 leaves W out.
        inhibition: False fixes omega = 0 (the passive decay -x stays).
        locality: (J0, a) of eq. 3, or None.
    """

    has_control = True
    prior_DD: Tensor | None

    def __init__(
        self,
        dim: int,
        coupling_rank: int = 4,
        inhibition: bool = True,
        locality: tuple[float, float] | None = None,
    ) -> None:
        super().__init__()
        self.coupling_rank, self.inhibition = coupling_rank, inhibition
        self.basis_rD = nn.Parameter(torch.randn(coupling_rank, dim) * dim**-0.5)
        self.strength_r = nn.Parameter(torch.zeros(coupling_rank))
        self.raw_omega = nn.Parameter(torch.zeros(()), requires_grad=inhibition)
        prior = None
        if locality is not None:
            amplitude, width = locality
            at = torch.arange(dim)
            apart = (at[:, None] - at).abs()
            ring = torch.minimum(apart, dim - apart)
            prior = amplitude * torch.exp(-ring.pow(2) / (2 * width**2))
        self.register_buffer("prior_DD", prior, persistent=False)

    @property
    def omega(self) -> Tensor:
        """omega >= 0, CDAT eq. 2."""
        positive = nn.functional.softplus(self.raw_omega)
        return positive if self.inhibition else torch.zeros_like(positive)

    def coupling(self) -> Tensor:
        """W (D, D)."""
        w_DD = self.basis_rD.T @ (self.strength_r[:, None] * self.basis_rD)
        return w_DD if self.prior_DD is None else w_DD + self.prior_DD

    def _excite(self, x_ND: Tensor) -> Tensor:
        wx_ND = (x_ND @ self.basis_rD.T * self.strength_r) @ self.basis_rD
        return wx_ND if self.prior_DD is None else wx_ND + x_ND @ self.prior_DD

    def control(self, x_ND: Tensor) -> Tensor:
        return (1 + self.omega) * x_ND - self._excite(x_ND)
