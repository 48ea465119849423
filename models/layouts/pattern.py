"""Rows of equal length, each with patterns stored for it."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor

from models.layouts.base import Attention, Layout


@final
class PatternLayout(Layout):
    """R rows of L tokens, N = R L. No token sees another; each sees the M patterns of its row.

    `patterns_PMD` holds them once for each row (P = R) or once for all of them (P = 1).
    """

    def __init__(self, patterns_PMD: Tensor, rows: int, length: int) -> None:
        if patterns_PMD.ndim != 3 or len(patterns_PMD) not in (1, rows):
            raise ValueError("patterns must be a matrix for each row, or one for all rows")
        self.patterns_PMD, self.rows, self.length = patterns_PMD, rows, length
        index_R = torch.arange(rows, device=patterns_PMD.device)
        self.row_of_N = index_R.repeat_interleave(length)

    def attend(self, q_NHY: Tensor, k_NHY: Tensor, beta_NH: Tensor) -> Attention:
        return Attention(beta_NH * 0, k_NHY * 0, q_NHY * 0)

    def match(self, x_ND: Tensor) -> Tensor:
        """Each token's product with the patterns of its row, (N, M)."""
        x_PLD = x_ND.view(len(self.patterns_PMD), -1, x_ND.shape[1])
        return (x_PLD @ self.patterns_PMD.transpose(1, 2)).flatten(0, 1)

    def mix(self, weight_NM: Tensor) -> Tensor:
        """Each token's weighted sum of the patterns of its row, (N, D)."""
        weight_PLM = weight_NM.view(len(self.patterns_PMD), -1, weight_NM.shape[1])
        return (weight_PLM @ self.patterns_PMD).flatten(0, 1)

    def reach(self) -> Tensor:
        """Length of the longest pattern of each row, (R,)."""
        return self.patterns_PMD.norm(dim=-1).amax(-1).expand(self.rows)
