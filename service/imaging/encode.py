"""Pictures as PNG."""

from __future__ import annotations

import base64
import io
import math
import struct
import zlib
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from PIL import Image

from service.imaging.image import ImageData

_LEVEL = 1  # of compression: a fifth larger than the default and three times as fast
_GAP = 2  # pixels between pictures
_BEGUN = 33  # bytes of a PNG: its signature and its header


def encode_png(canvas: np.ndarray, profile: bytes | None = None) -> bytes:
    """A PNG of (H, W) or (H, W, 2 to 4), with the colour profile that says what it means."""
    out = io.BytesIO()
    image = Image.fromarray(np.ascontiguousarray(canvas))
    image.save(out, "PNG", compress_level=_LEVEL, icc_profile=profile or b"")
    return out.getvalue()


def embed_json(picture: bytes, told: bytes) -> bytes:
    """A PNG with what goes beside it: JSON, in its text chunk `basin` (iTXt, UTF-8)."""
    body = b"iTXtbasin\0\0\0\0\0" + told
    chunk = struct.pack(">I", len(body) - 4) + body + struct.pack(">I", zlib.crc32(body))
    return picture[:_BEGUN] + chunk + picture[_BEGUN:]


def encode_base64_png(picture: ImageData) -> str:
    return base64.b64encode(encode_png(picture.to_array(), picture.profile)).decode()


def encode_sheet(pictures: Sequence[ImageData]) -> bytes:
    """Several completions of one picture as one PNG, in 8 bits; a single one as it is."""
    first = pictures[0]
    if len(pictures) == 1:
        return encode_png(first.to_array(), first.profile)
    return encode_png(
        make_grid(np.stack([_eight_bits(each).to_array() for each in pictures])), first.profile
    )


def make_grid(images: np.ndarray, columns: int | None = None) -> np.ndarray:
    """Pictures in rows of `columns`, or in a square: uint8.

    Args:
        images: (S, H, W) or (S, H, W, C) in [0, 1], or uint8.
    """
    columns = columns or math.ceil(math.sqrt(len(images)))
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
    return canvas


def _eight_bits(picture: ImageData) -> ImageData:
    if picture.pixels.dtype == np.uint8:
        return picture
    return replace(picture, pixels=picture.to_grayscale()[:, :, None])
