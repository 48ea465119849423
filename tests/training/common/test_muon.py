"""Muon for matrices beside AdamW: each matrix by itself, and what comes back from a file."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from training.common.muon import Muon, orthogonalize

HOW: dict[str, Any] = {"lr": 0.02, "betas": (0.9, 0.99), "weight_decay": 0.1}


@pytest.mark.parametrize("shape", [(8, 8), (4, 9), (9, 4), (3, 5, 7), (3, 7, 5)])
def test_singular_values_are_about_one(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    u, s, vt = torch.linalg.svd(x, full_matrices=False)
    found = orthogonalize(100 * x)
    values = torch.linalg.svdvals(found)
    assert values.max() < 1.25
    kept = values[s > 0.05 * s.amax(-1, keepdim=True)]
    assert kept.min() > 0.6
    assert (found * (u @ vt)).sum() / (found.norm() * (u @ vt).norm()) > 0.95


def test_a_stack_is_its_matrices() -> None:
    x = torch.randn(3, 5, 7, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(orthogonalize(x), torch.stack([orthogonalize(one) for one in x]))


def test_a_step_by_hand() -> None:
    torch.manual_seed(0)
    matrix, vector = nn.Parameter(torch.randn(4, 6)), nn.Parameter(torch.randn(5))
    begun = [p.detach().clone() for p in (matrix, vector)]
    optimizer = Muon([matrix, vector], [matrix], **HOW)
    alone = nn.Parameter(begun[1].clone())
    adamw = torch.optim.AdamW([alone], **HOW)
    gradients = torch.randn(2, 4, 6), torch.randn(2, 5)
    momentum, expected = torch.zeros(4, 6), begun[0]
    for of_matrix, of_vector in zip(*gradients, strict=True):
        matrix.grad, vector.grad, alone.grad = of_matrix.clone(), of_vector, of_vector
        optimizer.step()
        adamw.step()
        momentum = 0.95 * momentum + 0.05 * of_matrix
        step = orthogonalize(0.05 * of_matrix + 0.95 * momentum) * 0.2 * 6**0.5
        expected = expected * (1 - 0.02 * 0.1) - 0.02 * step
    torch.testing.assert_close(matrix.detach(), expected)
    torch.testing.assert_close(vector, alone)
    # As large as AdamW's: of all entries together about 0.2 of the learning rate.
    moved = (matrix.detach() - begun[0] * (1 - 0.02 * 0.1) ** 2).square().mean().sqrt()
    assert 0.2 * 0.02 < moved < 3 * 0.2 * 0.02


def test_what_is_unused_stays() -> None:
    matrix, vector = nn.Parameter(torch.ones(3, 3)), nn.Parameter(torch.ones(3))
    Muon([matrix, vector], [matrix], **HOW).step()
    assert (matrix == 1).all()
    assert (vector == 1).all()
