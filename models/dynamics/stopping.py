"""What becomes of each row after a look, in one call: on small batches the many operations that it
would take on arrays cost as much as the look. Which rows move, and why they stop, is returned in
`models.dynamics.relaxation`."""

from __future__ import annotations

import numpy as np
from numba import njit

GOES, DIVERGED, CONVERGED, STEP_LIMIT = range(4)
ROUNDED = 8.0
"""A rise of this many units in the last place is rounding: else momentum would be lost at random
where it hardly falls any more."""
_RISE = 64.0
"""A rise of more units than this is none of rounding. In float32, 150 steps of the examples of all
architectures lifted it by at most 7 where they rest; steps that are too long lift it by thousands.
"""


@njit(cache=True)
def has_risen(before, after, magnitude, eps):
    """Is `after` above `before` by more than rounding, or not a number?

    Args:
        magnitude: of the terms that `before` is the sum of.
        eps: between 1 and the next number of the state's precision.
    """
    return not after <= before + _RISE * eps * magnitude


@njit(cache=True)
def update_stopping(moves, begun, seen, was, params, eps, now):
    """Each row is where it was looked at, or stays where it was.

    Args:
        moves, begun: did it move to there, and was it looked at before?
        seen: of the look: energy, |x|^2, and of the step to it, of those that move, |dx/dt|^2 and
            what control did.
        was: of the moment before: steps, steps since its momentum was lost, residual, |x|^2, what
            control has done, energy, and whether that and the work of control rose in any step.
        knobs: most steps, tolerance, and is there momentum?
        eps: between 1 and the next number of the state's precision.
        now: is filled: is it where it was looked at? Then as `was`, and why it stops.
    """
    energy, size, speed, work = seen
    steps_was, carried_was, residual_was, size_was, work_was, energy_was, rose_was = was
    most, tolerance, nesterov = params
    stands, steps, carried, residual, size_now, work_now, energy_now, rose, why = now
    for r in range(len(moves)):
        stepped = lifted = False
        why[r], residual[r], work_now[r] = GOES, residual_was[r], work_was[r]
        rose[r] = rose_was[r]
        if moves[r]:
            rate = np.sqrt(speed[r] / max(size_was[r], 1e-24))
            before, done = energy_was[r] + work_was[r], work_was[r] + work[r]
            falls = energy[r] + done <= before + ROUNDED * eps * abs(before)
            lifted = nesterov[r] and carried_was[r] > 0 and not falls
            stepped = not lifted and np.isfinite(size[r] + energy[r] + rate)
            if stepped:
                residual[r], work_now[r] = rate, done
            elif not lifted:
                why[r] = DIVERGED
            if not lifted:
                magnitude = abs(energy_was[r]) + abs(work_was[r])
                rose[r] |= not stepped or has_risen(before, energy[r] + done, magnitude, eps)
        stands[r] = stepped or not begun[r]
        size_now[r] = size[r] if stands[r] else size_was[r]
        energy_now[r] = energy[r] if stands[r] else energy_was[r]
        steps[r] = steps_was[r] + (stepped or lifted)
        carried[r] = 0 if lifted else carried_was[r] + stepped
        if why[r] == GOES:
            if stepped and residual[r] < tolerance[r]:
                why[r] = CONVERGED
            elif not np.isfinite(energy_now[r]):
                why[r] = DIVERGED
            elif steps[r] >= most[r]:
                why[r] = STEP_LIMIT


@njit(cache=True)
def rows_to_move(going, begun, steps, most):
    """Which rows move now, does any, and will any of those that go on move after this?"""
    moves = going & begun
    more = False
    for r in range(len(going)):
        more |= going[r] and steps[r] + begun[r] < most[r]
    return moves, moves.any(), more
