"""Rows of equal length with a boolean mask: images, and small graphs padded to one size."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from copy import copy
from functools import cache, cached_property
from typing import Any, final

import torch
from torch import Tensor

from models.layouts.base import Attention
from models.layouts.pairwise import Pairwise, joined
from models.resonance import AttentionPrior


@final
class Dense(Pairwise):
    """R rows of L tokens, N = R L.

    mask_RLL[r, c, b] says that token c of row r sees token b. The paper's B != C
    (Energy Transformer, eq. 3) is a mask with a false diagonal. Time and memory O(R L^2).
    """

    weight_RHLL: Tensor | None = None
    bias_RHLL: Tensor | None = None

    def __init__(self, mask_RLL: Tensor) -> None:
        if mask_RLL.dtype != torch.bool or mask_RLL.ndim != 3:
            raise ValueError("mask must be a boolean tensor of shape (rows, length, length)")
        self.mask_RLL = mask_RLL
        self.rows, self.length = mask_RLL.shape[:2]
        rows = torch.arange(self.rows, device=mask_RLL.device)
        self.row_of_N = rows[:, None].repeat(1, self.length).flatten()

    @classmethod
    def from_size(cls, rows: int, length: int, device: torch.device) -> Dense:
        """Rows whose tokens see each other and themselves."""
        layout = cls(_true(device).expand(rows, length, length))
        # What the properties would compute: torch.compile cannot trace their locks (Python 3.11).
        vars(layout).update(_seen_RL=None, hidden_rLL=None, _hidden_R1LL=None)
        return layout

    def weighed(self, weight_RHLL: Tensor | None = None, bias_RHLL: Tensor | None = None) -> Dense:
        """The same tokens with a weight and a bias for each head and pair [r, h, c, b]."""
        layout = copy(self)
        layout.weight_RHLL, layout.bias_RHLL = weight_RHLL, bias_RHLL
        return layout

    @property
    def shared_mask(self) -> Tensor:
        """The mask of each row; of the first, where all see alike."""
        return self.mask_RLL[:1] if _shared(self.mask_RLL) else self.mask_RLL

    @cached_property
    def _seen_RL(self) -> Tensor | None:
        """Does a token see any? None where all do."""
        seen_rL = self.shared_mask.any(-1)
        return None if seen_rL.all() else seen_rL.expand(self.rows, -1)

    @cached_property
    def _hidden_R1LL(self) -> Tensor | None:
        """As `hidden_rLL`, of all rows and for all heads, but 0 for tokens that see none: a row of
        -inf alone would make NaN in the softmax and in its gradient."""
        hidden_rLL = self.hidden_rLL
        if hidden_rLL is None:
            return None
        if self._seen_RL is not None:
            blind_rL1 = ~self._seen_RL[: len(hidden_rLL), :, None]
            hidden_rLL = hidden_rLL.masked_fill(blind_rL1, 0.0)
        return hidden_rLL[:, None].expand(self.rows, 1, -1, -1)

    @cached_property
    def hidden_rLL(self) -> Tensor | None:
        """-inf where a token does not see another, else 0, float32; of the first row, where all see
        alike, and None where all see all."""
        mask_rLL = self.shared_mask
        if mask_rLL.all():
            return None
        nothing = torch.zeros(mask_rLL.shape, device=mask_rLL.device)
        return nothing.masked_fill_(~mask_rLL, -torch.inf)

    @property
    def weighs(self) -> bool:
        """Has a pair a weight or a bias?"""
        return self.weight_RHLL is not None or self.bias_RHLL is not None

    @property
    def _weighs(self) -> Hashable:
        return self.length, self.weight_RHLL is None, self.bias_RHLL is None

    def _part(self, first: int, last: int) -> Dense:
        rows = slice(first, last)
        return Dense(self.mask_RLL[rows]).weighed(
            None if self.weight_RHLL is None else self.weight_RHLL[rows],
            None if self.bias_RHLL is None else self.bias_RHLL[rows],
        )

    def _joined(self, several: Sequence[Any]) -> Dense:
        return Dense(_masks([each.mask_RLL for each in several])).weighed(
            joined([each.weight_RHLL for each in several]),
            joined([each.bias_RHLL for each in several]),
        )

    @property
    def num_pairs(self) -> int:
        return int(self.mask_RLL.sum())

    def sum_rows(self, values_N: Tensor) -> Tensor:
        return values_N.unflatten(-1, (self.rows, self.length)).sum(-1, dtype=torch.float64)

    def products(self, q_NHY: Tensor, k_NHY: Tensor) -> Tensor:
        """(R, H, L, L), of those too that are masked."""
        return self._by_head(q_NHY) @ self._by_head(k_NHY).transpose(2, 3)

    def pairs(self, values: Tensor, row: int) -> tuple[Tensor, Tensor, Tensor]:
        i_P, j_P = self.mask_RLL[row].nonzero().T
        return values[row][:, i_P, j_P].T, i_P, j_P

    def _attend(
        self, q_NHY: Tensor, k_NHY: Tensor, beta_NH: Tensor, bias: Tensor | None
    ) -> tuple[Attention, Tensor]:
        n, h, _ = q_NHY.shape
        s_RHLL = self.products(q_NHY * beta_NH[..., None], k_NHY)
        if self.weight_RHLL is not None:
            s_RHLL = s_RHLL * self.weight_RHLL
        for term_RHLL in (self.bias_RHLL, bias, self._hidden_R1LL):
            if term_RHLL is not None:
                s_RHLL = s_RHLL + term_RHLL.to(s_RHLL.dtype)
        p_RHLL = torch.softmax(s_RHLL, -1)
        # The largest p is exp(s - lse) of the largest s: it tells lse without another exp of all.
        lse_RHL = s_RHLL.amax(-1) - p_RHLL.amax(-1).log()
        if self._seen_RL is not None:
            blind_R1L = ~self._seen_RL[:, None]
            lse_RHL = lse_RHL.masked_fill(blind_R1L, 0.0)
            p_RHLL = p_RHLL.masked_fill(blind_R1L[..., None], 0.0)
        weighed = p_RHLL if self.weight_RHLL is None else p_RHLL * self.weight_RHLL
        sums = self._read(weighed, k_NHY), self._write(weighed, q_NHY)
        return Attention(lse_RHL.transpose(1, 2).reshape(n, h), *sums), p_RHLL

    def _priors(self, prior: AttentionPrior, cosines: Tensor) -> tuple[Tensor, Tensor]:
        return prior(cosines, lambda value_PH: value_PH[..., None, None])

    def _read(self, weight: Tensor, k_NHY: Tensor) -> Tensor:
        return self._by_token(weight @ self._by_head(k_NHY))

    def _write(self, weight: Tensor, q_NHY: Tensor) -> Tensor:
        return self._by_token(weight.transpose(2, 3) @ self._by_head(q_NHY))

    def _by_head(self, u_NHY: Tensor) -> Tensor:
        return u_NHY.unflatten(0, (self.rows, self.length)).transpose(1, 2)

    def _by_token(self, u_RHLY: Tensor) -> Tensor:
        return u_RHLY.transpose(1, 2).flatten(0, 1)


@cache
def _true(device: torch.device) -> Tensor:
    return torch.ones(1, 1, 1, dtype=torch.bool, device=device)


def _shared(mask_RLL: Tensor) -> bool:
    """Do all rows see alike, by one mask in memory?"""
    return len(mask_RLL) == 1 or mask_RLL.stride(0) == 0


def _masks(several: Sequence[Tensor]) -> Tensor:
    """One after the other; where all are the same one, that one."""
    first = several[0]
    if all(_shared(mask) and mask.data_ptr() == first.data_ptr() for mask in several):
        return first[:1].expand(sum(map(len, several)), -1, -1)
    return torch.cat(list(several))
