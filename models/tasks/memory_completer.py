"""Complete images from stored ones of the same shape, without any training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self, final

import numpy as np
import torch
from torch import Tensor, nn

from models.base import Architecture, Block
from models.dynamics.motion import Descent
from models.energies import ClampedMemory
from models.inputs.windows import PrefilledWindow
from models.layouts import Layout, PatternLayout
from models.memories import Memory
from models.tasks.completer import CompletionConfig, CompletionNetwork

MAX_BETA = 1e4
"""Most that a request may ask for; so sharp, what is stored comes back as it was."""
NEAREST = 8.0
"""Default beta times the squared distance to the nearest stored image, over the known pixels. Of
2, 3, 4, 6, 8, 12 and 16 the best or within 0.07 dB of it on training digits of MNIST with a half
hidden (`python -m benchmarks.recall --choose`)."""


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
    beta depends on what is known of them unless a request sets it.

    Outputs are pixels (R, C, H, W), those known as they were.

    Args:
        memory: of images (H, W) or (H, W, C).
        pixels_RHWC: the images, float32 from 0 to 1.
        hidden_HW: which pixels are to be filled.
    """

    def __init__(self, memory: Memory, pixels_RHWC: np.ndarray, hidden_HW: np.ndarray) -> None:
        super().__init__()
        rows, _, _, channels = pixels_RHWC.shape
        hidden_D = np.repeat(hidden_HW.ravel(), channels)
        score_RK = memory.score_parts(pixels_RHWC.reshape(rows, -1), ~hidden_D)
        beta = min(NEAREST / max(-2 * float(score_RK.max()), 1e-9), MAX_BETA)
        self.config = MemoryConfig.model_validate(
            {
                **{"channels": channels, "dim": int(hidden_D.sum()), "heads": 1, "head_dim": 1},
                **{"memories": memory.num_patterns, "steps": 1, "step_size": 1.0},
                **{"beta": beta, "learn_beta": False},
            }
        )
        self.memory = memory
        self.energy = ClampedMemory(memory.norms_K, score_RK, torch.from_numpy(hidden_D))
        self.blocks = nn.ModuleList([self.build_block()])

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
        filled_RHWC[:, batch.hidden_HW] = x_ND.view(batch.rows, -1, self.config.channels)
        return filled_RHWC.permute(0, 3, 1, 2)

    @classmethod
    def build_example(cls, seed: int) -> tuple[Architecture, list[PrefilledWindow]]:
        rng = np.random.default_rng(seed)
        memory = Memory.from_items("images", rng.random((6, 4, 5, 3), np.float32))
        pixels, hidden = rng.random((3, 4, 5, 3), np.float32), rng.random((4, 5)) < 0.5
        return cls(memory, pixels, hidden), [PrefilledWindow(one, hidden) for one in pixels]
