"""Do chains agree? Rank-normalised split R-hat and bulk effective sample size."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from arviz_stats.base import array_stats

from models.sampling.chains import ChainResult

MIN_DRAWS = 4  # below it neither figure is defined


@dataclass(frozen=True)
class ChainDiagnostics:
    """Of chains with each other (Vehtari et al. 2021).

    The figures are None with less than `MIN_DRAWS` draws, and where no chain moves. `num_draws` is
    the number of recorded steps of each chain, `num_frozen` that of chains whose energy never
    changes: MALA at a step size of which it accepts nothing.

    `r_hat_energy` and `ess_energy` are about the energy, `r_hat_state` is the largest over the
    leading principal axes of the memory. Chains that each sit in a basin of their own agree in
    energy and not in state: the first is near 1 and the last far above.
    """

    r_hat_energy: float | None
    r_hat_state: float | None
    ess_energy: float | None
    num_draws: int
    num_frozen: int


def compute_chain_diagnostics(chains: ChainResult) -> ChainDiagnostics:
    """R-hat and effective sample size of the recorded steps after burn-in."""
    energy_CT = chains.energy_TC.numpy().T
    num_draws = energy_CT.shape[1]
    num_frozen = int((np.ptp(energy_CT, axis=1) == 0).sum()) if num_draws > 1 else 0
    if num_draws < MIN_DRAWS or num_frozen == len(energy_CT):
        return ChainDiagnostics(None, None, None, num_draws, num_frozen)
    axes = chains.projections_TCA.double().numpy().transpose(2, 1, 0)
    return ChainDiagnostics(
        _figure(array_stats.rhat, energy_CT),
        max((r for a in axes if (r := _figure(array_stats.rhat, a)) is not None), default=None),
        _figure(array_stats.ess, energy_CT),
        num_draws,
        num_frozen,
    )


def _figure(statistic, draws_CT: np.ndarray) -> float | None:
    if not np.ptp(draws_CT):  # chains that never move: MALA at a step size it cannot take
        return None
    with np.errstate(divide="ignore", invalid="ignore"):
        value = float(statistic(draws_CT, chain_axis=0, draw_axis=1))
    return value if np.isfinite(value) else None
