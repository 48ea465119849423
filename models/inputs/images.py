"""Images to classify, or to answer a question about."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class ImageInput:
    """`pixels` (C, H, W) in [0, 1], and an encoded `question` (Q,) if the network answers one."""

    pixels: np.ndarray
    question: np.ndarray | None = None


@final
class ImageBatch:
    """R images of one size. The tokens of a row are its patches, then its K questions.

    Not a dataclass: Lightning's mixed precision would round the pixels.
    """

    def __init__(self, pixels_RCHW: Tensor, question_RKQ: Tensor | None, num_tokens: int) -> None:
        self.pixels_RCHW, self.question_RKQ = pixels_RCHW, question_RKQ
        self.num_tokens = num_tokens

    @property
    def rows(self) -> int:
        return len(self.pixels_RCHW)

    @property
    def row_of_N(self) -> Tensor:
        return self.row_of_outputs.repeat_interleave(self.num_tokens)

    @property
    def row_of_outputs(self) -> Tensor:
        return torch.arange(self.rows, device=self.pixels_RCHW.device)

    def to(self, device: torch.device | str) -> ImageBatch:
        question_RKQ = None if self.question_RKQ is None else self.question_RKQ.to(device)
        return ImageBatch(self.pixels_RCHW.to(device), question_RKQ, self.num_tokens)


def collate_images(images: Sequence[ImageInput], num_tokens: int) -> ImageBatch:
    """Pack images that passed `AiT.check` into one batch, with K = 1 if they have questions.

    Args:
        num_tokens: tokens of each image, its question included.
    """
    pixels_RCHW = torch.from_numpy(np.stack([image.pixels for image in images]))
    questions = [image.question for image in images if image.question is not None]
    question_RKQ = torch.from_numpy(np.stack(questions))[:, None] if questions else None
    return ImageBatch(pixels_RCHW, question_RKQ, num_tokens)
