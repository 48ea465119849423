"""A fraud logit per node."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor, nn

from models.nn.dropout import Dropout


@final
class AnomalyHead(nn.Module):
    """MLP on g(1) || g(T), Energy Transformer eq. 11.

    g(1) is the node by itself, g(T) the node among its neighbours. Over several relations the
    g(T) are joined by their largest value or end to end (appendix E).
    """

    def __init__(
        self,
        dim: int,
        relations: int,
        combine: str,
        hidden: int,
        dropout: float,
        state_dropout: float,
    ) -> None:
        super().__init__()
        self.combine = combine
        width = dim * (1 + (relations if combine == "concat" else 1))
        self.mlp = nn.Sequential(
            Dropout(state_dropout),
            nn.Linear(width, hidden),
            nn.GELU(),
            Dropout(dropout),
            nn.Linear(hidden, 1),
        )

    def forward(self, first_ND: Tensor, last: list[Tensor]) -> Tensor:
        """Logits (N,) from g(1) and the g(T) of each relation."""
        if len(last) == 1:
            joined = last[0]
        else:
            joined = torch.cat(last, -1) if self.combine == "concat" else torch.stack(last).amax(0)
        return self.mlp(torch.cat([first_ND, joined], -1)).squeeze(-1)
