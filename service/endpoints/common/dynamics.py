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
    def once(network: Architecture, params: DynamicsParams) -> F:
        if params.seed:
            params = replace(params, seed=0)
        if params.resonance is not None:
            return of(network, params)
        found = every.setdefault(network, {})
        with suppress(KeyError):
            return found[params]
        if len(found) >= _MOST:
            found.clear()
        told = found[params] = of(network, params)
        return told

    return once


def resolved_dynamics(network: Architecture, params: DynamicsParams) -> dict[str, Any]:
    """The dynamics that ran: what was asked for, and as trained where nothing was."""
    return _resolved(network, params) | {"seed": params.seed}


@_kept
def _resolved(network: Architecture, params: DynamicsParams) -> dict[str, Any]:
    blocks = network.blocks_in_order()
    first, resonance = blocks[0], network.resolve_resonance(params.resonance)
    return {
        "steps": first.steps if params.steps is None else params.steps,
        "beta": [block.resolve_beta([params])[0].tolist() for block in blocks],
        "beta_scale": params.beta_scale if params.beta is None else None,
        "step_size": first.step_size if params.step_size is None else params.step_size,
        "tolerance": params.tolerance,
        "noise": params.noise,
        "seed": params.seed,
        "solver": params.solver,
        "deterministic": params.deterministic,
        "resonance": None if resonance is None else resonance.model_dump(mode="json"),
    }


def max_total_steps(network: Architecture, params: DynamicsParams) -> int:
    """Most steps of all blocks together, and one for what comes before and after them."""
    blocks = network.blocks_in_order()
    return 1 + sum(block.steps if params.steps is None else params.steps for block in blocks)


@_kept
def as_trained(network: Architecture, params: DynamicsParams) -> bool:
    """Does the state move as it did when the checkpoint's energies were taken?"""

    def moving(params: DynamicsParams) -> dict[str, Any]:
        told = resolved_dynamics(network, params)
        heard = told["resonance"]
        silent = heard is None or heard["strength"] == 0
        return told | {"resonance": None if silent else heard}

    asked = replace(params, seed=0, deterministic=False)
    return asked == DynamicsParams() or moving(asked) == moving(DynamicsParams())
