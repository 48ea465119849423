"""Random patterns on the sphere: the spectrum of temperatures, and convergence."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from models.energies import ModernHopfield
from models.sampling import (
    Method,
    Schedule,
    compute_similarities,
    draw_exact_samples,
    draw_samples,
    find_beta_star,
    find_beta_star_log,
    init_states,
    run_chains,
)
from training.studies.reproduce.tables import Table

BETAS = {0.01: ".219", 0.1: None, 1: None, 5: None, 10: ".373", 50: None, 100: None, 1000: ".969"}
"""Inverse temperatures of the spectrum, and the paper's cosine to the nearest pattern."""


def random_patterns(count: int, dim: int, seed: int) -> Tensor:
    """Uniform on the unit sphere."""
    generator = torch.Generator().manual_seed(seed)
    return torch.nn.functional.normalize(torch.randn(count, dim, generator=generator), dim=1)


def make_tables(seed: int) -> Iterator[Table]:
    yield _spectrum(seed)
    yield _convergence(seed)


def _spectrum(seed: int, betas: Mapping[float, str | None] = BETAS) -> Table:
    x = random_patterns(16, 64, seed)
    seen = compute_similarities(x)
    table = Table(
        "Synthetic spectrum, d = 64, K = 16",
        (
            "beta",
            "nearest cosine",
            "entropy",
            "novelty",
            "diversity",
            "energy",
            "paper cosine",
            "null cosine",
            "null entropy",
            "null D",
            "null E",
        ),
        "One ULA chain, 22,000 steps, burn-in 2,000, alpha = 0.01, every 20th state (section 5); "
        f"ln K = {np.log(16):.3f}. beta* of this memory: {find_beta_star(seen):.2f} by eq. 12, "
        f"{find_beta_star_log(seen):.2f} by the log-beta rule; sqrt(d) = 8.",
    )
    schedule = Schedule(22_000, 2_000, 20, 1000)
    for beta, paper in betas.items():
        drawn = draw_samples(x, init_states(x, 1, seed), beta, 0.01, schedule, 1000, seed=seed)
        m, null = drawn.metrics, drawn.null_metrics
        table.add_row(
            f"{beta:g}",
            m.max_cosine,
            m.entropy,
            m.novelty,
            m.diversity,
            m.energy,
            paper,
            null.max_cosine,
            null.entropy,
            null.diversity,
            null.energy,
        )
    return table


def _convergence(seed: int) -> Table:
    x, beta = random_patterns(4, 8, seed).double(), 5.0
    energy = ModernHopfield(x)
    table = Table(
        "Convergence to the Boltzmann energies, d = 8, K = 4, beta = 5",
        ("chains", "alpha", "KS to a long MALA chain", "p", "KS to exact draws", "p"),
        "Eight chains from random starts, 60,000 steps, burn-in 10,000, every 100th energy, "
        "4,000 in all; the reference is one MALA chain of 500,000 steps, every 100th. Exact draws "
        "come from the mixture that exp(-beta E) is. The paper's size of this experiment is lost.",
    )
    begin = init_states(x, 8, seed).x_CD
    long = Schedule(510_000, 10_000, 100, 1)
    reference = run_chains(energy, begin[:1], beta, 0.2, long, method=Method.MALA, seed=seed + 1)
    exact = energy.value(draw_exact_samples(energy, beta, 20_000, seed), beta).numpy()
    for method, alpha in (
        (Method.ULA, 0.01),
        (Method.ULA, 0.1),
        (Method.ULA, 0.5),
        (Method.MALA, 0.1),
    ):
        schedule = Schedule(60_000, 10_000, 100, 1)
        found = run_chains(energy, begin, beta, alpha, schedule, method=method, seed=seed)
        energies = found.energy_TC.flatten().numpy()
        to_long = _ks(energies, reference.energy_TC.flatten().numpy())
        to_exact = _ks(energies, exact)
        table.add_row(
            f"8 x {method.value.upper()}",
            f"{alpha:g}",
            *to_long,
            *to_exact,
        )
    return table


def _ks(a: np.ndarray, b: np.ndarray) -> tuple[float, float]:
    """Statistic and p-value of the two-sample test."""
    found: Any = stats.ks_2samp(a, b)
    return float(found.statistic), float(found.pvalue)
