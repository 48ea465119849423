"""Samples as one picture."""

from __future__ import annotations

import io
import math

import numpy as np
import orjson
from PIL import Image, PngImagePlugin

_GAP = 2  # pixels between samples


def grid(batches: list[np.ndarray], answer: dict[str, object]) -> bytes:
    """A PNG with a row of samples per batch, or a square of them where there is one batch.

    Args:
        batches: images (S, H, W) or (S, H, W, C) in [0, 1], or uint8, equally many in each.
        answer: what goes beside the samples in JSON; kept in the text chunk `basin`.
    """
    images = np.concatenate(batches)
    columns = len(batches[0]) if len(batches) > 1 else math.ceil(math.sqrt(len(images)))
    rows = math.ceil(len(images) / columns)
    height, width, *channels = images.shape[1:]
    canvas = np.full(
        (rows * (height + _GAP) - _GAP, columns * (width + _GAP) - _GAP, *channels), 255, np.uint8
    )
    if images.dtype != np.uint8:
        images = np.rint(255 * images).astype(np.uint8)
    for i, image in enumerate(images):
        top, left = i // columns * (height + _GAP), i % columns * (width + _GAP)
        canvas[top : top + height, left : left + width] = image
    text = PngImagePlugin.PngInfo()
    text.add_text("basin", orjson.dumps(answer).decode())
    out = io.BytesIO()
    Image.fromarray(canvas).save(out, "PNG", pnginfo=text)
    return out.getvalue()
