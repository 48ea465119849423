"""Sample from a memory: starts, chains, heads, conditions, and what is to be told about them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from models.dynamics import StopReason
from models.energies import ModernHopfield
from models.memories.memory import ClampedCoordinates
from models.sampling.chains import ChainResult, EnergyCallback, Interrupt, Schedule, run_chains
from models.sampling.diagnostics import (
    SampleMetrics,
    compute_metrics,
    compute_mixture_weights,
    draw_exact_samples,
    draw_null_samples,
)
from models.sampling.heads import SubspaceHeads, find_leading_axes
from models.sampling.langevin import Method
from models.sampling.rhat import ChainDiagnostics, compute_chain_diagnostics

_SINGLE_BETA = 2e4  # above it MALA computes in float64
INITIAL_NOISE = 0.01  # around the pattern a chain starts at, per coordinate


class InitialStates(NamedTuple):
    """Where chains start, and the pattern each of them starts at, if it does."""

    x_CD: Tensor
    patterns_C: np.ndarray | None


@dataclass(frozen=True)
class SampleResult:
    """Samples and how they came about.

    `x_SD` holds the kept states of all chains, those of one step after those of the step before,
    cut to the number asked for. `energy_C` is the mean energy of each chain after burn-in, the
    sum over the heads; `measures` and `null` are of as many samples each.
    """

    samples_SD: Tensor
    metrics: SampleMetrics
    null_metrics: SampleMetrics
    mean_energy_C: np.ndarray
    acceptance_rate_C: np.ndarray | None
    diagnostics: ChainDiagnostics
    num_steps: int


class RunInterruptedError(Exception):
    """The caller's `interrupt` gave this reason; there are no samples."""

    def __init__(self, reason: StopReason) -> None:
        super().__init__(reason)
        self.reason = reason


