"""A decoded picture, and what can be wrong with one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from service.errors import make_problem


@dataclass(frozen=True)
class ImageData:
    """Pixels (H, W, C) as they were sent, C being 1 (grey) or 3 (RGB), turned upright.

    uint8, or uint16 where grey of 16 bits was sent. `alpha` is uint8 (H, W), 0 transparent;
    `profile` the ICC profile that says what the numbers mean.
    """

    pixels: np.ndarray
    alpha: np.ndarray | None = None
    profile: bytes | None = None

    @property
    def shape(self) -> tuple[int, int]:
        return self.pixels.shape[0], self.pixels.shape[1]

    def to_array(self) -> np.ndarray:
        """All channels, as Pillow takes them: (H, W) or (H, W, 2 to 4)."""
        planes = self.pixels if self.alpha is None else np.dstack([self.pixels, self.alpha])
        return planes[:, :, 0] if planes.shape[2] == 1 else planes

    def to_grayscale(self) -> np.ndarray:
        """Luma (ITU-R 601) as uint8 (H, W)."""
        if self.pixels.dtype == np.uint16:
            return (self.pixels[:, :, 0] >> 8).astype(np.uint8)
        if self.pixels.shape[2] == 1:
            return self.pixels[:, :, 0]
        red, green, blue = (self.pixels[:, :, i].astype(np.uint16) for i in range(3))
        return ((77 * red + 150 * green + 29 * blue) >> 8).astype(np.uint8)


class ImageError(Exception):
    """A file that is no picture, or not one that is read; `code` and `rule` go into a problem."""

    def __init__(self, code: str, detail: str, kind: str = "invalid-image") -> None:
        super().__init__(code)
        self.code, self.rule, self.kind = code, detail, kind


@contextmanager
def image_errors_at(where: str) -> Iterator[None]:
    """What is wrong with the picture read within is a problem at `where`.

    Raises:
        Problem: `invalid-image` or `unsupported-image`.
    """
    try:
        yield
    except ImageError as fault:
        raise make_problem(fault.kind, where, fault.code, fault.rule) from None
