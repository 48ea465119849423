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
_MAX_CACHED = 64  # of one network


def _cached(
    compute: Callable[[Architecture, DynamicsParams], F],
) -> Callable[[Architecture, DynamicsParams], F]:
    """Cache `compute`, which does not depend on the seed, for the parameters of most requests:
    networks in service do not change."""
    cache = WeakKeyDictionary[Architecture, dict[DynamicsParams, F]]()

    @wraps(compute)
    def cached_compute(network: Architecture, params: DynamicsParams) -> F:
        if params.seed:
            params = replace(params, seed=0)
        if params.resonance is not None:
            return compute(network, params)
        cached = cache.setdefault(network, {})
        with suppress(KeyError):
            return cached[params]
        if len(cached) >= _MAX_CACHED:
            cached.clear()
        result = cached[params] = compute(network, params)
        return result

    return cached_compute


def resolved_dynamics(network: Architecture, params: DynamicsParams) -> dict[str, Any]:
    """The dynamics that ran: what was asked for, and as trained where nothing was."""
    return _resolved(network, params) | {"seed": params.seed}


@_cached
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


@_cached
def as_trained(network: Architecture, params: DynamicsParams) -> bool:
    """Does the state move as it did when the checkpoint's energies were taken?"""

    def moving(params: DynamicsParams) -> dict[str, Any]:
        dynamics = resolved_dynamics(network, params)
        resonance = dynamics["resonance"]
        is_silent = resonance is None or resonance["strength"] == 0
        return dynamics | {"resonance": None if is_silent else resonance}

    same_seed = replace(params, seed=0, deterministic=False)
    return same_seed == DynamicsParams() or moving(same_seed) == moving(DynamicsParams())
