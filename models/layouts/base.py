"""The contract between an attention energy and the arrangement of its tokens.

Shape suffixes used throughout `models/`: R rows (one graph, image or chain each),
N tokens of all rows together, D token width, H heads, Y head width, E edges.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from models.resonance import AttentionPrior


class Attention(NamedTuple):
    """Log-sum-exp attention with the two sums its force needs.

    With s_ij = beta_i w_ij q_i . k_j + b_ij + lambda r(c_ij) and p_ij = softmax of s_ij over the
    neighbours j of i: `lse_NH` = log sum_j exp(s_ij), `pk_NHY` = d(lse_i / beta_i)/dq_i, which is
    sum_j p_ij w_ij k_j where nothing resonates, and `ptq_NHY`, for j, the sum of
    d(lse_i / beta_i)/dk_j over those i that see j, sum_i p_ij w_ij q_i. A token that sees none has
    lse = 0. The weight w and the bias b of an edge belong to the layout and are 1 and 0 unless it
    was given others; so does the prior, lambda r of the cosine of q_i and k_j.
    """

    lse_NH: Tensor
    pk_NHY: Tensor
    ptq_NHY: Tensor


class Layout(ABC):
    """Tokens of R independent rows packed along one axis, and who sees whom."""

    rows: int
    row_of_N: Tensor
    """Row of each token; int64, non-decreasing."""

    def resonating(self, prior: AttentionPrior | None) -> Layout:
        """The same tokens with this prior on their attention; itself where there is no pair."""
        return self

    @abstractmethod
    def attend(self, q_NHY: Tensor, k_NHY: Tensor, beta_NH: Tensor) -> Attention:
        """Attention of every token to the tokens it sees.

        Differentiable in all three arguments, in the weight and the bias of each edge, and in the
        strength of the prior.
        """

    @property
    def kind(self) -> Hashable | None:
        """Layouts of the same kind can be joined; None where this one cannot be."""
        return None

    def part(self, first: int, last: int) -> Layout:
        """The rows from `first` to before `last`.

        Raises:
            NotImplementedError: `kind` is None.
        """
        raise NotImplementedError(f"{type(self).__name__} cannot be taken apart")

    def joined(self, others: Sequence[Any]) -> Layout:
        """Its rows, then those of `others`, which are of the same kind.

        Raises:
            NotImplementedError: `kind` is None.
        """
        raise NotImplementedError(f"{type(self).__name__} cannot be joined")

    def of_tokens(self, values_RH: Tensor) -> Tensor:
        """What each token's row has, (N, H)."""
        if self.rows == 1:
            return values_RH.expand(len(self.row_of_N), -1)
        return values_RH[self.row_of_N]

    def sum_rows(self, values_N: Tensor) -> Tensor:
        """Sum per row of (..., N), in float64: a small drop of a large energy must not drown in
        rounding."""
        if self.rows == 1:
            return values_N.sum(-1, keepdim=True, dtype=torch.float64)
        shape = *values_N.shape[:-1], self.rows
        out_R = torch.zeros(shape, dtype=torch.float64, device=values_N.device)
        return out_R.index_add(-1, self.row_of_N, values_N.double())
