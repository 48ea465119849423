"""Resonances to test with, and r as the paper writes it."""

from __future__ import annotations

import torch

from models.resonance import AttentionPrior, Resonance, ResonanceParameter

GATES = ("sigmoid", "centred", "tanh", "piecewise-linear")


def resonance(**given: object) -> Resonance:
    return Resonance.model_validate(given)


def prior_of(*rows: Resonance | None, heads: int = 2) -> AttentionPrior:
    prior = ResonanceParameter(heads)(rows, torch.zeros((), dtype=torch.float64))
    assert prior is not None
    return prior


def turned(gate: str, unroll: int, row: int = 0) -> Resonance:
    """A resonance whose gate is neither open nor shut anywhere near."""
    return resonance(
        strength=(1.7, -0.6, 0.9)[row],
        vigilance=(0.1, -0.3, 0.4)[row],
        sharpness=(2.0, 3.0, 1.5)[row] / (2 if gate == "piecewise-linear" else 1),
        unroll=unroll + row,
        feedback=(0.5, -0.4, 0.3)[row],
        gate=gate,
        rank=None,
    )


def plain(c: torch.Tensor, one: Resonance) -> torch.Tensor:
    """r of the paper, as it writes it: sections 2, 5 and 11."""
    r = torch.zeros_like(c)
    for _ in range(one.unroll):
        at = one.feedback * r - one.vigilance
        a = one.sharpness
        r = {
            "sigmoid": lambda at=at, a=a: torch.sigmoid(a * (c + at)),
            "centred": lambda at=at, a=a: torch.sigmoid(a * ((c + 1) / 2 + at)),
            "tanh": lambda at=at, a=a: (1 + torch.tanh(a * (c + at))) / 2,
            "piecewise-linear": lambda at=at, a=a: (a * (c + at) + 0.5).clip(0, 1),
        }[one.gate]()
    return r
