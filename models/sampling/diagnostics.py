"""How new, how different, how low are samples, and what would noise alone have scored?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from models.energies import ModernHopfield
from models.sampling.temperature import compute_entropy_derivatives


@dataclass(frozen=True)
class SampleMetrics:
    """Figures of one set of samples; means, cosines of the angle between vectors.

    Attributes:
        novelty: 1 - max_cosine.
        diversity: 1 - cosine, mean over pairs of samples; 0 for a single one.
        energy: E at the beta of the samples.
        max_cosine: cosine to the nearest stored pattern.
        entropy: of the attention at the samples, in nats.
    """

    novelty: float
    diversity: float
    energy: float
    max_cosine: float
    entropy: float


@torch.no_grad()
def compute_metrics(x_SD: Tensor, patterns_KD: Tensor, beta: float) -> SampleMetrics:
    """Measures of samples (S, D), in float64."""
    x, patterns = x_SD.double(), patterns_KD.double()
    unit = x / x.norm(dim=1, keepdim=True).clamp(min=1e-300)
    stored = patterns / patterns.norm(dim=1, keepdim=True)
    nearest = float((unit @ stored.T).amax(1).mean())
    count = len(x)
    # Sum of all cosines is |sum of the unit vectors|^2; the samples with themselves give `count`.
    pairs = (float(unit.sum(0).pow(2).sum()) - count) / max(count * (count - 1), 1)
    return SampleMetrics(
        novelty=1 - nearest,
        diversity=1 - pairs if count > 1 else 0.0,
        energy=float(ModernHopfield(patterns).value(x, beta).mean()),
        max_cosine=nearest,
        entropy=float(compute_entropy_derivatives((x @ patterns.T).numpy(), beta).entropy[0]),
    )


def draw_null_samples(patterns_KD: Tensor, beta: float, count: int, seed: int) -> Tensor:
    """What no dynamics would give: a random stored pattern + N(0, I / beta), (count, D).

    For patterns of unit length this is more than a match: exp(-beta E) is the mixture
    sum_k N(x_k, I / beta) itself, for exp(beta x_k . xi - beta |xi|^2 / 2) is the Gaussian around
    x_k but for a factor exp(beta |x_k|^2 / 2) that is the same for all. The chains' samples
    differ from it only by how little they have mixed, and by ULA's bias.
    """
    return draw_exact_samples(ModernHopfield(patterns_KD), beta, count, seed, weighted=False)


def draw_exact_samples(
    energy: ModernHopfield, beta: float, count: int, seed: int, weighted: bool = True
) -> Tensor:
    """Independent draws from exp(-beta E), whatever the lengths and offsets (count, D).

    It is the mixture sum_k w_k N(x_k, I / beta) with log w_k = beta (|x_k|^2 / 2 + b_k); not
    `weighted`, all w_k are equal. The oracle of the tests, and the null where coordinates are
    known.
    """
    rng = np.random.default_rng([seed, 0x6E756C6C])
    patterns_KD = energy.patterns_KD
    w_K = compute_mixture_weights(energy, beta) if weighted else None
    chosen = torch.from_numpy(rng.choice(len(patterns_KD), count, p=w_K))
    noise = torch.from_numpy(rng.standard_normal((count, patterns_KD.shape[1])) * beta**-0.5)
    return patterns_KD[chosen] + noise.to(patterns_KD)


def compute_mixture_weights(energy: ModernHopfield, beta: float) -> np.ndarray:
    """w_k of `exact_samples`, float64 (K,): the probability of being in each pattern's basin."""
    log_w_K = energy.patterns_KD.double().pow(2).sum(1) / 2
    if energy.offset_K is not None:
        log_w_K = log_w_K + energy.offset_K.double()
    return torch.softmax(beta * log_w_K, 0).numpy()


def null_novelty(beta: float, dim: int) -> float:
    """Novelty of the null in closed form, 1 - (1 + d / beta)^(-1/2), for unit patterns."""
    return 1 - (1 + dim / beta) ** -0.5


def null_energy(beta: float, dim: int) -> float:
    """Energy of the null in closed form, -1/2 + d / (2 beta), for unit patterns far apart."""
    return -0.5 + dim / (2 * beta)