def init_states(
    patterns_KD: Tensor,
    num_chains: int,
    seed: int,
    clamped: ClampedCoordinates | None = None,
    beta: float = 1.0,
) -> InitialStates:
    """A chain at each of as many random patterns, distinct while they last, + 0.01 N(0, I).

    Where coordinates are `known`, patterns are drawn by how likely they are given these: a chain
    that starts in the basin of another pattern may never leave it at a high beta.
    """
    rng = np.random.default_rng([seed, 0x7374])
    if clamped is None:
        rounds = -(-num_chains // len(patterns_KD))
        orders = [rng.permutation(len(patterns_KD)) for _ in range(rounds)]
        chosen = np.concatenate(orders)[:num_chains]
    else:
        weights_K = compute_mixture_weights(_given(patterns_KD, clamped), beta)
        chosen = rng.choice(len(patterns_KD), num_chains, p=weights_K)
    noise = rng.standard_normal((num_chains, patterns_KD.shape[1])) * INITIAL_NOISE
    return InitialStates(patterns_KD[chosen] + torch.from_numpy(noise).to(patterns_KD), chosen)


def draw_samples(
    patterns_KD: Tensor,
    start: InitialStates,
    beta: float,
    alpha: float,
    schedule: Schedule,
    num_samples: int,
    *,
    method: Method = Method.ULA,
    heads: int = 1,
    clamped: ClampedCoordinates | None = None,
    seed: int = 0,
    interrupt: Interrupt = lambda: None,
    on_energy: EnergyCallback = lambda energy: None,
) -> SampleResult:
    """`count` samples of exp(-beta E) on a memory.

    The multi-chain protocol of section 5 has 30 chains of which each keeps 5 states; the single
    chain of appendix F has one that keeps them all. With several heads each principal subspace
    has chains of its own (appendix Q). Coordinates that are `known` stay where they are, and the
    others follow their conditional distribution. An answer depends on nothing but the arguments.

    Raises:
        TooManyHeadsError: more heads than the memory has axes.
        ValueError: more samples than the schedule keeps, or both heads and known coordinates.
        RunInterruptedError: `interrupt` gave a reason before the last step.
    """
    given = patterns_KD.dtype
    if method is Method.MALA and beta > _SINGLE_BETA:  # float32 would round the ratio away
        patterns_KD, start = patterns_KD.double(), start._replace(x_CD=start.x_CD.double())
    if num_samples > len(start.x_CD) * schedule.samples_per_chain:
        raise ValueError("the schedule keeps fewer states than asked for")
    if heads > 1 and clamped is not None:
        raise ValueError("known coordinates cannot be told apart by heads")
    walk = partial(
        _run,
        beta=beta,
        alpha=alpha,
        schedule=schedule,
        method=method,
        seed=seed,
        interrupt=interrupt,
        on_energy=on_energy,
    )
    null_SD = draw_null_samples(patterns_KD, beta, num_samples, seed)
    if heads > 1:
        several = SubspaceHeads.from_patterns(patterns_KD, heads)
        split = zip(several.split(patterns_KD), several.split(start.x_CD), strict=True)
        runs = [walk(ModernHopfield(x), at, stream=h) for h, (x, at) in enumerate(split)]
        kept_SD = several.join([r.samples_PCD.flatten(0, 1) for r in runs])
        null_SD = several.join(several.split(null_SD))  # noise only where the heads can have it
    elif clamped is not None:
        known_D = torch.from_numpy(clamped.mask_D)
        values_k = torch.from_numpy(clamped.values_k).to(patterns_KD)
        energy = _given(patterns_KD, clamped)
        runs = [walk(energy, start.x_CD[:, ~known_D])]
        kept_SD = patterns_KD.new_empty(
            schedule.samples_per_chain * len(start.x_CD), patterns_KD.shape[1]
        )
        kept_SD[:, known_D] = values_k
        kept_SD[:, ~known_D] = runs[0].samples_PCD.flatten(0, 1)
        null_SD[:, known_D] = values_k
        null_SD[:, ~known_D] = draw_exact_samples(energy, beta, num_samples, seed)
    else:
        runs = [walk(ModernHopfield(patterns_KD), start.x_CD)]
        kept_SD = runs[0].samples_PCD.flatten(0, 1)
    x_SD = kept_SD[:num_samples]
    chains = _together(runs)
    return SampleResult(
        x_SD.to(given),
        compute_metrics(x_SD, patterns_KD, beta),
        compute_metrics(null_SD, patterns_KD, beta),
        chains.energy_TC.mean(0).numpy(),
        None if chains.acceptance_rate_C is None else chains.acceptance_rate_C.numpy(),
        compute_chain_diagnostics(chains),
        chains.num_steps,
    )


def _given(patterns_KD: Tensor, known: ClampedCoordinates) -> ModernHopfield:
    values_k = torch.from_numpy(known.values_k).to(patterns_KD)
    return ModernHopfield(patterns_KD).condition_on(torch.from_numpy(known.mask_D), values_k)


def _run(energy: ModernHopfield, x_CD: Tensor, **params: Any) -> ChainResult:
    """`run`, watched along the leading axes of its patterns, or nothing."""
    chains = run_chains(energy, x_CD, axes_DA=find_leading_axes(energy.patterns_KD), **params)
    if chains.stop_reason is not StopReason.STEP_LIMIT:
        raise RunInterruptedError(chains.stop_reason)
    return chains


def _together(runs: list[ChainResult]) -> ChainResult:
    """Heads as one: energies and steps add up, axes stand side by side, acceptances are means."""
    first = runs[0]
    rates = [r.acceptance_rate_C for r in runs if r.acceptance_rate_C is not None]
    return replace(
        first,
        energy_TC=torch.stack([r.energy_TC for r in runs]).sum(0),
        projections_TCA=torch.cat([r.projections_TCA for r in runs], 2),
        acceptance_rate_C=torch.stack(rates).mean(0) if rates else None,
        num_steps=sum(r.num_steps for r in runs),
    )
