"""Run chains: burn in, then keep a state now and then."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from models.dynamics import Interrupt, StopReason
from models.energies import ModernHopfield
from models.sampling.langevin import KERNELS, Method
from models.sampling.philox import fill_normal, fill_uniform

EnergyCallback = Callable[[float], None]

_BLOCK = 1 << 19  # normal numbers drawn at a time: 2 MiB, which stay in the cache


@dataclass(frozen=True)
class Schedule:
    """Which steps count. Energies are recorded every `thin` steps; after `burn_in` the states of
    those steps are the snapshots, of which `keep` evenly spaced ones are samples.

    The paper's protocol is 5,000 steps, burn-in 2,000, thin 100 (30 snapshots), keep 5.
    """

    num_steps: int = 5000
    burn_in: int = 2000
    thin: int = 100
    samples_per_chain: int = 5

    def __post_init__(self) -> None:
        if (
            min(
                self.burn_in,
                self.num_steps - self.burn_in - 1,
                self.thin - 1,
                self.samples_per_chain - 1,
            )
            < 0
        ):
            raise ValueError("steps must exceed burn_in, and thin and keep be positive")
        if self.samples_per_chain > self.num_snapshots:
            raise ValueError(
                f"the schedule has {self.num_snapshots} snapshots, fewer than it keeps"
            )

    @property
    def num_snapshots(self) -> int:
        """Snapshots of each chain after burn-in."""
        return (self.num_steps - self.burn_in) // self.thin

    def recorded_steps_T(self) -> np.ndarray:
        """Steps whose energy is recorded, in order, those of the burn-in among them."""
        return np.arange(self.burn_in % self.thin or self.thin, self.num_steps + 1, self.thin)

    def sampled_steps_P(self) -> np.ndarray:
        """Steps whose state is kept."""
        at = (
            np.linspace(1, self.num_snapshots, self.samples_per_chain)
            if self.samples_per_chain > 1
            else [self.num_snapshots]
        )
        return self.burn_in + self.thin * np.round(at).astype(np.int64)


@dataclass(frozen=True)
class ChainResult:
    """What chains left behind.

    Attributes:
        states_PCD: kept states.
        energy_TC: energy at each recorded step after burn-in, float64.
        axes_TCA: coordinates along the observed axes at those steps.
        acceptance_C: share of accepted steps, None for ULA.
        last_CD: state after the last step.
        steps: steps taken.
        stop_reason: `STEP_LIMIT`, or why the run ended early; then states may be missing.
    """

    samples_PCD: Tensor
    energy_TC: Tensor
    projections_TCA: Tensor
    acceptance_rate_C: Tensor | None
    final_CD: Tensor
    num_steps: int
    stop_reason: StopReason


@torch.no_grad()
def run_chains(
    energy: ModernHopfield,
    x_CD: Tensor,
    beta: float,
    alpha: float,
    schedule: Schedule,
    *,
    method: Method = Method.ULA,
    seed: int = 0,
    stream: int = 0,
    axes_DA: Tensor | None = None,
    interrupt: Interrupt = lambda: None,
    on_energy: EnergyCallback = lambda energy: None,
) -> ChainResult:
    """Move chains from `x_CD` (left as it is) by `schedule`.

    Args:
        seed, stream: key of the noise; another stream is other noise for the same seed.
        axes_DA: directions along which the state is recorded beside its energy.
        interrupt: asked before each step.
        report: told the mean energy of the chains whenever it is recorded.
    """
    walk = KERNELS[method](energy, x_CD.clone(), beta, alpha)
    chains, width = x_CD.shape
    block = int(min(max(_BLOCK // x_CD.numel(), 1), 256, schedule.num_steps))
    noise_BCD = torch.empty(block, chains, width)
    uniform_BC = torch.ones(block, chains, dtype=torch.float64)
    noise, log_uniform = noise_BCD.to(x_CD), uniform_BC.to(x_CD)
    recorded, kept = (
        set(schedule.recorded_steps_T().tolist()),
        set(schedule.sampled_steps_P().tolist()),
    )
    states: list[Tensor] = []
    energies: list[Tensor] = []
    axes: list[Tensor] = []
    reason = StopReason.STEP_LIMIT
    step = 0
    for step in range(1, schedule.num_steps + 1):
        at = (step - 1) % block
        if (why := interrupt()) is not None:
            reason, step = why, step - 1
            break
        if at == 0:
            fill_normal(noise_BCD.numpy(), seed, stream, step, walk.noise_scale)
            noise = noise_BCD.to(x_CD)
            if method is Method.MALA:
                fill_uniform(uniform_BC.numpy(), seed, stream, step)
            log_uniform = uniform_BC.log().to(x_CD)
        walk.step(noise[at], log_uniform[at])
        if step in recorded:
            energies.append(energy.value(walk.x_CD, beta).double())
            on_energy(float(energies[-1].mean()))
            if axes_DA is not None:
                axes.append(walk.x_CD @ axes_DA)
        if step in kept:
            states.append(walk.x_CD.clone())
    burnt = int((schedule.recorded_steps_T() <= min(schedule.burn_in, step)).sum())
    energy_TC = torch.stack(energies) if energies else x_CD.new_empty(0, chains)
    return ChainResult(
        torch.stack(states) if states else x_CD.new_empty(0, chains, width),
        energy_TC[burnt:],
        torch.stack(axes)[burnt:] if axes else x_CD.new_empty(0, chains, 0),
        walk.acceptance_rate_C,
        walk.x_CD,
        step,
        reason,
    )
