"""Decode inspected image files with Pillow."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Iterator

import numpy as np
from PIL import Image

from models.inputs.image_files.data import ImageData, ImageError
from models.inputs.image_files.header import EncodedImage

_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}  # by color type of PNG
_ADAM7 = (  # first column and row of each pass, and its steps across and down
    *((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4)),
    *((0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)),
)
_PIECE = 1 << 16
_PLAIN = {"1": "L", "L": "L", "LA": "LA", "P": "RGB", "RGB": "RGB", "RGBA": "RGBA"}
_WITH_ALPHA = {"L": "LA", "P": "RGBA", "RGB": "RGBA"}


def decode_image(file: EncodedImage) -> ImageData:
    """Decode `file`, upright. A palette becomes RGB, black and white becomes grayscale.

    Raises:
        ImageError: the file cannot be decoded to its end.
    """
    try:
        if file.format == "PNG":
            _require_rows(file)
        with Image.open(io.BytesIO(file.data), formats=[file.format]) as image:
            if image.size != (file.width, file.height):
                raise ImageError(
                    "damaged",
                    "The image data does not have the size given in the image header. Export "
                    "the image again.",
                )
            image.load()
            return _to_image_data(image, file.orientation)
    except ImageError:
        raise
    except Exception:  # the parsers of Pillow raise many types
        raise ImageError(
            "damaged",
            "The image data is corrupt: decoding failed before the end of the image. Export "
            "the image again.",
        ) from None


def _require_rows(file: EncodedImage) -> None:
    """Refuse a PNG with valid but too little data: Pillow would make the rest black."""
    depth, color, _, _, interlaced = file.data[24:29]
    left, bits, at = 0, depth * _CHANNELS[color], len(b"\x89PNG\r\n\x1a\n")
    for x, y, across, down in _ADAM7 if interlaced else ((0, 0, 1, 1),):
        columns, rows = -(-(file.width - x) // across), -(-(file.height - y) // down)
        if columns > 0 and rows > 0:
            left += rows * (1 + -(-columns * bits // 8))
    if left > _inflated(file.data, at, left):
        raise ImageError(
            "truncated",
            "The image file is truncated: its pixel data is incomplete. Send the whole file.",
        )


def _inflated(data: bytes, at: int, enough: int) -> int:
    """Count the decompressed bytes of the IDAT chunks from `at`, up to `enough`. At most `_PIECE`
    bytes of input and output are in memory at a time."""
    inflate, size = zlib.decompressobj(), 0
    for part in _pixel_data(data, at):
        while size < enough and (piece := inflate.decompress(part, _PIECE)):
            size, part = size + len(piece), inflate.unconsumed_tail
        if size >= enough or inflate.eof:
            break
    return size


def _pixel_data(data: bytes, at: int) -> Iterator[memoryview]:
    while at < len(data):
        length, kind = struct.unpack_from(">I4s", data, at)
        if kind == b"IDAT":
            for start in range(at + 8, at + 8 + length, _PIECE):
                yield memoryview(data)[start : min(start + _PIECE, at + 8 + length)]
        at += 12 + length


def _to_image_data(image: Image.Image, orientation: int) -> ImageData:
    profile = image.info.get("icc_profile")
    if image.mode != "I;16":
        mode = (_WITH_ALPHA if "transparency" in image.info else _PLAIN)[image.mode]
        image = image if image.mode == mode else image.convert(mode)
    if orientation in _TURNS:
        image = image.transpose(_TURNS[orientation])
    planes = np.asarray(image)
    planes = planes.reshape(*planes.shape[:2], -1)
    if image.mode in ("LA", "RGBA"):
        return ImageData(planes[:, :, :-1], planes[:, :, -1], profile)
    return ImageData(planes, None, profile)
