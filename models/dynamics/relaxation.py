"""Rows on their way down an energy, one step at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import final

import numpy as np
import torch
from torch import Tensor

from models.dynamics.row_params import RowParams, draw_noise, noise_generators
from models.dynamics.stopping import (
    CONVERGED,
    DIVERGED,
    GOES,
    ROUNDED,
    STEP_LIMIT,
    rows_to_move,
    update_stopping,
)
from models.dynamics.system import Evaluation, PreviousStep, StepBackend
from models.energies import Terms
from models.layouts import Layout


class StopReason(StrEnum):
    """Why a row stopped moving."""

    CONVERGED = "converged"
    STEP_LIMIT = "step_limit"
    CANCELLED = "cancelled"
    DEADLINE = "deadline"
    DIVERGED = "diverged"


_ARMIJO = 1e-4
"""c of Armijo's rule, see `Relaxation`: as small as Nocedal and Wright recommend."""
_MOST_HALVINGS = 40

_REASONS = {
    GOES: None,
    DIVERGED: StopReason.DIVERGED,
    CONVERGED: StopReason.CONVERGED,
    STEP_LIMIT: StopReason.STEP_LIMIT,
}


@dataclass(frozen=True)
class TracePoint:
    """All rows at one step: energy (R,), its components, and V where the motion is controlled, in
    float64."""

    step: int
    energy_R: np.ndarray
    components: dict[str, np.ndarray]
    storage_R: np.ndarray | None


@dataclass(frozen=True)
class Solution:
    """Where the rows stopped and how.

    `g_ND` is the activation there. `residual_R` is |dx/dt| / |x| of the last step taken: the
    relative speed of the row, free of step size and units. `layout` is what they relaxed on, with
    its prior. `trace` holds the moments 0..T; a row that stopped keeps its last value.

    `energy_rose` says of each row whether what descends, E, or V where the motion is controlled,
    was higher after any step than before it by more than rounding (`stopping.has_risen`), or was
    not finite. Small steps lower it; steps that are too long need not. None with noise, which may
    lift it, and where no step was taken.
    """

    x_ND: Tensor
    g_ND: Tensor
    layout: Layout
    steps_R: np.ndarray
    residual_R: np.ndarray
    stop_reasons: tuple[StopReason, ...]
    energy_rose: tuple[bool | None, ...]
    trace: list[TracePoint] = field(default_factory=list)


StepCallback = Callable[[Tensor, TracePoint], None]
"""Is shown the state x (N, D) at each moment, as it is reached."""


