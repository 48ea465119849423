"""Decoded images, and the error of an image that cannot be read."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class ImageData:
    """Upright pixels (H, W, C) with C = 1 (grayscale) or 3 (RGB).

    uint8, or uint16 for 16-bit grayscale. `alpha` is uint8 (H, W), 0 is transparent; `profile` is
    the ICC color profile.
    """

    pixels: np.ndarray
    alpha: np.ndarray | None = None
    profile: bytes | None = None

    @property
    def shape(self) -> tuple[int, int]:
        return self.pixels.shape[0], self.pixels.shape[1]

    def to_array(self) -> np.ndarray:
        """Return all channels as Pillow expects them: (H, W) or (H, W, 2 to 4)."""
        planes = self.pixels if self.alpha is None else np.dstack([self.pixels, self.alpha])
        return planes[:, :, 0] if planes.shape[2] == 1 else planes

    def to_grayscale(self) -> np.ndarray:
        """Return the luma (ITU-R BT.601) as uint8 (H, W)."""
        if self.pixels.dtype == np.uint16:
            return (self.pixels[:, :, 0] >> 8).astype(np.uint8)
        if self.pixels.shape[2] == 1:
            return self.pixels[:, :, 0]
        red, green, blue = (self.pixels[:, :, i].astype(np.uint16) for i in range(3))
        return ((77 * red + 150 * green + 29 * blue) >> 8).astype(np.uint8)

    def to_rgb(self) -> np.ndarray:
        """Return uint8 (H, W, 3), what is transparent on black."""
        pixels = self.pixels
        if pixels.dtype == np.uint16:
            pixels = (pixels >> 8).astype(np.uint8)
        if self.alpha is not None:
            pixels = (pixels * (self.alpha[:, :, None] / 255)).round().astype(np.uint8)
        return np.ascontiguousarray(np.broadcast_to(pixels, (*pixels.shape[:2], 3)))


class ImageError(Exception):
    """An image that cannot be read; `code`, `rule` and `kind` are those of the problem."""

    def __init__(self, code: str, detail: str, kind: str = "invalid-image") -> None:
        super().__init__(code)
        self.code, self.rule, self.kind = code, detail, kind
