"""The one loop in which every state relaxes."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from models.dynamics.motion import Motion
from models.dynamics.relaxation import (
    Relaxation,
    RowParams,
    Solution,
    StepCallback,
    StopReason,
    draw_noise,
    noise_generators,
)
from models.dynamics.system import StepBackend
from models.energies import Energy
from models.layouts import Layout

Interrupt = Callable[[], StopReason | None]
"""Called before each step; a reason stops all rows that still move."""


class StepControl:
    """Takes the steps of relaxations and tells when to stop; this one never stops them early.

    A scheduler that steps the rows of several callers together overrides both methods.
    """

    def stop_reason(self) -> StopReason | None:
        """Why the computation should stop, None while it should go on. Called before each step."""
        return None

    def drive(self, relaxation: Relaxation) -> None:
        """Step `relaxation` until no row moves any more."""
        run_to_completion(relaxation, self.stop_reason)


RUN_ALONE = StepControl()


def relax_as_trained(
    energy: Energy,
    motion: Motion,
    norm: nn.Module,
    x_ND: Tensor,
    layout: Layout,
    beta_RH: Tensor,
    steps: int,
    step_size: float,
) -> Tensor:
    """`relax_differentiable` where all rows take the same steps without noise. Nothing in it waits
    for the device, and `torch.compile` makes one graph of it."""
    field = energy.prepare()
    for _ in range(steps):
        terms = field(norm(x_ND), layout, beta_RH, True)
        assert terms.force_ND is not None
        x_ND = x_ND + step_size * motion.drift(x_ND, terms.force_ND)
    return x_ND


def relax_differentiable(
    energy: Energy, motion: Motion, norm: nn.Module, x_ND: Tensor, layout: Layout, params: RowParams
) -> Tensor:
    """`solve` for training: every row takes its steps, nothing is measured, gradients flow."""
    alpha_N1, field = layout.of_tokens(params.step_size_R[:, None]), energy.prepare()
    drawn_by = noise_generators(params)
    for t in range(int(params.steps_R.max())):
        terms = field(norm(x_ND), layout, params.beta_RH, True)
        assert terms.force_ND is not None
        moved = x_ND + alpha_N1 * motion.drift(x_ND, terms.force_ND)
        drawn = draw_noise(x_ND, layout, params, drawn_by)
        if drawn is not None:
            moved = moved + drawn
        going_R = params.steps_R > t
        if not going_R.all():
            going_R1 = torch.from_numpy(going_R)[:, None].to(x_ND.device)
            moved = torch.where(layout.of_tokens(going_R1), moved, x_ND)
        x_ND = moved
    return x_ND


def solve(
    energy: Energy,
    motion: Motion,
    norm: nn.Module,
    x_ND: Tensor,
    layout: Layout,
    params: RowParams,
    control: StepControl = RUN_ALONE,
    watch: StepCallback | None = None,
) -> Solution:
    """`solve_system` with the torch backend of these three parts."""
    backend = StepBackend.from_parts(energy, motion, norm)
    return solve_system(backend, x_ND, layout, params, control, watch)


@torch.no_grad()
def solve_system(
    system: StepBackend,
    x_ND: Tensor,
    layout: Layout,
    params: RowParams,
    control: StepControl = RUN_ALONE,
    watch: StepCallback | None = None,
) -> Solution:
    """Move every row of `x_ND` (N, D) until it converges or its steps are used up.

    See `Relaxation` for what a step is.
    """
    relaxation = Relaxation.from_state(system, x_ND, layout, params, watch)
    control.drive(relaxation)
    return relaxation.solution()


def run_to_completion(relaxation: Relaxation, interrupt: Interrupt) -> None:
    """Take all steps of `relaxation` by itself."""
    if not relaxation.trace:  # the first evaluation moves nothing
        relaxation.step()
    while relaxation.moving_rows:
        if (why := interrupt()) is not None:
            relaxation.stop(why)
        else:
            relaxation.step()
