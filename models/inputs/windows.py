"""Windows of photographs whose holes are prefilled, as batches, and the way to tokens and back.

Beside the suffixes of `models.layouts`: C channels, S pixels of a side of a window, L tokens of it.
Pixels are float, 0 black to 1 white.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from models.nn.layer_norm import EnergyLayerNorm

_LEAST_DEVIATION = 0.04  # added to that of the known pixels
FIRST_LOG_ERROR = -1.5  # what is expected before training, in units of that deviation


@dataclass(frozen=True)
class PrefilledWindow:
    """pixels float32 (S, S, C), those hidden as a prefill has them, and hidden bool (S, S)."""

    pixels: np.ndarray
    hidden: np.ndarray


@final
class WindowBatch:
    """R windows (R, C, S, S) and their masks (R, 1, S, S), 1 where hidden, of L tokens each.

    No dataclass: Lightning's mixed precision would copy one at every step.
    """

    def __init__(self, pixels_RCSS: Tensor, hidden_R1SS: Tensor, num_tokens: int) -> None:
        self.pixels_RCSS, self.hidden_R1SS = pixels_RCSS, hidden_R1SS
        self.num_tokens = num_tokens

    @property
    def rows(self) -> int:
        return len(self.pixels_RCSS)

    @property
    def row_of_N(self) -> Tensor:
        return self.row_of_outputs.repeat_interleave(self.num_tokens)

    @property
    def row_of_outputs(self) -> Tensor:
        return torch.arange(self.rows, device=self.pixels_RCSS.device)

    @property
    def hidden_share_R(self) -> Tensor:
        """Share of the pixels of each window that are hidden."""
        return self.hidden_R1SS.mean((1, 2, 3))

    def to(self, device: torch.device | str) -> WindowBatch:
        pixels_RCSS = self.pixels_RCSS.to(device)
        return WindowBatch(pixels_RCSS, self.hidden_R1SS.to(device), self.num_tokens)


def collate_windows(windows: Sequence[PrefilledWindow], num_tokens: int) -> WindowBatch:
    """Windows of one size as a batch."""
    pixels = torch.from_numpy(np.stack([window.pixels for window in windows]))
    hidden = torch.from_numpy(np.stack([window.hidden for window in windows]))
    return WindowBatch(
        pixels.permute(0, 3, 1, 2).contiguous(), hidden[:, None].to(pixels.dtype), num_tokens
    )


@final
class WindowCodec(nn.Module):
    """Between windows and tokens: convolutions that keep what is known of each patch.

    A window is standardised by its known pixels, by their mean and their deviation + 0.04 over all
    channels, and goes with its mask as +-1 through a 3 x 3 convolution and an embedding of twice a
    patch's width. Tokens are drawn out to pixels the same way, joined with the input, and read as
    a residual of the hidden pixels; so before training the answer is the prefill. A second head
    tells the logarithm of the absolute error to expect, and nothing else learns from it.
    """

    def __init__(
        self, size: int, patch: int, channels: int, dim: int, stem: int, features: int
    ) -> None:
        super().__init__()
        self.size, self.patch, self.channels = size, patch, channels
        self.along = size // patch
        self.stem = nn.Conv2d(channels + 1, stem, 3, padding=1)
        self.embed = nn.Conv2d(stem, dim, 2 * patch, stride=patch, padding=patch // 2)
        self.norm = EnergyLayerNorm(dim)
        self.unembed = nn.ConvTranspose2d(
            dim, features, 2 * patch, stride=patch, padding=patch // 2
        )
        self.head1 = nn.Conv2d(features + channels + 1, features, 3, padding=1)
        self.head2 = nn.Conv2d(features, channels, 3, padding=1)
        self.doubt = nn.Conv2d(features, 1, 3, padding=1)
        for head in (self.head2, self.doubt):
            for parameter in head.parameters():
                nn.init.zeros_(parameter)

    @property
    def num_tokens(self) -> int:
        """L."""
        return self.along**2

    def encode(self, batch: WindowBatch) -> Tensor:
        """x(1) (N, D)."""
        inputs, _ = standardise(batch, self.norm.delta_D.dtype)
        z_RDll = self.embed(F.gelu(self.stem(inputs)))
        # Under mixed precision convolutions answer in half; the states stay in full.
        return z_RDll.permute(0, 2, 3, 1).flatten(0, 2).to(self.norm.delta_D.dtype)

    def decode(self, x_ND: Tensor, batch: WindowBatch) -> tuple[Tensor, Tensor]:
        """Completed windows (R, C, S, S), and the logarithm of the absolute error to expect of
        each pixel, mean over channels, (R, 1, S, S)."""
        inputs, deviation = standardise(batch, self.norm.delta_D.dtype)
        y = self.norm(x_ND).view(batch.rows, self.along, self.along, -1).permute(0, 3, 1, 2)
        drawn = self.unembed(y)
        y = F.gelu(self.head1(torch.cat([drawn, inputs.to(drawn.dtype)], 1)))
        residual = self.head2(y).to(deviation.dtype) * deviation
        log_error = self.doubt(y.detach()).to(deviation.dtype) + deviation.log()
        log_error = log_error + FIRST_LOG_ERROR
        return batch.pixels_RCSS + batch.hidden_R1SS * residual, log_error


def standardise(batch: WindowBatch, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Windows standardised by what is known of them, with their masks as +-1, (R, C + 1, S, S), and
    the deviation (R, 1, 1, 1) by which pixels were divided."""
    pixels = batch.pixels_RCSS.to(dtype)
    known = 1 - batch.hidden_R1SS.to(dtype)
    count = known.sum((1, 2, 3), keepdim=True).clamp(min=1) * pixels.shape[1]
    mean = (pixels * known).sum((1, 2, 3), keepdim=True) / count
    off = (pixels - mean) * known
    variance = off.square().sum((1, 2, 3), keepdim=True) / count
    deviation = variance.sqrt() + _LEAST_DEVIATION
    return torch.cat([(pixels - mean) / deviation, 1 - 2 * known], 1), deviation
