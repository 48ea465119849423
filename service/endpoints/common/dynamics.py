"""The dynamics that a request runs with."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import wraps
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from models.base import Architecture, DynamicsParams

F = TypeVar("F")
_MOST = 64  # of one network


def _kept(
    of: Callable[[Architecture, DynamicsParams], F],
) -> Callable[[Architecture, DynamicsParams], F]:
    """`of`, which no seed changes, asked once of what most requests ask for: networks in service do
    not change."""
    every = WeakKeyDictionary[Architecture, dict[DynamicsParams, F]]()

    @wraps(of)
    def once(network: Architecture, knobs: DynamicsParams) -> F:
        if knobs.seed:
            knobs = replace(knobs, seed=0)
        if knobs.resonance is not None:
            return of(network, knobs)
        found = every.setdefault(network, {})
        with suppress(KeyError):
            return found[knobs]
        if len(found) >= _MOST:
            found.clear()
        told = found[knobs] = of(network, knobs)
        return told

    return once


def resolved(network: Architecture, knobs: DynamicsParams) -> dict[str, Any]:
    """The dynamics that ran: what was asked for, and as trained where nothing was."""
    return _resolved(network, knobs) | {"seed": knobs.seed}


@_kept
def _resolved(network: Architecture, knobs: DynamicsParams) -> dict[str, Any]:
    blocks = network.blocks_in_order()
    first, resonance = blocks[0], network.resonance(knobs.resonance)
    return {
        "steps": first.steps if knobs.steps is None else knobs.steps,
        "beta": [block.beta_of(knobs) for block in blocks],
        "beta_scale": knobs.beta_scale if knobs.beta is None else None,
        "step_size": first.step_size if knobs.step_size is None else knobs.step_size,
        "tolerance": knobs.tolerance,
        "noise": knobs.noise,
        "seed": knobs.seed,
        "solver": knobs.solver,
        "deterministic": knobs.deterministic,
        "resonance": None if resonance is None else resonance.model_dump(mode="json"),
    }


def steps_of(network: Architecture, knobs: DynamicsParams) -> int:
    """Most steps of all blocks together, and one for what comes before and after them."""
    blocks = network.blocks_in_order()
    return 1 + sum(block.steps if knobs.steps is None else knobs.steps for block in blocks)


@_kept
def as_trained(network: Architecture, knobs: DynamicsParams) -> bool:
    """Does the state move as it did when the checkpoint's energies were taken?"""

    def moving(knobs: DynamicsParams) -> dict[str, Any]:
        told = resolved(network, knobs)
        heard = told["resonance"]
        silent = heard is None or heard["strength"] == 0
        return told | {"resonance": None if silent else heard}

    asked = replace(knobs, seed=0, deterministic=False)
    return asked == DynamicsParams() or moving(asked) == moving(DynamicsParams())
