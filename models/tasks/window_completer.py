"""Complete prefilled windows of photographs: a residual of what is hidden, and how sure it is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self, cast

import numpy as np
import torch
from pydantic import Field, PositiveFloat, PositiveInt, model_validator
from torch import Tensor, nn

from models.base import Architecture, temporary_seed
from models.inputs.windows import PrefilledWindow, WindowBatch, WindowCodec, collate_windows
from models.layouts import Dense, Layout
from models.tasks.completer import CompletionConfig, CompletionNetwork


class WindowConfig(CompletionConfig):
    """Configuration of a completer of prefilled windows."""

    size: PositiveInt = Field(64, description="pixels of a side of a window, a multiple of 4")
    step_size: PositiveFloat = Field(1.0, description="in units of what each block has learned")
    stem: PositiveInt = Field(16, description="channels of the first convolution")
    features: PositiveInt = Field(24, description="channels that pixels are read from")

    @model_validator(mode="after")
    def _even_patches(self) -> Self:
        if self.patch % 2:
            raise ValueError("patch must be even")
        return self


class RelativeBias(nn.Module):
    """A number for each head and offset between two tokens of a grid, added to the logits."""

    index_LL: Tensor

    def __init__(self, heads: int, along: int) -> None:
        super().__init__()
        offset = torch.arange(along)[:, None] - torch.arange(along) + along - 1
        index = offset[:, None, :, None] * (2 * along - 1) + offset[None, :, None, :]
        self.register_buffer("index_LL", index.reshape(along**2, along**2), persistent=False)
        self.bias_HP = nn.Parameter(torch.zeros(heads, (2 * along - 1) ** 2))

    def forward(self) -> Tensor:
        """Logits (H, L, L)."""
        return self.bias_HP[:, self.index_LL]


class WindowCompleter(CompletionNetwork):
    """prefill + mask x residual: the residual by energies on a grid of tokens.

    The tokens of a window see each other and themselves, with a learned bias of their offset in the
    logits of every head. Outputs are pixels, those known as they were, and behind them as one more
    channel the logarithm of the absolute error to expect of each, (R, C + 1, S, S).
    """

    has_uncertainty = True
    config: WindowConfig  # pyright: ignore[reportIncompatibleVariableOverride]

    def __init__(self, config: WindowConfig) -> None:
        super().__init__()
        c = self.config = config  # pyright: ignore[reportIncompatibleVariableOverride]
        self.codec = WindowCodec(c.size, c.patch, c.channels, c.dim, c.stem, c.features)
        self.blocks = nn.ModuleList(self.build_block() for _ in range(c.blocks))
        num_biases = c.blocks if c.attention else 0
        self.biases = nn.ModuleList(
            RelativeBias(c.heads, self.codec.along) for _ in range(num_biases)
        )
        self.number_blocks()

    def pack(self, windows: Sequence[PrefilledWindow]) -> WindowBatch:
        return collate_windows(windows, self.codec.num_tokens)

    def make_item(self, pixels_SSC: np.ndarray, hidden_SS: np.ndarray) -> PrefilledWindow:
        return PrefilledWindow(pixels_SSC, hidden_SS)

    def build_layouts(self, batch: WindowBatch) -> list[Layout]:
        all_see = Dense.from_size(batch.rows, self.codec.num_tokens, batch.pixels_RCSS.device)
        if not self.config.attention:
            return [all_see] * self.config.blocks
        return [
            all_see.weighed(bias_RHLL=bias().expand(batch.rows, -1, -1, -1)) for bias in self.biases
        ]

    def encode(self, batch: WindowBatch) -> Tensor:
        return self.codec.encode(batch)

    def decode(self, x_ND: Tensor, batch: WindowBatch) -> Tensor:
        return torch.cat(self.codec.decode(x_ND, batch), 1)

    @classmethod
    def build_example(cls, seed: int) -> tuple[Architecture, list[PrefilledWindow]]:
        rng = np.random.default_rng(seed)
        config = cls.config_type.model_validate(
            {
                **{"size": 8, "patch": 2, "dim": 12, "heads": 2, "head_dim": 4, "memories": 10},
                **{"blocks": 2, "steps": 3, "stem": 4, "features": 6},
            }
        )
        windows = [
            PrefilledWindow(rng.random((8, 8, 3), np.float32), rng.random((8, 8)) < share)
            for share in (0.5, 0.2, 1.0)
        ]
        with temporary_seed(seed):
            network = cls(cast(WindowConfig, config))
            for head in (network.codec.head2, network.codec.doubt):  # zero before training
                nn.init.normal_(head.weight, std=0.1)
        return network, windows
