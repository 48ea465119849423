"""Encode images as PNG."""

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

from models.inputs.image_files.data import ImageData

_LEVEL = 1  # compression level: files are a fifth larger than by default, three times as fast
_GAP = 2  # pixels between images of a grid
_HEADER_BYTES = 33  # signature and IHDR chunk of a PNG


def encode_png(canvas: np.ndarray, profile: bytes | None = None) -> bytes:
    """Encode (H, W) or (H, W, 2 to 4) as PNG, with an ICC profile."""
    out = io.BytesIO()
    image = Image.fromarray(np.ascontiguousarray(canvas))
    image.save(out, "PNG", compress_level=_LEVEL, icc_profile=profile or b"")
    return out.getvalue()


def embed_json(png: bytes, document: bytes) -> bytes:
    """Insert a JSON document into a PNG, as its text chunk `basin` (iTXt, UTF-8)."""
    body = b"iTXtbasin\0\0\0\0\0" + document
    chunk = struct.pack(">I", len(body) - 4) + body + struct.pack(">I", zlib.crc32(body))
    return png[:_HEADER_BYTES] + chunk + png[_HEADER_BYTES:]


def encode_base64_png(image: ImageData) -> str:
    return base64.b64encode(encode_png(image.to_array(), image.profile)).decode()


def encode_sheet(images: Sequence[ImageData]) -> bytes:
    """Encode several images as a grid with 8 bits per channel; a single one unchanged."""
    first = images[0]
    if len(images) == 1:
        return encode_png(first.to_array(), first.profile)
    return encode_png(
        make_grid(np.stack([_eight_bits(image).to_array() for image in images])), first.profile
    )


def make_grid(images: np.ndarray, columns: int | None = None) -> np.ndarray:
    """Arrange images in rows of `columns`, by default in a square; returns uint8.

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


def _eight_bits(image: ImageData) -> ImageData:
    if image.pixels.dtype == np.uint8:
        return image
    return replace(image, pixels=image.to_grayscale()[:, :, None])
