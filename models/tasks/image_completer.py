"""Cut images into patches, relax them, read the pixels of the occluded ones off."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np
import torch
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor, nn

from models.base import Architecture, temporary_seed
from models.inputs.patches import (
    MaskedImage,
    PatchBatch,
    PatchCodec,
    collate_masked_images,
    measure_hidden_shares,
)
from models.layouts import Dense, Layout
from models.tasks.completer import CompletionConfig, CompletionNetwork


class ImageConfig(CompletionConfig):
    """Configuration of an image completer; `steps` and `step_size` as in the paper's table 4."""

    steps: PositiveInt = Field(12, description="T, steps of each block")
    step_size: PositiveFloat = 0.1
    contrast: NonNegativeFloat = Field(
        0.0,
        description="an image whose known pixels deviate by less than this, in units of the "
        "training images' deviation, is standardised by itself; 0: none is",
    )
    self_attention: bool = Field(False, description="eq. 13: a patch sees itself too")


class ImageCompleter(CompletionNetwork):
    """MASK in place of what is occluded, T steps of one block, a LayerNorm and an affine decoder.

    Energy Transformer sections 2 and 3, appendix B and algorithm 1; a row is an image. Every patch
    sees all others, and itself only with `self_attention`: eq. 3 says B != C, eq. 13 does not, and
    the paper's own ablation (table 14) is slightly better without. There is no CLS token, which
    the released code has and nothing reads. Outputs are the pixels of all patches, (R, C, S, S):
    `models.inputs.patches.composite` puts those that were known back.
    """

    config: ImageConfig  # pyright: ignore[reportIncompatibleVariableOverride]
    mask_LL: Tensor

    def __init__(self, config: ImageConfig) -> None:
        super().__init__()
        c = self.config = config  # pyright: ignore[reportIncompatibleVariableOverride]
        self.codec = PatchCodec(c.size, c.patch, c.channels, c.dim, c.contrast)
        mask_LL = torch.ones(self.codec.num_patches, self.codec.num_patches, dtype=torch.bool)
        if not c.self_attention:
            mask_LL.fill_diagonal_(False)
        self.register_buffer("mask_LL", mask_LL, persistent=False)
        self.blocks = nn.ModuleList(self.build_block() for _ in range(c.blocks))
        self.number_blocks()

    def pack(self, images: Sequence[MaskedImage]) -> PatchBatch:
        return collate_masked_images(images, self.config.patch)

    def make_item(self, pixels_SSC: np.ndarray, hidden_SS: np.ndarray) -> MaskedImage:
        """MASK takes the place of each patch with a hidden pixel; but where holes are so scattered
        that hardly a patch is whole, only of those that are hidden at least by half."""
        pixels = np.rint(255 * pixels_SSC).astype(np.uint8)
        shares = measure_hidden_shares(hidden_SS, self.config.patch)
        is_scattered = (shares == 0).mean() < (1 - shares.mean()) / 2
        return MaskedImage(pixels, shares >= 0.5 if is_scattered else shares > 0)

    def check(self, image: MaskedImage) -> None:
        """Refuse an image that this network does not take.

        Raises:
            ValueError: saying what it takes.
        """
        c = self.config
        along, shape = c.size // c.patch, (c.size, c.size, c.channels)
        if image.pixels.shape != shape or image.pixels.dtype != np.uint8:
            raise ValueError(f"pixels must be uint8 of shape {shape}")
        if image.occluded.shape != (along, along) or image.occluded.dtype != np.bool_:
            raise ValueError(f"occluded must be bool of shape {(along, along)}")

    def build_layouts(self, batch: PatchBatch) -> list[Layout]:
        return [Dense(self.mask_LL.expand(batch.rows, -1, -1))] * self.config.blocks

    def encode(self, batch: PatchBatch) -> Tensor:
        return self.codec.encode(batch)

    def decode(self, x_ND: Tensor, batch: PatchBatch) -> Tensor:
        """Pixels (R, C, S, S)."""
        return self.codec.decode(x_ND, batch)

    @classmethod
    def build_example(cls, seed: int) -> tuple[Architecture, list[MaskedImage]]:
        rng = np.random.default_rng(seed)
        config = cls.config_type.model_validate(
            {
                "size": 8,
                "patch": 2,
                "dim": 12,
                "heads": 2,
                "head_dim": 4,
                "memories": 10,
                "blocks": 2,
                "steps": 3,
                "contrast": 1.5,
            }
        )
        images = [
            MaskedImage(rng.integers(0, 256, (8, 8, 3), np.uint8), rng.random((4, 4)) < share)
            for share in (0.5, 0.0, 1.0)  # nothing occluded, and everything
        ]
        pixels = np.stack([image.pixels for image in images])
        return cls.from_data(cast(ImageConfig, config), pixels, seed), images

    @classmethod
    def from_data(cls, config: ImageConfig, images: np.ndarray, seed: int) -> ImageCompleter:
        """A fresh network whose channels are standardised on `images`, uint8 (n, S, S, C)."""
        with temporary_seed(seed):
            network = cls(config)
        network.codec.fit(images)
        return network
