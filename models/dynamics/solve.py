"""The one loop in which every state relaxes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor, nn

from models.dynamics.motion import Motion
from models.dynamics.relaxation import (
    Relaxation,
    RowParams,
    Solution,
    StepCallback,
    StopReason,
    generators,
    noise,
)
from models.dynamics.system import StepBackend
from models.energies import Energy
from models.layouts import Layout

Interrupt = Callable[[], StopReason | None]
"""Is asked before each step; a reason stops all rows that still move."""

Driver = Callable[[Relaxation, Interrupt], None]
"""Takes the steps of a relaxation until no row moves any more."""


def relax_differentiable(
    energy: Energy, motion: Motion, norm: nn.Module, x_ND: Tensor, layout: Layout, knobs: RowParams
) -> Tensor:
    """`solve` for training: every row takes its steps, nothing is measured, gradients flow."""
    alpha_N1, field = layout.of_tokens(knobs.step_size_R[:, None]), energy.field()
    drawn_by = generators(knobs)
    for t in range(int(knobs.steps_R.max())):
        terms = field(norm(x_ND), layout, knobs.beta_RH, True)
        assert terms.force_ND is not None
        moved = x_ND + alpha_N1 * motion.drift(x_ND, terms.force_ND)
        drawn = noise(x_ND, layout, knobs, drawn_by)
        if drawn is not None:
            moved = moved + drawn
        going_R = knobs.steps_R > t
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
    knobs: RowParams,
    interrupt: Interrupt = lambda: None,
    watch: StepCallback | None = None,
) -> Solution:
    """`rest` of a system of these."""
    return solve_system(StepBackend.of(energy, motion, norm), x_ND, layout, knobs, interrupt, watch)


@torch.no_grad()
def solve_system(
    system: StepBackend,
    x_ND: Tensor,
    layout: Layout,
    knobs: RowParams,
    interrupt: Interrupt = lambda: None,
    watch: StepCallback | None = None,
) -> Solution:
    """Move every row of `x_ND` (N, D) until it converges or its steps are used up.

    See `Relaxation` for what a step is. Who takes the steps is up to `driven_by`.
    """
    relaxation = Relaxation.begin(system, x_ND, layout, knobs, watch)
    _driver.get()(relaxation, interrupt)
    return relaxation.solution()


def run_to_completion(relaxation: Relaxation, interrupt: Interrupt) -> None:
    """Take all steps of `relaxation` by itself."""
    if not relaxation.trace:  # it has not been looked at, which moves nothing
        relaxation.step()
    while relaxation.moving:
        if (why := interrupt()) is not None:
            relaxation.stop(why)
        else:
            relaxation.step()


_driver: ContextVar[Driver] = ContextVar("driver", default=run_to_completion)


@contextmanager
def driven_by(driver: Driver) -> Iterator[None]:
    """Within, `driver` takes the steps of what is solved: beside those of others, if it likes."""
    token = _driver.set(driver)
    try:
        yield
    finally:
        _driver.reset(token)
