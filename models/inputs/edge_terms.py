"""How strongly one token sees another: ET's weighted adjacency, per head."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from models.inputs.graph import Column
from models.inputs.tabular import ColumnEncoder
from models.inputs.tokens import Kind, TokenBatch
from models.layouts import EdgeList

Weighting = Literal["bias", "multiply", "none"]
Pairs = Literal["product", "convolution", "none"]

_RANK = 4


class EdgeTerms(nn.Module):
    """The layout of one block: a term for each entry and head, of its kind, features and ends.

    Energy Transformer eq. 24 multiplies the logits by A^ = Conv2D(X (x) X) (.) A', A' being a
    linear map of the edge's features. `weighting` says how the two terms act:

    - `bias`: beta q . k + (A' + pairs). A departure: a feature can then let a neighbour be seen
      or not whatever q . k is, where a factor only stretches it.
    - `multiply`: beta q . k (1 + A') (1 + pairs), eq. 24-25 with ones to start from.

    The terms are made from the tokens as they enter the network, not from the state that moves:
    the force of the energy stays exact. Entries that are not there are truly not seen, where the
    released code lets them back in once its bias is trained.

    `pairs` chooses the term of the two ends: `product` is a bilinear form u(x_i) . v(x_j) of rank
    4 for each head, the same for every numbering of the nodes; `convolution` is eq. 24's 3 x 3
    convolution over X (x) X, whose neighbourhoods are neighbours in the *numbering*, so that the
    answer depends on it.
    """

    def __init__(
        self, dim: int, heads: int, columns: tuple[Column, ...], weighting: Weighting, pairs: Pairs
    ) -> None:
        super().__init__()
        self.heads, self.weighting, self.pairs = heads, weighting, pairs
        if weighting == "none":
            return
        self.kind_KH = nn.Parameter(torch.randn(len(Kind), heads) * 0.02)
        self.features = ColumnEncoder(columns, heads) if columns else None
        if pairs == "product":
            self.ends_D = nn.Linear(dim, 2 * heads * _RANK, bias=False)
        elif pairs == "convolution":
            self.kernel_9DH = nn.Parameter(torch.randn(9, dim, heads) * (9 * dim) ** -0.5)

    def forward(self, x_ND: Tensor, batch: TokenBatch) -> EdgeList:
        """The batch's layout, weighed for tokens x (N, D)."""
        if self.weighting == "none":
            return batch.layout
        adjacency_EH = self.kind_KH[batch.kind_E]
        if self.features is not None:
            adjacency_EH = adjacency_EH.index_add(
                0, batch.edge_e, self.features(batch.edge_attr_eP).to(adjacency_EH)
            )
        pairs_EH = self._pairs(x_ND, batch.layout)
        if self.weighting == "bias":
            bias_EH = adjacency_EH if pairs_EH is None else adjacency_EH + pairs_EH
            return batch.layout.weighed(bias_EH=bias_EH)
        weight_EH = 1 + adjacency_EH
        return batch.layout.weighed(
            weight_EH=weight_EH if pairs_EH is None else weight_EH * (1 + pairs_EH)
        )

    def _pairs(self, x_ND: Tensor, layout: EdgeList) -> Tensor | None:
        i, j = layout.receivers_E, layout.indices_E.long()
        if self.pairs == "product":
            ends = self.ends_D(x_ND).view(len(x_ND), 2, self.heads, _RANK)
            return (ends[i, 0] * ends[j, 1]).sum(-1)
        if self.pairs == "convolution":
            shifted = [_shifted(x_ND, layout.row_of_N, by) for by in (-1, 0, 1)]
            terms = [
                (a[i] * b[j]) @ kernel
                for (a, b), kernel in zip(
                    [(a, b) for a in shifted for b in shifted], self.kernel_9DH, strict=True
                )
            ]
            return torch.stack(terms).sum(0)
        return None


def _shifted(x_ND: Tensor, row_of_N: Tensor, by: int) -> Tensor:
    """x of the token `by` places on in the same graph, zero past its ends."""
    if by == 0:
        return x_ND
    same = (row_of_N == row_of_N.roll(-by))[:, None]
    same[-1 if by > 0 else 0] = False
    return torch.where(same, x_ND.roll(-by, 0), torch.zeros_like(x_ND))
