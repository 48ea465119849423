"""Learned weights and biases of the attention between tokens: the weighted adjacency of ET."""

from __future__ import annotations

from itertools import product
from typing import Literal

import torch
from torch import Tensor, nn

from models.inputs.graph import Column
from models.inputs.tabular import ColumnEncoder
from models.inputs.tokens import AttentionKind, TokenBatch
from models.layouts import EdgeList

Weighting = Literal["bias", "multiply", "none"]
PairTerm = Literal["product", "convolution", "none"]

_RANK = 4


class EdgeTerms(nn.Module):
    """Layout of one block, with a learned term for each entry of the adjacency and each head.

    A term depends on the kind of the entry, on the features of its edge, and on its two ends.
    Energy Transformer eq. 24 multiplies the logits by A^ = Conv2D(X (x) X) (.) A', where A' is a
    linear map of the features of the edge. `weighting` selects how the two factors act:

    - `bias`: beta q . k + (A' + pairs). This departs from the paper: a feature can then admit or
      exclude a neighbour for any q . k, whereas a factor only scales q . k.
    - `multiply`: beta q . k (1 + A') (1 + pairs). Eq. 24-25, with all factors 1 at the start.
    - `none`: no terms.

    `pairs` selects the term of the two ends:

    - `product`: a bilinear form u(x_i) . v(x_j) of rank 4 for each head. It does not depend on
      how the nodes are numbered.
    - `convolution`: the 3 x 3 convolution over X (x) X of eq. 24. It mixes nodes with adjacent
      *numbers*, so the output depends on the numbering.
    - `none`: no such term.

    The terms are computed from the tokens that enter the network, not from the moving state, so
    that the force of the energy stays exact. Tokens without an entry are never attended to; in
    the released code a trained bias makes them visible again.
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        columns: tuple[Column, ...],
        weighting: Weighting,
        pairs: PairTerm,
    ) -> None:
        super().__init__()
        self.heads, self.weighting, self.pairs = heads, weighting, pairs
        if weighting == "none":
            return
        self.kind_KH = nn.Parameter(torch.randn(len(AttentionKind), heads) * 0.02)
        self.features = ColumnEncoder(columns, heads) if columns else None
        if pairs == "product":
            self.ends_D = nn.Linear(dim, 2 * heads * _RANK, bias=False)
        elif pairs == "convolution":
            self.kernel_9DH = nn.Parameter(torch.randn(9, dim, heads) * (9 * dim) ** -0.5)

    def forward(self, x_ND: Tensor, batch: TokenBatch) -> EdgeList:
        """Return the layout of the batch with the terms of tokens x (N, D)."""
        if self.weighting == "none":
            return batch.layout
        adjacency_EH = self.kind_KH[batch.kind_E]
        if self.features is not None:
            adjacency_EH = adjacency_EH.index_add(
                0, batch.edge_e, self.features(batch.edge_attr_eP).to(adjacency_EH)
            )
        pairs_EH = self._compute_pairs(x_ND, batch.layout)
        if self.weighting == "bias":
            bias_EH = adjacency_EH if pairs_EH is None else adjacency_EH + pairs_EH
            return batch.layout.weighed(bias_EH=bias_EH)
        weight_EH = 1 + adjacency_EH
        if pairs_EH is not None:
            weight_EH = weight_EH * (1 + pairs_EH)
        return batch.layout.weighed(weight_EH=weight_EH)

    def _compute_pairs(self, x_ND: Tensor, layout: EdgeList) -> Tensor | None:
        """Term (E, H) of the two ends of each entry."""
        i, j = layout.receivers_E, layout.indices_E.long()
        if self.pairs == "product":
            ends = self.ends_D(x_ND).view(len(x_ND), 2, self.heads, _RANK)
            return (ends[i, 0] * ends[j, 1]).sum(-1)
        if self.pairs == "convolution":
            shifted = [_shift(x_ND, layout.row_of_N, offset) for offset in (-1, 0, 1)]
            neighbourhood = zip(product(shifted, shifted), self.kernel_9DH, strict=True)
            return torch.stack([(a[i] * b[j]) @ kernel for (a, b), kernel in neighbourhood]).sum(0)
        return None


def _shift(x_ND: Tensor, row_of_N: Tensor, offset: int) -> Tensor:
    """Return x of the token `offset` numbers further in the same graph, zero beyond its ends."""
    if offset == 0:
        return x_ND
    same_graph = (row_of_N == row_of_N.roll(-offset))[:, None]
    same_graph[-1 if offset > 0 else 0] = False
    return torch.where(same_graph, x_ND.roll(-offset, 0), torch.zeros_like(x_ND))
