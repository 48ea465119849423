"""Pictures, with or without a question about them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class Picture:
    """`pixels` (C, H, W) in [0, 1], and a `question` (Q,) where the network answers one."""

    pixels: np.ndarray
    question: np.ndarray | None = None


@final
class PictureBatch:
    """R pictures of one size, each of them a row: its patches and, last, its K questions.

    No dataclass: Lightning's mixed precision would round the pixels.
    """

    def __init__(self, pixels_RCHW: Tensor, question_RKQ: Tensor | None, tokens: int) -> None:
        self.pixels_RCHW, self.question_RKQ, self.tokens = pixels_RCHW, question_RKQ, tokens

    @property
    def rows(self) -> int:
        return len(self.pixels_RCHW)

    @property
    def row_of_N(self) -> Tensor:
        return self.row_of_outputs.repeat_interleave(self.tokens)

    @property
    def row_of_outputs(self) -> Tensor:
        return torch.arange(self.rows, device=self.pixels_RCHW.device)

    def to(self, device: torch.device | str) -> PictureBatch:
        question_RKQ = None if self.question_RKQ is None else self.question_RKQ.to(device)
        return PictureBatch(self.pixels_RCHW.to(device), question_RKQ, self.tokens)


def collate_pictures(pictures: Sequence[Picture], tokens: int) -> PictureBatch:
    """Pictures that `AiT.check` let pass, as one batch; K is 1."""
    pixels_RCHW = torch.from_numpy(np.stack([picture.pixels for picture in pictures]))
    questions = [picture.question for picture in pictures if picture.question is not None]
    question_RKQ = torch.from_numpy(np.stack(questions))[:, None] if questions else None
    return PictureBatch(pixels_RCHW, question_RKQ, tokens)
