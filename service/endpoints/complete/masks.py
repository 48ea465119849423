"""Which pixels are to be filled."""

from __future__ import annotations

from typing import Literal

import numpy as np

from service.imaging.image import ImageData, ImageError

MaskMode = Literal["white_fill", "black_fill", "alpha"]
THRESHOLD = 128  # of 255: from here on it is white, or opaque


def unknown_of(mode: MaskMode, mask: ImageData) -> np.ndarray:
    """The pixels that `mask` wants filled, bool (H, W): the white ones, the black ones, or the
    transparent ones. What lies between is whatever it is nearer to.

    Raises:
        PictureFault: it has no alpha where that counts, or it leaves nothing to fill or to go by.
    """
    if mode == "alpha":
        if mask.alpha is None:
            rule = "has no transparency to tell what to fill; send a mask, or one of another mode"
            raise ImageError("no_alpha", rule)
        unknown = mask.alpha < THRESHOLD
    else:
        unknown = (mask.to_grayscale() >= THRESHOLD) == (mode == "white_fill")
    if not unknown.any():
        raise ImageError("nothing_to_fill", f"{mode} marks no pixel")
    if unknown.all():
        raise ImageError("nothing_known", f"{mode} marks every pixel; leave some that are known")
    return unknown
