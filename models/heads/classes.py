"""Logits per graph."""

from __future__ import annotations

from typing import Literal, final

import torch
from torch import Tensor, nn

from models.inputs.tokens import TokenBatch
from models.nn.dropout import Dropout

Readout = Literal["cls", "mean", "sum", "max"]


@final
class ClassHead(nn.Module):
    """Linear map, or an MLP, of the graph's state: Energy Transformer section 5 takes CLS alone.

    `mean`, `sum` and `max` pool the nodes' activations as well; a sum s grows with the graph, so it
    enters as sign(s) log(1 + |s|). A maximum says that something is there, however large the rest.
    """

    def __init__(
        self, dim: int, outputs: int, readout: tuple[Readout, ...], hidden: int, dropout: float
    ) -> None:
        super().__init__()
        self.readout = readout
        width = dim * len(readout)
        self.mlp = nn.Sequential(Dropout(dropout))
        if hidden:
            self.mlp.extend([nn.Linear(width, hidden), nn.GELU(), Dropout(dropout)])
        self.mlp.append(nn.Linear(hidden or width, outputs))

    def state(self, g_ND: Tensor, batch: TokenBatch) -> Tensor:
        """What is read from each graph, (R, D times the readouts)."""
        parts: list[Tensor] = []
        none_RD = sum_RD = g_ND.new_zeros(batch.rows, g_ND.shape[1])
        g_nD, row_of_n = g_ND[batch.node_n], batch.row_of_n
        if set(self.readout) & {"mean", "sum"}:
            sum_RD = none_RD.index_add(0, row_of_n, g_nD)
        for part in self.readout:
            if part == "cls":
                parts.append(g_ND[batch.cls_R])
            elif part == "mean":
                count_R = torch.bincount(row_of_n, minlength=batch.rows).clamp(min=1)
                parts.append(sum_RD / count_R[:, None])
            elif part == "sum":
                parts.append(sum_RD.sign() * sum_RD.abs().log1p())
            else:
                index_nD = row_of_n[:, None].expand_as(g_nD)
                parts.append(none_RD.scatter_reduce(0, index_nD, g_nD, "amax", include_self=False))
        return torch.cat(parts, -1)

    def forward(self, g_ND: Tensor, batch: TokenBatch) -> Tensor:
        """Logits (R, C) from the last activations."""
        return self.mlp(self.state(g_ND, batch))