@final
@dataclass(eq=False)
class Relaxation:
    """Rows of one batch on their way down an energy, each by knobs of its own.

    A step is x <- x + alpha drift(x, -dE/dg) + sigma sqrt(alpha) eps at g = norm(x); the first one
    of a row moves nothing, but finds where it stands. A row converges when its residual falls below
    its tolerance. A row whose next state, residual or energy is not finite has diverged and stays
    at its last finite state. `watch` sees every moment of the trace.

    Momentum (Nesterov 1983) carries a row on from y_t+1, where the step above would have ended,
    to y_t+1 + k/(k + 3) (y_t+1 - y_t). Where that is higher than the row was, in E, or in V where
    the motion is controlled, the row stays and k, the steps so far, is 0 again (the restarts of
    O'Donoghue and Candes 2015): what falls at every step still does.

    A row with `descent` takes no step that goes up. With F = E, or V where the motion is
    controlled, a step must lower F by a part of what its slope promises (Armijo 1966),

        F(x_t+1) <= F(x_t) - c dx/dt . (g_t+1 - g_t),

    or half of it is tried, and half of that. The next one begins with twice the length that was
    taken, up to the whole step: where every step of Euler's is short enough, these are the same.

    Where the motion is controlled, V of CDAT eq. 6 is accumulated with the trapezoidal rule,
    V_t = E_t + sum_s (c(x_s) + c(x_s+1))/2 . (g_s+1 - g_s), c being `motion.control`.

    Attributes:
        terms: of the energy at g; no force once no row moves any more.
        evaluated_R: whether the row has been evaluated once.
        steps_R, residual_R: of the last step that a row took, see `Solution`.
        squared_norm_R: |x|^2 of each row.
        control_work_R: work of the control so far, the sum in V.
        energy_R: of where the row is.
        rose_R: whether the energy, or V, rose in any step so far, see `Solution.energy_rose`.
        momentum_steps_R: steps since its momentum was last reset, k above.
        step_scale_R: share of the step that a row with `descent` tries next.
        gradient_step_ND: y above, where there is momentum.
        noise_generators: of each row that has noise.
        stop_reasons: why each row stopped, None while it moves.
    """

    system: StepBackend
    layout: Layout
    params: RowParams
    x_ND: Tensor
    g_ND: Tensor
    terms: Terms
    evaluated_R: np.ndarray
    steps_R: np.ndarray
    residual_R: np.ndarray
    squared_norm_R: np.ndarray
    control_work_R: np.ndarray
    energy_R: np.ndarray
    rose_R: np.ndarray
    momentum_steps_R: np.ndarray
    step_scale_R: np.ndarray
    gradient_step_ND: Tensor | None
    noise_generators: list[torch.Generator | None]
    stop_reasons: list[StopReason | None]
    trace: list[TracePoint] = field(default_factory=list)
    on_step: StepCallback | None = None
    _held: tuple[Tensor, Tensor | None] | None = None  # a state, and what controls it

    @classmethod
    def from_state(
        cls,
        system: StepBackend,
        x_ND: Tensor,
        layout: Layout,
        params: RowParams,
        watch: StepCallback | None = None,
    ) -> Relaxation:
        """At x (N, D), before the first step."""
        nothing_R = np.zeros(layout.rows)
        return cls(
            system,
            layout,
            params,
            x_ND,
            x_ND,
            Terms({}, x_ND),  # nothing moves by it before the first look
            np.zeros(layout.rows, bool),
            np.zeros(layout.rows, np.int64),
            nothing_R,
            nothing_R,
            nothing_R,
            nothing_R,
            np.zeros(layout.rows, bool),
            np.zeros(layout.rows, np.int64),
            np.ones(layout.rows),
            None,
            noise_generators(params),
            [None] * layout.rows,
            on_step=watch,
        )

    @property
    def rows(self) -> int:
        return self.layout.rows

    @property
    def moving_rows(self) -> list[int]:
        """The rows that have not stopped."""
        return [row for row, reason in enumerate(self.stop_reasons) if reason is None]

    def stop(self, reason: StopReason) -> None:
        """All rows stay where they are."""
        self.stop_reasons = [earlier or reason for earlier in self.stop_reasons]

    @np.errstate(over="ignore", invalid="ignore")  # of rows that diverge
    def step(self) -> None:
        """Move every row that still moves, once."""
        system, layout, params = self.system, self.layout, self.params
        going_R = np.array([reason is None for reason in self.stop_reasons])
        moves_R, moving, more = rows_to_move(
            going_R, self.evaluated_R, self.steps_R, params.steps_R
        )
        x_ND, drift_ND = self._moved(moves_R) if moving else (self.x_ND, None)
        previous = None if drift_ND is None else PreviousStep(drift_ND, self._control(), self.g_ND)
        evaluation = system.evaluate_with_stats(x_ND, layout, params.beta_RH, more, previous)
        if previous is not None and (careful_R := moves_R & params.descent_R).any():
            x_ND, evaluation = self._shortened(careful_R, x_ND, previous, evaluation, more)
        g_ND, terms, components = evaluation.g_ND, evaluation.terms, evaluation.components

        # Rows where the step is not finite keep the state they had, as those that momentum lifts.
        stands_R, why_R = self._judged(moves_R, evaluation, torch.finfo(x_ND.dtype).eps)
        stand = bool(stands_R.all())
        if not stand:
            x_ND, g_ND, terms = self._standing(stands_R, x_ND, g_ND, terms)
            sums = layout.sum_rows(torch.stack(list(terms.parts.values()))).cpu().numpy()
            components = dict(zip(terms.parts, sums, strict=True))  # of energy_R, up to rounding
        self._held = (x_ND, evaluation.control_ND) if stand else None
        self.x_ND, self.g_ND, self.terms = x_ND, g_ND, terms
        self.evaluated_R = np.ones_like(self.evaluated_R)
        self._remember(components)
        if why_R.any():
            self.stop_reasons = [
                reason or _REASONS[why]
                for reason, why in zip(self.stop_reasons, why_R.tolist(), strict=True)
            ]

    def _judged(
        self, moves_R: np.ndarray, seen: Evaluation, eps: float
    ) -> tuple[np.ndarray, np.ndarray]:
        """Which rows are where they were looked at, and why rows stop, by `_REASONS`."""
        nothing_R = np.zeros(self.rows)
        energy_R = sum(seen.components.values(), nothing_R)
        step = (
            nothing_R if each is None else each
            for each in (seen.squared_speed_R, seen.control_work_R)
        )
        was = (
            self.steps_R,
            self.momentum_steps_R,
            self.residual_R,
            self.squared_norm_R,
            self.control_work_R,
            self.energy_R,
            self.rose_R,
        )
        params = self.params.steps_R, self.params.tolerance_R, self.params.nesterov_R
        now = tuple(np.empty_like(each) for each in was)
        stands_R, why_R = np.empty(self.rows, np.bool_), np.empty(self.rows, np.int8)
        update_stopping(
            *(moves_R, self.evaluated_R, (energy_R, seen.squared_norm_R, *step), was, params, eps),
            (stands_R, *now, why_R),
        )
        (
            self.steps_R,
            self.momentum_steps_R,
            self.residual_R,
            self.squared_norm_R,
            self.control_work_R,
            self.energy_R,
            self.rose_R,
        ) = now
        return stands_R, why_R

    def solution(self) -> Solution:
        """Where the rows are, none of which moves any more."""
        reasons = tuple(reason for reason in self.stop_reasons if reason is not None)
        assert len(reasons) == self.rows
        has_noise_R = [generator is not None for generator in self.noise_generators]
        rose = tuple(
            None if has_noise or not (steps or rose) else rose
            for has_noise, steps, rose in zip(
                has_noise_R, self.steps_R.tolist(), self.rose_R.tolist(), strict=True
            )
        )
        where = self.x_ND, self.g_ND, self.layout
        return Solution(*where, self.steps_R, self.residual_R, reasons, rose, self.trace)

    def _moved(self, moves_R: np.ndarray) -> tuple[Tensor, Tensor]:
        """The next state, and dx/dt of every row."""
        layout, x_ND = self.layout, self.x_ND
        plain_ND, drift_ND = self._stepped()
        # A row draws when it moves: what it draws must not depend on the others.
        moving = zip(self.noise_generators, moves_R.tolist(), strict=True)
        drawing = [generator if moves else None for generator, moves in moving]
        moved_ND = self._carried(plain_ND)
        drawn = draw_noise(x_ND, layout, self.params, drawing)
        if drawn is not None:
            moved_ND = moved_ND + drawn
        return _where(moves_R, layout, moved_ND, x_ND), drift_ND

    def _stepped(self) -> tuple[Tensor, Tensor]:
        """A step of every row, of the share of its length that it tries, and dx/dt."""
        size_R = self.params.step_size_R
        if self.params.descent_R.any():
            size_R = size_R * torch.from_numpy(self.step_scale_R).to(size_R)
        assert self.terms.force_ND is not None
        given = self.x_ND, self.layout, size_R, self.terms.force_ND, self._control()
        return self.system.step(*given)

    def _shortened(
        self,
        careful_R: np.ndarray,
        x_ND: Tensor,
        previous: PreviousStep,
        evaluation: Evaluation,
        more: bool,
    ) -> tuple[Tensor, Evaluation]:
        """Where a step ends once no row of `careful_R` goes up, and what it is like there.

        Args:
            x_ND: where it would end in full length.
            evaluation: there.
        """
        for halvings in range(_MOST_HALVINGS + 1):
            too_long_R = careful_R & ~self._falls(previous, evaluation)
            if not too_long_R.any():
                break
            shorter_ND = self.x_ND  # a row that nothing lowers stays
            if halvings < _MOST_HALVINGS:
                self.step_scale_R = np.where(too_long_R, self.step_scale_R / 2, self.step_scale_R)
                shorter_ND, _ = self._stepped()
            x_ND = _where(too_long_R, self.layout, shorter_ND, x_ND)
            given = x_ND, self.layout, self.params.beta_RH, more, previous
            evaluation = self.system.evaluate_with_stats(*given)
        twice_R = np.minimum(1, 2 * self.step_scale_R)
        self.step_scale_R = np.where(careful_R, twice_R, self.step_scale_R)
        return x_ND, evaluation

    def _falls(self, previous: PreviousStep, evaluation: Evaluation) -> np.ndarray:
        """Which rows go down by a step as far as Armijo's rule wants, but for rounding."""
        nothing_R = np.zeros(self.rows)
        work_R = nothing_R if evaluation.control_work_R is None else evaluation.control_work_R
        change_R = sum(evaluation.components.values(), nothing_R) + work_R - self.energy_R
        promised_N = (previous.drift_ND * (evaluation.g_ND - previous.g_ND)).sum(-1)
        promised_R = self.layout.sum_rows(promised_N[None])[0].cpu().numpy().clip(min=0)
        eps = torch.finfo(evaluation.g_ND.dtype).eps
        rounding_R = ROUNDED * eps * (np.abs(self.energy_R) + np.abs(self.control_work_R))
        return change_R <= rounding_R - _ARMIJO * promised_R

    def _carried(self, plain_ND: Tensor) -> Tensor:
        """The end of a step, with momentum where there is any."""
        if not self.params.nesterov_R.any():
            return plain_ND
        before_ND, self.gradient_step_ND = self.gradient_step_ND, plain_ND
        if before_ND is None:
            return plain_ND
        momentum_R = np.where(
            self.params.nesterov_R, self.momentum_steps_R / (self.momentum_steps_R + 3), 0.0
        )
        momentum_N1 = self.layout.of_tokens(torch.from_numpy(momentum_R)[:, None].to(plain_ND))
        return torch.addcmul(plain_ND, momentum_N1, plain_ND - before_ND)

    def _control(self) -> Tensor | None:
        """Of where the rows are; computed once for each place."""
        if self._held is None or self._held[0] is not self.x_ND:
            self._held = self.x_ND, self.system.motion.control(self.x_ND)
        return self._held[1]

    def _standing(
        self, where_R: np.ndarray, x_ND: Tensor, g_ND: Tensor, terms: Terms
    ) -> tuple[Tensor, Tensor, Terms]:
        """Where all rows are now, of which some have moved there."""
        old, force_ND = self.terms, terms.force_ND
        if force_ND is not None:
            force_ND = _where(where_R, self.layout, force_ND, old.force_ND)
        parts = {
            name: _where(where_R, self.layout, part, old.parts.get(name))
            for name, part in terms.parts.items()
        }
        x_ND = _where(where_R, self.layout, x_ND, self.x_ND)
        return x_ND, _where(where_R, self.layout, g_ND, self.g_ND), Terms(parts, force_ND)

    def _remember(self, components: dict[str, np.ndarray]) -> None:
        energy_R = self.energy_R
        storage_R = energy_R + self.control_work_R if self.system.motion.has_control else None
        self.trace.append(TracePoint(len(self.trace), energy_R, components, storage_R))
        if self.on_step is not None:
            self.on_step(self.x_ND, self.trace[-1])


def _where(where_R: np.ndarray, layout: Layout, new: Tensor, old: Tensor | None) -> Tensor:
    """`new` (N, ...) for some rows, `old` for the others, if there are any."""
    if old is None or where_R.all():
        return new
    where_N1 = layout.of_tokens(torch.from_numpy(where_R)[:, None].to(new.device))
    return torch.where(where_N1[:, 0] if new.ndim == 1 else where_N1, new, old)
