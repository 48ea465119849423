"""Complete images from stored ones of the same shape, without any training."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Self, final

import numpy as np
import torch
from torch import Tensor, nn

from models.base import RUN_ALONE, Architecture, Block, DynamicsParams, Output, StepControl
from models.dynamics import TracePoint
from models.dynamics.motion import Descent
from models.energies import ClampedMemory
from models.inputs.windows import PrefilledWindow
from models.layouts import Layout, PatternLayout
from models.memories import Memory
from models.tasks.completer import CompletionConfig, CompletionNetwork

MAX_DEFAULT_BETA = 1e4
"""Maximum of the default beta: so sharp, what is stored comes back as it was. A request may ask for
as much by `beta`, and for more by `beta_scale`, which multiplies the default."""
NEAREST = 8.0
"""Default beta times the squared distance to the nearest stored image, over the known pixels. Of
2, 3, 4, 6, 8, 12 and 16 the best or within 0.07 dB of it on training digits of MNIST with a half
hidden (`python -m benchmarks.recall --choose`)."""
LUMA_C = np.array([0.299, 0.587, 0.114], np.float32)
"""Weights of red, green and blue in the grey value of a pixel (ITU-R BT.601)."""


class MemoryConfig(CompletionConfig):
    """Configuration of a completer from stored images; a window is the whole image, of any shape,
    so `size` and `patch` mean nothing."""

    @property
    def ignored_params(self) -> frozenset[str]:
        return frozenset({"resonance"})


@final
class ImageRows:
    """R images (R, H, W, C) of which the same pixels are hidden, each one token."""

    def __init__(self, pixels_RHWC: Tensor, hidden_HW: Tensor) -> None:
        self.pixels_RHWC, self.hidden_HW = pixels_RHWC, hidden_HW

    @property
    def rows(self) -> int:
        return len(self.pixels_RHWC)

    @property
    def row_of_N(self) -> Tensor:
        return torch.arange(self.rows)

    @property
    def row_of_outputs(self) -> Tensor:
        return self.row_of_N

    @property
    def hidden_share_R(self) -> Tensor:
        return self.hidden_HW.double().mean().expand(self.rows)

    def to(self, device: torch.device | str) -> Self:
        return self  # memories lie on the CPU


@final
class MemoryCompleter(CompletionNetwork):
    """Retrieval on `ClampedMemory`: it fills R images of one shape and one hole, and no others, for
    the default beta of each depends on what is known of it.

    Outputs are pixels (R, C, H, W), those known as they were. Grey images are compared with the
    luma of stored RGB images, and filled with it. `compare` comes first: it takes as long as
    several steps, so it is not done here, but where the computation can be cancelled.

    Args:
        memory: of images (H, W) or (H, W, 3).
        pixels_RHWC: the images, float32 from 0 to 1; C is 1, or 3 for a memory of RGB images.
        hidden_HW: which pixels are to be filled.
    """

    def __init__(self, memory: Memory, pixels_RHWC: np.ndarray, hidden_HW: np.ndarray) -> None:
        super().__init__()
        channels, stored_channels = pixels_RHWC.shape[-1], memory.dim // hidden_HW.size
        hidden_D = np.repeat(hidden_HW.ravel(), stored_channels)
        self.config = MemoryConfig.model_validate(
            {
                **{"channels": channels, "dim": int(hidden_D.sum()), "heads": 1, "head_dim": 1},
                **{"memories": memory.num_patterns, "steps": 1, "step_size": 1.0},
                **{"beta": 1.0, "learn_beta": False},
            }
        )
        self.memory, self.is_luma = memory, channels < stored_channels
        self.pixels_RHWC, self.hidden_HW = pixels_RHWC, hidden_HW
        score_RK = torch.empty(len(pixels_RHWC), 0)
        self.energy = ClampedMemory(memory.norms_K, score_RK, torch.from_numpy(hidden_D))
        self.blocks = nn.ModuleList([self.build_block()])

    @property
    def num_images(self) -> int:
        """R."""
        return len(self.pixels_RHWC)

    @property
    def is_compared(self) -> bool:
        """Whether `compare` has been called."""
        return self.energy.score_RK.shape[1] > 0

    def compare(self, check: Callable[[], None] = lambda: None) -> Self:
        """Compare the images with those stored, unless that has been done.

        Args:
            check: called between parts of the memory; what it raises ends the comparison.
        """
        if not self.is_compared:
            rows, channels = len(self.pixels_RHWC), self.config.channels
            self.energy.score_RK = self.memory.score_parts(
                self.pixels_RHWC.reshape(rows, -1),
                ~np.repeat(self.hidden_HW.ravel(), channels),
                LUMA_C if self.is_luma else None,
                check,
            )
        return self

    @property
    def default_beta_R(self) -> list[float]:
        """Beta of each image where a request sets none; of it alone, whatever the others are."""
        distance_R = -2 * self.energy.score_RK.max(1).values
        return [min(NEAREST / max(d, 1e-9), MAX_DEFAULT_BETA) for d in distance_R.tolist()]

    def with_default_beta(self, params: Sequence[DynamicsParams]) -> list[DynamicsParams]:
        """`params` of all rows, with the default beta of each where none is set."""
        return [
            row if row.beta is not None else replace(row, beta=beta * row.beta_scale, beta_scale=1)
            for row, beta in zip(params, self.default_beta_R, strict=True)
        ]

    def forward(self, batch: ImageRows, params: Sequence[DynamicsParams] | None = None) -> Tensor:
        given = [DynamicsParams()] * batch.rows if params is None else params
        return super().forward(batch, self.with_default_beta(given))

    def infer(
        self,
        batch: ImageRows,
        params: Sequence[DynamicsParams],
        control: StepControl = RUN_ALONE,
        watch: Callable[[int, Tensor, TracePoint], None] | None = None,
    ) -> Output:
        return super().infer(batch, self.with_default_beta(params), control, watch)

    @property
    def num_tokens(self) -> int:
        return 1

    def build_block(self) -> Block:
        return Block(self.energy, Descent(), nn.Identity(), self.config)

    def make_item(self, pixels_SSC: np.ndarray, hidden_SS: np.ndarray) -> PrefilledWindow:
        return PrefilledWindow(pixels_SSC, hidden_SS)

    def pack(self, windows: Sequence[PrefilledWindow]) -> ImageRows:
        pixels = torch.from_numpy(np.stack([window.pixels for window in windows]))
        return ImageRows(pixels, torch.tensor(windows[0].hidden))

    def build_layouts(self, batch: ImageRows) -> list[Layout]:
        return [PatternLayout(self.memory.patterns_KD[None], batch.rows, 1)]

    def encode(self, batch: ImageRows) -> Tensor:
        """The mean of all stored images where pixels are hidden (R, D)."""
        mean_D = self.memory.norms_K @ self.memory.patterns_KD / self.memory.num_patterns
        return mean_D[self.energy.hidden_D].repeat(batch.rows, 1)

    def decode(self, x_ND: Tensor, batch: ImageRows) -> Tensor:
        filled_RHWC = batch.pixels_RHWC.clone()
        if self.is_luma:
            x_ND = x_ND.view(batch.rows, -1, len(LUMA_C)) @ torch.from_numpy(LUMA_C)
        filled_RHWC[:, batch.hidden_HW] = x_ND.view(batch.rows, -1, self.config.channels)
        return filled_RHWC.permute(0, 3, 1, 2)

    @classmethod
    def build_example(cls, seed: int) -> tuple[Architecture, list[PrefilledWindow]]:
        rng = np.random.default_rng(seed)
        memory = Memory.from_items("images", rng.random((6, 4, 5, 3), np.float32))
        pixels, hidden = rng.random((3, 4, 5, 3), np.float32), rng.random((4, 5)) < 0.5
        network = cls(memory, pixels, hidden).compare()
        return network, [PrefilledWindow(one, hidden) for one in pixels]
