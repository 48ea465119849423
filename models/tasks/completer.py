"""What completers of windows have in common: the server fills photographs by any of them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal, Self, cast

import numpy as np
import torch
from pydantic import Field, PositiveInt, model_validator
from torch import Tensor, nn

from models.base import RUN_ALONE, Architecture, Block, Config, DynamicsParams, Output, StepControl
from models.dynamics import Solution, TracePoint


class CompletionConfig(Config):
    """Common part of the configurations of completers."""

    size: PositiveInt = Field(32, description="pixels of a side of a window, a multiple of 4")
    patch: PositiveInt = Field(4, description="pixels of a side of a patch")
    channels: Literal[1, 3] = 3

    @model_validator(mode="after")
    def _whole_patches_and_quarters(self) -> Self:
        if self.size % self.patch:
            raise ValueError("patch must divide size")
        if self.size % 4:  # cells and depths are quarters of a window
            raise ValueError("size must be a multiple of 4")
        return self


class CompletionNetwork(Architecture):
    """A network that completes square windows of one size; a row is a window.

    Attributes:
        has_uncertainty: whether outputs have one more channel than pixels: the logarithm of the
            absolute error to expect.
    """

    task = "completion"
    has_uncertainty: bool = False
    config: CompletionConfig  # pyright: ignore[reportIncompatibleVariableOverride]
    blocks: nn.ModuleList

    @property
    def num_tokens(self) -> int:
        """Tokens of a window."""
        return (self.config.size // self.config.patch) ** 2

    @abstractmethod
    def make_item(self, pixels_SSC: np.ndarray, hidden_SS: np.ndarray) -> Any:
        """What `pack` takes for a window: float32 from 0 to 1 with hidden pixels prefilled, and
        which those are."""

    def pack_windows(self, pixels_RSSC: np.ndarray, hidden_RSS: np.ndarray) -> Any:
        """A batch of windows as of `make_item`."""
        return self.pack(list(map(self.make_item, pixels_RSSC, hidden_RSS)))

    @abstractmethod
    def encode(self, batch: Any) -> Tensor:
        """States x(1) (N, D) of the tokens of a batch."""

    @abstractmethod
    def decode(self, x_ND: Tensor, batch: Any) -> Tensor:
        """Outputs (R, C or C + 1, S, S) of states that `batch` was encoded to and has become."""

    def blocks_in_order(self) -> list[Block]:
        return [cast(Block, block) for block in self.blocks]

    def number_blocks(self) -> None:
        """Give each block noise of its own."""
        for stream, block in enumerate(self.blocks_in_order()):
            block.noise_stream = stream

    def forward(self, batch: Any, params: Sequence[DynamicsParams] | None = None) -> Tensor:
        """Outputs as of `decode`."""
        x_ND = self.encode(batch)
        for block, layout in zip(self.blocks_in_order(), self.build_layouts(batch), strict=True):
            x_ND = block.relax(x_ND, layout, params)
        return self.decode(x_ND, batch)

    @torch.no_grad()
    def infer(
        self,
        batch: Any,
        params: Sequence[DynamicsParams],
        control: StepControl = RUN_ALONE,
        watch: Callable[[int, Tensor, TracePoint], None] | None = None,
    ) -> Output:
        """Outputs as of `decode`; `watch` sees the state of each block at each of its moments."""
        batch = batch.to(self.device)
        x_ND = self.encode(batch)
        solutions: list[Solution] = []
        for block, layout in zip(self.blocks_in_order(), self.build_layouts(batch), strict=True):
            seen = None if watch is None else partial(watch, len(solutions))
            solutions.append(block.solve(x_ND, layout, params, control, seen))
            x_ND = solutions[-1].x_ND
        return Output(self.decode(x_ND, batch), solutions)

    def read_outputs(self, outputs: Tensor) -> tuple[np.ndarray, np.ndarray | None]:
        """Pixels (R, S, S, C) of outputs, and the absolute error to expect (R, S, S), None where
        the network does not tell."""
        values = outputs.permute(0, 2, 3, 1).float().cpu().numpy()
        if not self.has_uncertainty:
            return values, None
        return values[..., :-1], np.exp(np.clip(values[..., -1], -20, 0))
