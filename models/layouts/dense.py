"""Rows of equal length with a boolean mask: images, and small graphs padded to one size."""

from __future__ import annotations

from copy import copy
from typing import final

import torch
from torch import Tensor

from models.layouts.base import Attention, Layout


@final
class Dense(Layout):
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
        self.row_of_N = torch.arange(self.rows, device=mask_RLL.device).repeat_interleave(
            self.length
        )
        self._seen_RL = mask_RLL.any(-1)

    def weighed(self, weight_RHLL: Tensor | None = None, bias_RHLL: Tensor | None = None) -> Dense:
        """The same tokens with a weight and a bias for each head and pair [r, h, c, b]."""
        layout = copy(self)
        layout.weight_RHLL, layout.bias_RHLL = weight_RHLL, bias_RHLL
        return layout

    def seen(self) -> Tensor:
        return self._seen_RL.flatten()

    def attend(self, q_NHY: Tensor, k_NHY: Tensor, beta_NH: Tensor) -> Attention:
        n, h, y = q_NHY.shape
        q = q_NHY.reshape(self.rows, self.length, h, y)
        k = k_NHY.reshape(self.rows, self.length, h, y)
        beta = beta_NH.reshape(self.rows, self.length, h)
        s_RHLL = torch.einsum("rchy,rbhy->rhcb", q, k) * beta.transpose(1, 2)[..., None]
        if self.weight_RHLL is not None:
            s_RHLL = s_RHLL * self.weight_RHLL
        if self.bias_RHLL is not None:
            s_RHLL = s_RHLL + self.bias_RHLL
        s_RHLL = s_RHLL.masked_fill(~self.mask_RLL[:, None], -torch.inf)
        blind_RHL1 = ~self._seen_RL[:, None, :, None]
        # A row of -inf alone would make NaN in the softmax and in its gradient.
        s_RHLL = s_RHLL.masked_fill(blind_RHL1, 0.0)
        lse_RHL = torch.logsumexp(s_RHLL, -1).masked_fill(blind_RHL1[..., 0], 0.0)
        p_RHLL = torch.softmax(s_RHLL, -1).masked_fill(blind_RHL1, 0.0)
        if self.weight_RHLL is not None:
            p_RHLL = p_RHLL * self.weight_RHLL
        return Attention(
            lse_RHL.transpose(1, 2).reshape(n, h),
            torch.einsum("rhcb,rbhy->rchy", p_RHLL, k).reshape(n, h, y),
            torch.einsum("rhcb,rchy->rbhy", p_RHLL, q).reshape(n, h, y),
        )
