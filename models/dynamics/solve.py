"""The one loop in which every state relaxes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

import torch
from torch import Tensor, nn

from models.dynamics.motion import Motion
from models.energies import Energy
from models.layouts import Layout


class StopReason(StrEnum):
    """Why a row stopped moving."""

    CONVERGED = "converged"
    STEP_LIMIT = "step_limit"
    CANCELLED = "cancelled"
    DEADLINE = "deadline"
    DIVERGED = "diverged"


@dataclass(frozen=True)
class RowKnobs:
    """What may differ from row to row.

    Attributes:
        steps_R: most steps to take, int64, at least 0.
        beta_RH: inverse temperature of each attention head.
        step_size_R: alpha = dt / tau.
        tolerance_R: stop once the residual is below it; 0 never stops early.
        noise_R: sigma of the term sigma sqrt(alpha) eps added to each step.
        seeds: one per row for that noise, so no row's noise depends on its neighbours in a batch.
    """

    steps_R: Tensor
    beta_RH: Tensor
    step_size_R: Tensor
    tolerance_R: Tensor
    noise_R: Tensor
    seeds: tuple[int, ...]


@dataclass(frozen=True)
class Moment:
    """All rows at one step: energy (R,), its components, and V where the motion is controlled."""

    step: int
    energy_R: Tensor
    components: dict[str, Tensor]
    storage_R: Tensor | None


@dataclass(frozen=True)
class Solution:
    """Where the rows came to rest and how.

    `residual_R` is |dx/dt| / |x| of the last step taken: the relative speed of the row, free of
    step size and units. `layout` is what they relaxed on, with its prior. `trace` holds the moments
    0..T; a row that stopped keeps its last value.
    """

    x_ND: Tensor
    layout: Layout
    steps_R: Tensor
    residual_R: Tensor
    stop_reasons: tuple[StopReason, ...]
    trace: list[Moment] = field(default_factory=list)


Watch = Callable[[Tensor, Moment], None]
"""Is shown the state x (N, D) at each moment, as it is reached."""


def relax(
    energy: Energy, motion: Motion, norm: nn.Module, x_ND: Tensor, layout: Layout, knobs: RowKnobs
) -> Tensor:
    """`solve` for training: every row takes its steps, nothing is measured, gradients flow."""
    alpha_N1 = knobs.step_size_R[layout.row_of_N, None]
    draw = _noise(x_ND, layout, knobs)
    for t in range(int(knobs.steps_R.max())):
        terms = energy(norm(x_ND), layout, knobs.beta_RH)
        moved = x_ND + alpha_N1 * motion.drift(x_ND, terms.force_ND) + draw()
        going_N1 = (knobs.steps_R > t)[layout.row_of_N, None]
        x_ND = torch.where(going_N1, moved, x_ND)
    return x_ND


@torch.no_grad()
def solve(
    energy: Energy,
    motion: Motion,
    norm: nn.Module,
    x_ND: Tensor,
    layout: Layout,
    knobs: RowKnobs,
    interrupt: Callable[[], StopReason | None] = lambda: None,
    watch: Watch = lambda x_ND, moment: None,
) -> Solution:
    """Move every row of `x_ND` (N, D) along `motion` until it converges or its steps are used up.

    Each step is x <- x + alpha drift(x, -dE/dg) + sigma sqrt(alpha) eps at g = norm(x). A row
    converges when its residual falls below its tolerance. A row whose next state, residual or
    energy is not finite has diverged and stays at its last finite state. `interrupt` is asked
    before each step and stops all rows that still move; `watch` sees every moment of the trace.

    Where `motion` is controlled, V of CDAT eq. 6 is accumulated with the trapezoidal rule,
    V_t = E_t + sum_s (c(x_s) + c(x_s+1))/2 . (g_s+1 - g_s), c being `motion.control`.
    """
    rows, row_of_N = layout.rows, layout.row_of_N
    alpha_N1 = knobs.step_size_R[row_of_N, None]
    draw = _noise(x_ND, layout, knobs)
    reasons: list[StopReason | None] = [None] * rows
    steps_R = torch.zeros_like(knobs.steps_R)
    residual_R = torch.zeros(rows, dtype=torch.float64, device=x_ND.device)
    work_R = torch.zeros_like(residual_R)
    trace: list[Moment] = []

    def observe(step: int, parts: dict[str, Tensor]) -> Tensor:
        components = {name: layout.sum_rows(part) for name, part in parts.items()}
        energy_R = torch.stack(list(components.values())).sum(0)
        storage_R = energy_R + work_R if motion.control(x_ND[:0]) is not None else None
        trace.append(Moment(step, energy_R, components, storage_R))
        watch(x_ND, trace[-1])
        return energy_R

    g_ND = norm(x_ND)
    terms = energy(g_ND, layout, knobs.beta_RH)
    finite_R = observe(0, terms.parts).isfinite()
    for t in range(int(knobs.steps_R.max())):
        _mark(reasons, ~finite_R, StopReason.DIVERGED)
        _mark(reasons, knobs.steps_R <= t, StopReason.STEP_LIMIT)
        if (why := interrupt()) is not None:
            reasons = [reason or why for reason in reasons]
        going_R = torch.tensor([reason is None for reason in reasons], device=x_ND.device)
        if not going_R.any():
            break
        drift_ND = motion.drift(x_ND, terms.force_ND)
        moved_ND = x_ND + alpha_N1 * drift_ND + draw()
        speed_R = layout.sum_rows(drift_ND.pow(2).sum(-1)).sqrt()
        size_R = layout.sum_rows(x_ND.pow(2).sum(-1)).sqrt()
        next_residual_R = speed_R / size_R.clamp(min=1e-12)

        # Try the step; rows where it is not finite keep the state they had.
        next_g_ND = norm(moved_ND)
        next_terms = energy(
            next_g_ND, layout, knobs.beta_RH, with_force=t + 1 < int(knobs.steps_R.max())
        )
        finite_R = (
            layout.sum_rows(moved_ND.sum(-1) + next_terms.token_energy_N) + next_residual_R
        ).isfinite()
        _mark(reasons, going_R & ~finite_R, StopReason.DIVERGED)
        step_R = going_R & finite_R
        step_N = step_R[row_of_N]
        if (held := motion.control(x_ND)) is not None:
            mean_ND = (held + motion.control(moved_ND)) / 2  # type: ignore[operator]
            done_R = layout.sum_rows((mean_ND * (next_g_ND - g_ND)).sum(-1))
            work_R = torch.where(step_R, work_R + done_R, work_R)
        if step_R.all():
            x_ND, g_ND, terms = moved_ND, next_g_ND, next_terms
        else:
            x_ND = torch.where(step_N[:, None], moved_ND, x_ND)
            g_ND = norm(x_ND)
            terms = energy(g_ND, layout, knobs.beta_RH)
        steps_R = steps_R + step_R.long()
        residual_R = torch.where(step_R, next_residual_R, residual_R)
        finite_R = observe(t + 1, terms.parts).isfinite()
        _mark(reasons, step_R & (residual_R < knobs.tolerance_R), StopReason.CONVERGED)
    return Solution(
        x_ND,
        layout,
        steps_R,
        residual_R,
        tuple(reason or StopReason.STEP_LIMIT for reason in reasons),
        trace,
    )


def _mark(reasons: list[StopReason | None], where_R: Tensor, why: StopReason) -> None:
    for row in where_R.nonzero().flatten().tolist():
        reasons[row] = reasons[row] or why


def _noise(x_ND: Tensor, layout: Layout, knobs: RowKnobs) -> Callable[[], Tensor | float]:
    """Draws sigma sqrt(alpha) eps (N, D) for one step, each row from a generator of its own."""
    if not bool((knobs.noise_R > 0).any()):
        return lambda: 0.0
    counts = torch.bincount(layout.row_of_N, minlength=layout.rows).tolist()
    generators = [torch.Generator().manual_seed(seed) for seed in knobs.seeds]
    scale_N1 = (knobs.noise_R * knobs.step_size_R.sqrt())[layout.row_of_N, None]

    def draw() -> Tensor:
        eps = [
            torch.randn(count, x_ND.shape[1], generator=generator, dtype=x_ND.dtype)
            for count, generator in zip(counts, generators, strict=True)
        ]
        return scale_N1 * torch.cat(eps).to(x_ND.device)

    return draw
