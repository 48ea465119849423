"""The RRM family: novelty, identity to the nearest member, composition."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from models.memories import ALPHABET, GAP, Memory
from models.sampling import (
    Method,
    SampleResult,
    Schedule,
    compute_metrics,
    compute_similarities,
    draw_null_samples,
    draw_samples,
    find_beta_star,
    find_beta_star_log,
    init_states,
)
from training.datasets.memories import load_rrm_alignment
from training.studies.reproduce.tables import Table

_GAP = ALPHABET.index(GAP)
_PAPER = {
    ("bootstrap", 77): "0 / .644 / .143",
    ("ULA", 77): ".243 / .616 / .107",
    ("ULA", 8): ".623 / .538 / .060",
}


def make_tables(data: Path | None, seed: int) -> Iterator[Table]:
    letters = load_rrm_alignment(data)
    memory = Memory.from_items("sequences", letters)
    x = memory.patterns_KD
    unrestored = replace(memory, norms_K=torch.ones_like(memory.norms_K))
    seen = compute_similarities(x)
    table = Table(
        f"PF00076 seed, K = {memory.num_patterns}, L = {letters.shape[1]}, d = {memory.dim}",
        (
            "method",
            "beta",
            "novelty",
            "diversity",
            "energy",
            "accepted",
            "identity",
            "KL",
            "identity, norm lost",
            "KL, norm lost",
            "paper N / identity / KL",
        ),
        f"Protocol of the digits. Mean norm before normalising {float(memory.norms_K.mean()):.2f}. "
        f"beta* {find_beta_star(seen):.2f} by eq. 12, {find_beta_star_log(seen):.3f} by the "
        "log-beta rule (the released code: 3.848). Identity: to the nearest stored sequence, over "
        "its positions without a gap. KL(family || samples) of the composition, nats, with one "
        "count added to each letter. `norm lost` "
        "decodes the unit vectors, as the paper does. The null rows are a random stored pattern + "
        "N(0, I/beta), decoded alike.",
    )

    def add(name: str, beta: float, x_SD: torch.Tensor, drawn: SampleResult | None = None) -> None:
        found = compute_metrics(x_SD, x, beta)
        accepted = drawn.acceptance_rate_C if drawn is not None else None
        table.add_row(
            name,
            f"{beta:g}",
            found.novelty,
            found.diversity,
            found.energy,
            None if accepted is None else float(accepted.mean()),
            *_fidelity(memory.decode(x_SD, beta), letters),
            *_fidelity(unrestored.decode(x_SD, beta), letters),
            _PAPER.get((name, int(beta))),
        )

    rng = np.random.default_rng(seed)
    add("bootstrap", 77, x[torch.from_numpy(rng.integers(0, len(x), 150))])
    for beta in (77.0, 8.0):
        for method in (Method.MALA, Method.ULA):
            drawn = draw_samples(
                x, init_states(x, 30, seed), beta, 0.01, Schedule(), 150, method=method, seed=seed
            )
            add(method.value.upper(), beta, drawn.samples_SD, drawn)
        add("null", beta, draw_null_samples(x, beta, 150, seed))
    yield table


def _fidelity(decoded: np.ndarray, stored: np.ndarray) -> tuple[float, float]:
    """Identity to the nearest stored sequence, and KL(family || samples) of the composition."""
    there = stored != _GAP
    same = ((decoded[:, None] == stored) & there).sum(2) / there.sum(1)
    p = np.bincount(decoded.ravel(), minlength=20)[:20] + 1.0  # one of each, lest a letter that
    q = np.bincount(stored[there], minlength=20)[:20] + 1.0  # never came make it infinite
    p, q = p / p.sum(), q / q.sum()
    return float(same.max(1).mean()), float((q * np.log(q / p)).sum())
