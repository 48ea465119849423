"""Samples from the Boltzmann distribution of a memory: stochastic attention.

After "Stochastic Attention via Langevin Dynamics on the Modern Hopfield Energy"; equation,
proposition and appendix numbers are that paper's.
"""

from models.sampling.chains import ChainResult, Interrupt, Schedule, run_chains
from models.sampling.diagnostics import (
    SampleMetrics,
    compute_metrics,
    compute_mixture_weights,
    draw_exact_samples,
    draw_null_samples,
    null_energy,
    null_novelty,
)
from models.sampling.heads import SubspaceHeads, TooManyHeadsError
from models.sampling.langevin import LangevinKernel, Method
from models.sampling.rhat import MIN_DRAWS, ChainDiagnostics, compute_chain_diagnostics
from models.sampling.sampler import (
    InitialStates,
    RunInterruptedError,
    SampleResult,
    draw_samples,
    init_states,
)
from models.sampling.temperature import (
    NoInflectionError,
    Regularity,
    compute_entropy_derivatives,
    compute_similarities,
    find_beta_star,
    find_beta_star_log,
    snr,
)

__all__ = [
    "MIN_DRAWS",
    "ChainDiagnostics",
    "ChainResult",
    "InitialStates",
    "Interrupt",
    "LangevinKernel",
    "Method",
    "NoInflectionError",
    "Regularity",
    "RunInterruptedError",
    "SampleMetrics",
    "SampleResult",
    "Schedule",
    "SubspaceHeads",
    "TooManyHeadsError",
    "compute_chain_diagnostics",
    "compute_entropy_derivatives",
    "compute_metrics",
    "compute_mixture_weights",
    "compute_similarities",
    "draw_exact_samples",
    "draw_null_samples",
    "draw_samples",
    "find_beta_star",
    "find_beta_star_log",
    "init_states",
    "null_energy",
    "null_novelty",
    "run_chains",
    "snr",
]
