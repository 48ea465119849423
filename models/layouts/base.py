"""The contract between an attention energy and the arrangement of its tokens.

Shape suffixes used throughout `models/`: R rows (one graph, image or chain each),
N tokens of all rows together, D token width, H heads, Y head width, E edges.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

import torch
from torch import Tensor


class Attention(NamedTuple):
    """Log-sum-exp attention with the two sums its force needs.

    With s_ij = beta_i w_ij q_i . k_j + b_ij and p_ij = softmax of s_ij over the neighbours j of i:
    `lse_NH` = log sum_j exp(s_ij), `pk_NHY` = sum_j p_ij w_ij k_j and `ptq_NHY` = sum over those
    i that see j of p_ij w_ij q_i. A token that sees none has lse = 0. The weight w and the bias b
    of an edge belong to the layout and are 1 and 0 unless it was given others.
    """

    lse_NH: Tensor
    pk_NHY: Tensor
    ptq_NHY: Tensor


class Layout(ABC):
    """Tokens of R independent rows packed along one axis, and who sees whom."""

    rows: int
    row_of_N: Tensor
    """Row of each token; int64, non-decreasing."""

    @abstractmethod
    def attend(self, q_NHY: Tensor, k_NHY: Tensor, beta_NH: Tensor) -> Attention:
        """Attention of every token to the tokens it sees.

        Differentiable in all three arguments, and in the weight and the bias of each edge.
        """

    @abstractmethod
    def seen(self) -> Tensor:
        """bool (N,): does the token see any other?"""

    def sum_rows(self, values_N: Tensor) -> Tensor:
        """Sum per row, in float64: a small drop of a large energy must not drown in rounding."""
        out_R = torch.zeros(self.rows, dtype=torch.float64, device=values_N.device)
        return out_R.index_add(0, self.row_of_N, values_N.double())
