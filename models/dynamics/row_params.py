"""What the rows of a batch ask of their relaxation, and the noise that they draw."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from models.layouts import Layout


@dataclass(frozen=True)
class RowParams:
    """What may differ from row to row. What only says when a row stops is on the host.

    Attributes:
        steps_R: most steps to take, int64, at least 0.
        beta_RH: inverse temperature of each attention head.
        step_size_R: alpha = dt / tau.
        tolerance_R: stop once the residual is below it; 0 never stops early.
        noise_R: sigma of the term sigma sqrt(alpha) eps added to each step.
        nesterov_R: is the row carried on by momentum, see `Relaxation`?
        descent_R: are its steps shortened where they would go up?
        seeds: one per row for that noise, so no row's noise depends on its neighbours in a batch.
    """

    steps_R: np.ndarray
    beta_RH: Tensor
    step_size_R: Tensor
    tolerance_R: np.ndarray
    noise_R: Tensor
    nesterov_R: np.ndarray
    descent_R: np.ndarray
    seeds: tuple[int, ...]


def noise_generators(params: RowParams) -> list[torch.Generator | None]:
    """A generator for each row that has noise."""
    noisy = (params.noise_R > 0).tolist()
    return [
        torch.Generator().manual_seed(seed) if has_noise else None
        for seed, has_noise in zip(params.seeds, noisy, strict=True)
    ]


def draw_noise(
    x_ND: Tensor,
    layout: Layout,
    params: RowParams,
    generators: Sequence[torch.Generator | None],
) -> Tensor | None:
    """sigma sqrt(alpha) eps (N, D) of one step, each row's from its own generator, if any has."""
    if not any(generators):
        return None
    counts = torch.bincount(layout.row_of_N, minlength=layout.rows).tolist()
    eps_ND = torch.zeros(x_ND.shape, dtype=x_ND.dtype)
    for part_LD, generator in zip(eps_ND.split(counts), generators, strict=True):
        if generator is not None:
            part_LD.normal_(generator=generator)
    scale_N1 = layout.of_tokens((params.noise_R * params.step_size_R.sqrt())[:, None])
    return scale_N1 * eps_ND.to(x_ND.device)
