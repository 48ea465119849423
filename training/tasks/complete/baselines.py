"""What a user would pick instead to complete an image."""

from __future__ import annotations

from collections.abc import Callable
from typing import final

import cv2
import numpy as np
import torch
from torch import Tensor, nn

from models.architectures.et import ETImage, ETImageConfig
from models.base import temporary_seed
from models.inputs.patches import PatchBatch, PatchCodec, patch_mask_to_pixels
from models.nn.transformer import FeedForward, MultiHeadAttention
from training.tasks.complete.evaluate import CompletionFunction
from training.trainer import count_parameters, find_nearest_size

_RADIUS = 3  # pixels around a point that Telea's method reads, as in OpenCV's examples


@final
class _Layer(nn.Module):
    """Attention and a feed-forward four times as wide, each on what is normed and added to it."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.attention_norm, self.feedforward_norm = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attention = MultiHeadAttention(dim, heads, dim // heads, dropout=0.0)
        self.feedforward = FeedForward(dim, 4 * dim, dropout=0.0)

    def forward(self, x_RLD: Tensor) -> Tensor:
        g_RLD = self.attention_norm(x_RLD)
        x_RLD = x_RLD + self.attention(g_RLD, g_RLD)
        return x_RLD + self.feedforward(self.feedforward_norm(x_RLD))


@final
class ViT(nn.Module):
    """A plain pre-norm transformer between the same encoder, MASK, positions and decoder as ET's.

    He et al. 2022 without leaving MASK out of an encoder of its own: each of the `layers` has
    weights of its own, a step of ET each would share them.
    """

    def __init__(
        self,
        size: int,
        patch: int,
        channels: int,
        dim: int,
        heads: int,
        layers: int,
        contrast: float = 0.0,
    ) -> None:
        super().__init__()
        self.codec = PatchCodec(size, patch, channels, dim, contrast)
        self.layers = nn.Sequential(*(_Layer(dim, heads) for _ in range(layers)))

    def forward(self, batch: PatchBatch) -> Tensor:
        """Pixels (R, C, S, S)."""
        x_RLD = self.codec.encode(batch).unflatten(0, (batch.rows, -1))
        return self.codec.decode(self.layers(x_RLD).flatten(0, 1), batch)

    @classmethod
    def from_et_config(cls, config: ETImageConfig, layers: int = 4, heads: int = 4) -> ViT:
        """The width at which it has most nearly as many parameters as ET has."""
        shape = config.size, config.patch, config.channels

        with torch.device("meta"):
            wanted = count_parameters(ETImage(config))
        network = find_nearest_size(
            lambda dim: cls(*shape, dim, heads, layers, config.contrast),
            wanted,
            range(heads, 2048, heads),
        )
        assert isinstance(network, ViT)
        return network

    @classmethod
    def from_data(cls, config: ETImageConfig, images: np.ndarray, seed: int) -> ViT:
        """A fresh network whose channels are standardised on `images`."""
        with temporary_seed(seed):
            network = cls.from_et_config(config)
        network.codec.fit(images)
        return network


def mean_color(patch: int) -> CompletionFunction:
    """The mean of the known pixels of an image, everywhere in its holes; grey if none is known."""

    def complete(images: np.ndarray, occluded: np.ndarray) -> np.ndarray:
        hidden = patch_mask_to_pixels(occluded, patch)[..., None]
        known = np.maximum((~hidden).sum((1, 2), keepdims=True), 1)
        mean = np.where(~hidden, images, 0).sum((1, 2), keepdims=True) / known
        mean = np.where(hidden.all((1, 2), keepdims=True), 127.5, mean)
        return np.where(hidden, np.rint(mean).astype(np.uint8), images)

    return complete


def _inpainting(method: int) -> Callable[[int], CompletionFunction]:
    def completer(patch: int) -> CompletionFunction:
        blank = mean_color(patch)

        def complete(images: np.ndarray, occluded: np.ndarray) -> np.ndarray:
            # OpenCV's gradients read what is under the mask: left there, the answer would leak.
            masks, blanked = patch_mask_to_pixels(occluded, patch), blank(images, occluded)
            filled = [
                cv2.inpaint(np.ascontiguousarray(image), mask.astype(np.uint8), _RADIUS, method)
                for image, mask in zip(blanked, masks, strict=True)
            ]
            found = np.stack(filled).reshape(images.shape).astype(np.uint8)
            return np.where(masks[..., None], found, images)

        return complete

    return completer


UNTRAINED_BASELINES: dict[str, Callable[[int], CompletionFunction]] = {
    "telea": _inpainting(cv2.INPAINT_TELEA),
    "navier-stokes": _inpainting(cv2.INPAINT_NS),
    "mean-colour": mean_color,
}
"""Telea 2004 and Bertalmio et al. 2001 as in OpenCV, and the mean colour; by side of a patch."""
