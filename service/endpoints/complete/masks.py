"""Find the pixels to fill."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from models.inputs.image_files.data import ImageData, ImageError

MaskMode = Literal["white_fill", "black_fill", "alpha", "soft"]
_WHITE = 255
_LEAST_SHARE = 4 / 255  # of a soft mask; JPEG and WebP leave noise of less in what is black
THRESHOLD = 128  # of 255: this value and above are white, or opaque


@dataclass(frozen=True)
class Hole:
    """Pixels to fill, bool (H, W), and of a soft mask how much each is filled: from 0 to 1 (n,), in
    row-major order."""

    hidden: np.ndarray
    weights: np.ndarray | None = None


def find_hole(mode: MaskMode, mask: ImageData) -> Hole:
    """What `mask` marks.

    Raises:
        ImageError: as of `find_hidden`.
    """
    if mode != "soft":
        return Hole(find_hidden(mode, mask))
    if mask.pixels.dtype == np.uint8:
        gray = mask.to_grayscale()
        share = gray.astype(np.float32) / (1 if gray.max() == 1 else _WHITE)
    else:  # 16-bit files are grey
        share = mask.pixels[:, :, 0] / np.float32(np.iinfo(mask.pixels.dtype).max)
    if mask.alpha is not None:
        share = share * (mask.alpha / np.float32(_WHITE))
    hidden = share >= _LEAST_SHARE
    _require_some(mode, hidden, "")
    return Hole(hidden, share[hidden])


def find_hidden(mode: MaskMode, mask: ImageData) -> np.ndarray:
    """Return the pixels to fill, bool (H, W): the white, black or transparent ones of `mask`.

    Transparent pixels of a mask mark nothing in the modes `white_fill` and `black_fill`. A mask
    whose largest value is 1 is read as one of 0 and 1.

    Raises:
        ImageError: `mask` has no alpha channel in mode `alpha`, or marks no pixel or all pixels.
    """
    if mode == "alpha":
        if mask.alpha is None:
            rule = (
                "The image has no alpha channel, which `mask_mode` `alpha` needs. Send a mask "
                "and another `mask_mode`."
            )
            raise ImageError("no_alpha", rule)
        unknown, other, of_other = mask.alpha < THRESHOLD, "", np.zeros(0, bool)
    else:
        gray = mask.to_grayscale()
        white = gray == 1 if gray.max() == 1 else gray >= THRESHOLD
        opaque = np.True_ if mask.alpha is None else mask.alpha >= THRESHOLD
        other = "black_fill" if mode == "white_fill" else "white_fill"
        unknown, of_other = white & opaque, ~white & opaque
        if mode == "black_fill":
            unknown, of_other = of_other, unknown
    hint = f"; `{other}` would mark {of_other.sum()} pixels" if of_other.any() else ""
    _require_some(mode, unknown, hint)
    return unknown


def _require_some(mode: MaskMode, hidden: np.ndarray, hint: str) -> None:
    if not hidden.any():
        raise ImageError(
            "nothing_to_fill",
            f"Nothing to complete: `mask_mode` `{mode}` marks no pixel{hint}. Mark at least one "
            "pixel.",
        )
    if hidden.all():
        raise ImageError(
            "nothing_known",
            f"`mask_mode` `{mode}` marks every pixel. Leave some pixels that are known.",
        )
