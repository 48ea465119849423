"""Step backends: evaluate an energy and its force at a state; faster ones replace this one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from models.dynamics.motion import Motion, subtract_control
from models.energies import Energy, EnergyFn, Terms
from models.layouts import Layout


class PreviousStep(NamedTuple):
    """The step that led to a state: dx/dt, the control, and the activation g before it."""

    drift_ND: Tensor
    control_ND: Tensor | None
    g_ND: Tensor


class Evaluation(NamedTuple):
    """A state evaluated. Sums by row are on the host, where it is decided which rows go on.

    Attributes:
        g_ND, terms: its activation, and the energy there.
        control_ND: what the motion subtracts from the force there, None if nothing.
        components: the energy of each row by component, (R,) each.
        squared_norm_R: |x|^2.
        squared_speed_R: |dx/dt|^2 of the step to it, if there was one.
        control_work_R: what control did in that step, if there is any.
    """

    g_ND: Tensor
    terms: Terms
    control_ND: Tensor | None
    components: dict[str, np.ndarray]
    squared_norm_R: np.ndarray
    squared_speed_R: np.ndarray | None
    control_work_R: np.ndarray | None


@dataclass(frozen=True)
class StepBackend:
    """What makes a state move: the activation g = norm(x), E(g), and the motion under -dE/dg.

    Attributes:
        energy_fn: the energy, with all prepared that does not depend on the state.
    """

    energy: Energy
    motion: Motion
    norm: nn.Module
    energy_fn: EnergyFn

    @property
    def runtime(self) -> str:
        """Whose products it takes."""
        return "torch"

    @classmethod
    def from_parts(cls, energy: Energy, motion: Motion, norm: nn.Module) -> StepBackend:
        return cls(energy, motion, norm, energy.prepare())

    def evaluate(
        self, x_ND: Tensor, layout: Layout, beta_RH: Tensor, with_force: bool
    ) -> tuple[Tensor, Terms]:
        """g (N, D) at a state, and its energy there."""
        g_ND = self.norm(x_ND)
        return g_ND, self.energy_fn(g_ND, layout, beta_RH, with_force)

    def step(
        self,
        x_ND: Tensor,
        layout: Layout,
        step_size_R: Tensor,
        force_ND: Tensor,
        control_ND: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """x + alpha dx/dt, and dx/dt, (N, D) each."""
        drift_ND = subtract_control(force_ND, control_ND)
        alpha_N1 = layout.of_tokens(step_size_R[:, None])
        return torch.addcmul(x_ND, alpha_N1, drift_ND), drift_ND

    def evaluate_with_stats(
        self,
        x_ND: Tensor,
        layout: Layout,
        beta_RH: Tensor,
        with_force: bool,
        previous: PreviousStep | None,
    ) -> Evaluation:
        """Evaluate a state, with sums by row; `previous` is None if no step led to it."""
        g_ND, terms = self.evaluate(x_ND, layout, beta_RH, with_force)
        held_ND = self.motion.control(x_ND)
        per_token = [*terms.parts.values(), _squared(x_ND)]
        if previous is not None:
            per_token.append(_squared(previous.drift_ND))
            if previous.control_ND is not None and held_ND is not None:
                per_token.append(
                    ((previous.control_ND + held_ND) / 2 * (g_ND - previous.g_ND)).sum(-1)
                )
        sums = layout.sum_rows(torch.stack(per_token)).cpu().numpy()  # in one transfer
        components = dict(zip(terms.parts, sums, strict=False))
        size_R, speed_R, work_R, *_ = *sums[len(components) :], None, None
        return Evaluation(g_ND, terms, held_ND, components, size_R, speed_R, work_R)


def _squared(values_ND: Tensor) -> Tensor:
    """|v|^2 of each token, (N,), in one pass."""
    return torch.linalg.vector_norm(values_ND, dim=-1).square()
