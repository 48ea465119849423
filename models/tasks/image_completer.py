"""Cut images into patches, relax them, read the pixels of the occluded ones off."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal, Self, cast

import numpy as np
import torch
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt, model_validator
from torch import Tensor, nn

from models.base import (
    RUN_ALONE,
    Architecture,
    Block,
    Config,
    DynamicsParams,
    Output,
    StepControl,
    temporary_seed,
)
from models.dynamics import Solution, TracePoint
from models.inputs.patches import MaskedImage, PatchBatch, PatchCodec, collate_masked_images
from models.layouts import Dense, Layout


class ImageConfig(Config):
    """Configuration of an image completer; `steps` and `step_size` as in the paper's table 4."""

    size: PositiveInt = Field(
        32, description="pixels of a side, a multiple of 4; images are square"
    )
    patch: PositiveInt = Field(4, description="pixels of a side of a patch")
    channels: Literal[1, 3] = 3
    steps: PositiveInt = Field(12, description="T, steps of each block")
    step_size: PositiveFloat = 0.1
    contrast: NonNegativeFloat = Field(
        0.0,
        description="an image whose known pixels deviate by less than this, in units of the "
        "training images' deviation, is standardised by itself; 0: none is",
    )
    self_attention: bool = Field(False, description="eq. 13: a patch sees itself too")

    @model_validator(mode="after")
    def _whole_patches_and_quarters(self) -> Self:
        if self.size % self.patch:
            raise ValueError("patch must divide size")
        if self.size % 4:  # a window fills its middle half, a quarter on each side tells it what
            raise ValueError("size must be a multiple of 4")
        return self


class ImageCompleter(Architecture):
    """MASK in place of what is occluded, T steps of one block, a LayerNorm and an affine decoder.

    Energy Transformer sections 2 and 3, appendix B and algorithm 1; a row is an image. Every patch
    sees all others, and itself only with `self_attention`: eq. 3 says B != C, eq. 13 does not, and
    the paper's own ablation (table 14) is slightly better without. There is no CLS token, which
    the released code has and nothing reads. Outputs are the pixels of all patches, (R, C, S, S):
    `models.inputs.patches.composite` puts those that were known back.
    """

    task = "completion"
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
        for stream, block in enumerate(self.blocks_in_order()):
            block.noise_stream = stream

    def pack(self, images: Sequence[MaskedImage]) -> PatchBatch:
        return collate_masked_images(images, self.config.patch)

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

    def blocks_in_order(self) -> list[Block]:
        return [cast(Block, block) for block in self.blocks]

    def build_layouts(self, batch: PatchBatch) -> list[Layout]:
        return [Dense(self.mask_LL.expand(batch.rows, -1, -1))] * self.config.blocks

    def forward(self, batch: PatchBatch, params: Sequence[DynamicsParams] | None = None) -> Tensor:
        """Pixels (R, C, S, S)."""
        rows = params or [DynamicsParams()] * batch.rows
        x_ND = self.codec.encode(batch)
        for block, layout in zip(self.blocks_in_order(), self.build_layouts(batch), strict=True):
            x_ND = block.relax(x_ND, layout, rows)
        return self.codec.decode(x_ND, batch)

    @torch.no_grad()
    def infer(
        self,
        batch: PatchBatch,
        params: Sequence[DynamicsParams],
        control: StepControl = RUN_ALONE,
        watch: Callable[[int, Tensor, TracePoint], None] | None = None,
    ) -> Output:
        """Pixels as of `forward`; `watch` sees the state of each block at each of its moments,
        which `codec.decode` makes pixels of."""
        batch = batch.to(self.device)
        x_ND = self.codec.encode(batch)
        solutions: list[Solution] = []
        for block, layout in zip(self.blocks_in_order(), self.build_layouts(batch), strict=True):
            seen = None if watch is None else partial(watch, len(solutions))
            solutions.append(block.solve(x_ND, layout, params, control, seen))
            x_ND = solutions[-1].x_ND
        return Output(self.codec.decode(x_ND, batch), solutions)

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
