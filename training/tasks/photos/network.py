"""prefill + mask x residual: the residual by energies on a grid of tokens, or by a ViT.

Beside the suffixes of `models.layouts`: R windows, C channels, S pixels of a side, L tokens of a
window, F features of all heads, P offsets between two places.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from models.nn.layer_norm import EnergyLayerNorm

Core = Literal["et", "vit", "none"]


class RelativeBias(nn.Module):
    """A number for each head and offset between two places, as logits (H, L, L)."""

    index_LL: Tensor

    def __init__(self, along: int) -> None:
        super().__init__()
        offset = torch.arange(along)[:, None] - torch.arange(along) + along - 1
        index = offset[:, None, :, None] * (2 * along - 1) + offset[None, :, None, :]
        self.register_buffer("index_LL", index.reshape(along**2, along**2), persistent=False)

    def forward(self, bias_HP: Tensor) -> Tensor:
        return bias_HP[:, self.index_LL]


class EnergyBlock(nn.Module):
    """Steps down the energy of a grid of tokens, each of a size exp(log_step).

    E(g) = - sum_h sum_C 1/b_h log sum_B exp(b_h K_hB . Q_hC + bias_h(C - B))
           - 1/2 sum_m sign_m sum_C relu((W_m * g)_C)^2

    Energy Transformer eq. 3 with a bias of the offset in its logits, and eq. 5 with memories of
    3 x 3 tokens, half of which attract and half of which repel. The force is in closed form.
    """

    sign_M: Tensor

    def __init__(
        self, dim: int, heads: int, head_dim: int, memories: int, along: int, steps: int
    ) -> None:
        super().__init__()
        self.heads, self.along, self.steps = heads, along, steps
        self.norm = EnergyLayerNorm(dim)
        self.query_FD = nn.Parameter(torch.randn(heads * head_dim, dim) * dim**-0.5)
        self.key_FD = nn.Parameter(torch.randn(heads * head_dim, dim) * dim**-0.5)
        self.log_beta_H = nn.Parameter(torch.full((heads,), math.log(head_dim**-0.5)))
        self.bias_HP = nn.Parameter(torch.zeros(heads, (2 * along - 1) ** 2))
        self.memories_MF = nn.Parameter(torch.randn(memories, 9 * dim) * (9 * dim) ** -0.5)
        self.log_step = nn.Parameter(torch.tensor(math.log(0.3)))
        sign_M = torch.where(torch.arange(memories) < memories // 2, 1.0, -1.0)
        self.register_buffer("sign_M", sign_M, persistent=False)
        self.relative = RelativeBias(along)

    def compute_energy_and_force(self, g_RLD: Tensor) -> tuple[Tensor, Tensor]:
        """Energy (R,) and -dE/dg (R, L, D)."""
        rows, length, _ = g_RLD.shape
        q, k = (
            F.linear(g_RLD, w).view(rows, length, self.heads, -1).transpose(1, 2)
            for w in (self.query_FD, self.key_FD)
        )
        beta_H11 = self.log_beta_H.exp().to(q.dtype)[:, None, None]
        logits = (q * beta_H11) @ k.transpose(-1, -2) + self.relative(self.bias_HP).to(q.dtype)
        weights = logits.softmax(-1).to(q.dtype)
        pull_q, pull_k = (
            pull.transpose(1, 2).reshape(rows, length, -1)
            for pull in (weights @ k, weights.transpose(-1, -2) @ q)
        )
        force = pull_q @ self.query_FD.to(q.dtype) + pull_k @ self.key_FD.to(q.dtype)
        kernel = self.memories_MF.view(len(self.memories_MF), 3, 3, -1).permute(0, 3, 1, 2)
        grid = g_RLD.view(rows, self.along, self.along, -1).permute(0, 3, 1, 2)
        match = F.conv2d(grid, kernel, padding=1).relu()
        signed = match * self.sign_M.to(match.dtype)[:, None, None]
        back = F.conv_transpose2d(signed, kernel, padding=1)
        force = force + back.permute(0, 2, 3, 1).reshape(rows, length, -1)
        attention = -(logits.logsumexp(-1) / beta_H11[:, 0]).sum((1, 2))
        return attention - (signed * match).sum((1, 2, 3)) / 2, force

    def forward(self, x_RLD: Tensor) -> Tensor:
        for _ in range(self.steps):
            force = self.compute_energy_and_force(self.norm(x_RLD))[1]
            x_RLD = x_RLD + self.log_step.exp() * force.to(x_RLD.dtype)
        return x_RLD


class TransformerLayer(nn.Module):
    """The peer: attention before feed-forward, with the same bias of offsets."""

    def __init__(self, dim: int, heads: int, head_dim: int, hidden: int, along: int) -> None:
        super().__init__()
        self.heads = heads
        self.n1, self.n2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv = nn.Linear(dim, 3 * heads * head_dim, bias=False)
        self.out = nn.Linear(heads * head_dim, dim)
        self.up, self.down = nn.Linear(dim, hidden), nn.Linear(hidden, dim)
        self.bias_HP = nn.Parameter(torch.zeros(heads, (2 * along - 1) ** 2))
        self.relative = RelativeBias(along)
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.down.weight)

    def forward(self, x_RLD: Tensor) -> Tensor:
        rows, length, _ = x_RLD.shape
        qkv = self.qkv(self.n1(x_RLD)).view(rows, length, 3, self.heads, -1)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        bias_HLL = self.relative(self.bias_HP).to(q.dtype)
        logits = (q * q.shape[-1] ** -0.5) @ k.transpose(-1, -2) + bias_HLL
        mixed = (logits.softmax(-1).to(v.dtype) @ v).transpose(1, 2).reshape(rows, length, -1)
        x_RLD = x_RLD + self.out(mixed).to(x_RLD.dtype)
        return x_RLD + self.down(F.gelu(self.up(self.n2(x_RLD)))).to(x_RLD.dtype)


class WindowCompleter(nn.Module):
    """From a prefilled window and its mask to the residual of the hidden pixels.

    The window is standardised by its known pixels, their deviation + 0.04, and goes with the mask
    as +-1 through a convolution and an embedding of two patches' width; so a token keeps what is
    known of its patch. What comes of the tokens is drawn out to pixels and joined with the input.
    `vit` has twice the layers of as many numbers together, `none` has no layers at all.
    """

    def __init__(
        self,
        core: Core = "et",
        *,
        size: int = 64,
        patch: int = 4,
        dim: int = 192,
        heads: int = 6,
        memories: int = 256,
        blocks: int = 3,
        steps: int = 2,
        stem: int = 16,
        features: int = 24,
    ) -> None:
        super().__init__()
        along, head_dim = size // patch, dim // heads
        self.stem = nn.Conv2d(4, stem, 3, padding=1)
        self.embed = nn.Conv2d(stem, dim, 2 * patch, stride=patch, padding=patch // 2)
        layers: list[nn.Module] = []
        if core == "et":
            layers = [
                EnergyBlock(dim, heads, head_dim, memories, along, steps) for _ in range(blocks)
            ]
        elif core == "vit":
            hidden = (9 * memories - 6 * heads * head_dim) // 4
            layers = [
                TransformerLayer(dim, heads, head_dim, hidden, along) for _ in range(2 * blocks)
            ]
        self.blocks = nn.ModuleList(layers)
        self.norm = EnergyLayerNorm(dim)
        self.unembed = nn.ConvTranspose2d(
            dim, features, 2 * patch, stride=patch, padding=patch // 2
        )
        self.head1 = nn.Conv2d(features + 4, features, 3, padding=1)
        self.head2 = nn.Conv2d(features, 3, 3, padding=1)
        self.doubt = nn.Conv2d(features, 1, 3, padding=1)
        for head in (self.head2, self.doubt):  # before training the answer is the prefill
            for parameter in head.parameters():
                nn.init.zeros_(parameter)

    def forward(self, prefilled_R3SS: Tensor, mask_R1SS: Tensor) -> tuple[Tensor, Tensor]:
        """The residual (R, 3, S, S), in units of 0 to 1, and the logarithm of the mean absolute
        error that is expected of it (R, 1, S, S)."""
        known = 1 - mask_R1SS
        count = known.sum((1, 2, 3), keepdim=True).clamp(min=1) * 3
        mean = (prefilled_R3SS * known).sum((1, 2, 3), keepdim=True) / count
        off = (prefilled_R3SS - mean) * known
        std = (off.square().sum((1, 2, 3), keepdim=True) / count).sqrt() + 0.04
        inputs = torch.cat([(prefilled_R3SS - mean) / std, 2 * mask_R1SS - 1], 1)
        z = self.embed(F.gelu(self.stem(inputs)))
        rows, dim, height, width = z.shape
        x_RLD = z.permute(0, 2, 3, 1).reshape(rows, height * width, dim).to(std.dtype)
        for block in self.blocks:
            x_RLD = block(x_RLD)
        y = self.norm(x_RLD).view(rows, height, width, dim).permute(0, 3, 1, 2)
        y = F.gelu(self.head1(torch.cat([self.unembed(y), inputs.to(z.dtype)], 1)))
        log_error = self.doubt(y.detach()).to(std.dtype) + std.log() - 1.5
        return self.head2(y).to(std.dtype) * std, log_error
