"""A Hopfield energy of tokens on a grid: each with its neighbours is drawn to learned memories."""

from __future__ import annotations

import math
from typing import final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from models.energies.base import Energy, Terms
from models.layouts import Layout

_SIDE = 3  # tokens along a memory


@final
class GridHopfield(Energy):
    """E = - 1/2 sum_C sum_m sign_m relu((xi_m * g)_C)^2, of a square grid of tokens C per row.

    Energy Transformer eq. 5 with the classical r = relu, memories xi_m of 3 x 3 tokens, and zeros
    around the grid: (xi_m * g)_C = sum_o xi_mo . g_{C+o}. Of the memories the first half attracts
    (sign +1), the others repel (-1), so that a state can also be told what it should not be; the
    norm before g keeps the energy bounded. The force sum_m sign_m xi_m^T * relu(xi_m * g) is in
    closed form.
    """

    sign_M: Tensor

    def __init__(self, dim: int, memories: int) -> None:
        super().__init__()
        width = _SIDE**2 * dim  # tokens row by row, each with its dimensions
        self.memories_MF = nn.Parameter(torch.randn(memories, width) * width**-0.5)
        sign_M = torch.ones(memories)
        sign_M[memories // 2 :] = -1
        self.register_buffer("sign_M", sign_M, persistent=False)

    def forward(
        self, g_ND: Tensor, layout: Layout, beta_RH: Tensor, with_force: bool = True
    ) -> Terms:
        """
        Raises:
            ValueError: the tokens of a row are no square grid.
        """
        r = self._match(g_ND, layout)
        signed = r * self.sign_M.to(r.dtype)[:, None, None]
        energy_N = -(signed * r).sum(1).flatten() / 2
        if not with_force:
            return Terms({"hopfield": energy_N}, None)
        back = F.conv_transpose2d(signed, self._kernel().to(signed.dtype), padding=_SIDE // 2)
        return Terms({"hopfield": energy_N}, back.permute(0, 2, 3, 1).reshape(g_ND.shape))

    def memory_activations(self, g_ND: Tensor, layout: Layout) -> tuple[Tensor, Tensor]:
        """Activations r = relu(xi_m * g) at each token, and their shares r^2 / sum_m r^2, 0 where
        none fires, (N, M) each. Those that repel count by what they add, not by its sign."""
        r_NM = self._match(g_ND, layout).permute(0, 2, 3, 1).flatten(0, 2)
        total_N1 = r_NM.square().sum(-1, keepdim=True)
        return r_NM, r_NM.square() / total_N1.clamp(min=torch.finfo(r_NM.dtype).tiny)

    def _kernel(self) -> Tensor:
        """(M, D, 3, 3)."""
        return self.memories_MF.unflatten(1, (_SIDE, _SIDE, -1)).permute(0, 3, 1, 2)

    def _match(self, g_ND: Tensor, layout: Layout) -> Tensor:
        """r (R, M, l, l)."""
        tokens = len(g_ND) // layout.rows
        along = math.isqrt(tokens)
        if along**2 != tokens:
            raise ValueError(f"{tokens} tokens of a row are no square grid")
        grid = g_ND.view(layout.rows, along, along, -1).permute(0, 3, 1, 2)
        return F.conv2d(grid, self._kernel().to(grid.dtype), padding=_SIDE // 2).relu()
