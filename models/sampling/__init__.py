"""Samples from the Boltzmann distribution of a memory: stochastic attention.

After "Stochastic Attention via Langevin Dynamics on the Modern Hopfield Energy"; equation,
proposition and appendix numbers are that paper's.
"""

from models.sampling.chains import Chains, Interrupt, Schedule, run
from models.sampling.diagnostics import (
    Measures,
    exact_samples,
    measure,
    mixture_weights,
    null_energy,
    null_novelty,
    null_samples,
)
from models.sampling.heads import Heads, TooManyHeadsError
from models.sampling.langevin import Langevin, Method
from models.sampling.rhat import MIN_DRAWS, Agreement, agreement
from models.sampling.sampler import Drawn, InitialStates, Interrupted, draw, starts
from models.sampling.temperature import (
    NoInflectionError,
    Regularity,
    beta_star,
    beta_star_log,
    similarities,
    slopes,
    snr,
)

__all__ = [
    "MIN_DRAWS",
    "Agreement",
    "Chains",
    "Drawn",
    "Heads",
    "InitialStates",
    "Interrupt",
    "Interrupted",
    "Langevin",
    "Measures",
    "Method",
    "NoInflectionError",
    "Regularity",
    "Schedule",
    "TooManyHeadsError",
    "agreement",
    "beta_star",
    "beta_star_log",
    "draw",
    "exact_samples",
    "measure",
    "mixture_weights",
    "null_energy",
    "null_novelty",
    "null_samples",
    "run",
    "similarities",
    "slopes",
    "snr",
    "starts",
]
