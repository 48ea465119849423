"""Images of any origin as files that the server reads, all with one meaning."""

from __future__ import annotations

import io
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from basin_client.errors import InputError, require_extra

ImageInput = Any
"""A path, the bytes of a file, an open file, a `PIL.Image`, or an array; see `encode_image`."""
_MODES = frozenset(("1", "L", "LA", "P", "RGB", "RGBA", "I;16"))


def encode_image(image: ImageInput) -> bytes:
    """Return the bytes of an image file.

    Args:
        image: a path, the bytes of a file or an open file are sent as they are, and turned upright
            by the server; a `PIL.Image` is turned upright here. An array is (H, W), (H, W, 1),
            (H, W, 3) or (H, W, 4): bool (true is white), integers from 0 to 255, uint16 of grey
            levels from 0 to 65535, or floats from 0 (black) to 1 (white).

    Raises:
        InputError: the image is none of these, or there is no such file.
        MissingLibraryError: the image is an array, and Pillow is not installed.
    """
    if isinstance(image, bytes | bytearray | memoryview):
        return bytes(image)
    if isinstance(image, str | os.PathLike):
        try:
            return Path(image).read_bytes()
        except OSError as error:
            raise InputError(f"{image}: {error.strerror or error}.") from error
    if hasattr(image, "read"):
        return _read(image)
    if hasattr(image, "detach"):  # a tensor
        image = image.detach().cpu().numpy()
    if isinstance(image, np.ndarray):
        return _encode_array(image)
    if hasattr(image, "getexif"):
        return _encode_pillow(image)
    raise InputError(
        f"Unsupported image type {type(image).__name__}: pass a path, bytes, an open file, a "
        "PIL.Image or an array."
    )


def image_files(images: ImageInput | Iterable[ImageInput]) -> list[tuple[str, ImageInput]]:
    """Return the fields of a form with one image, or with those of an iterable."""
    is_one = isinstance(images, str | bytes | bytearray | memoryview | os.PathLike | np.ndarray)
    is_one = is_one or any(hasattr(images, name) for name in ("read", "getexif", "detach"))
    items = list(images) if isinstance(images, Iterable) and not is_one else [images]
    return [("image", image) for image in items]


def _read(file: Any) -> bytes:
    content = file.read()
    if not isinstance(content, bytes):
        raise InputError("The image file is open as text: open it with mode 'rb'.")
    if not content:
        raise InputError("The image file has no bytes left to read: open it again, or seek(0).")
    return content


def _encode_pillow(image: Any) -> bytes:
    with require_extra("images"):
        from PIL import ImageOps

    upright = ImageOps.exif_transpose(image)
    if upright.mode not in _MODES:
        raise InputError(
            f"The PIL.Image has the mode {upright.mode}: convert it, for example with "
            "image.convert('RGB'), or to 16-bit grey with mode I;16."
        )
    return _to_png(upright)


def _encode_array(array: np.ndarray) -> bytes:
    with require_extra("images"):
        from PIL import Image

    if array.ndim == 3 and array.shape[2] == 1:
        array = array[:, :, 0]
    if array.ndim != 2 and not (array.ndim == 3 and array.shape[2] in (3, 4)):
        hint = " Move the channels last." if array.ndim == 3 and len(array) in (1, 3, 4) else ""
        raise InputError(
            f"The array has the shape {array.shape}: an image is (H, W), (H, W, 1), (H, W, 3) or "
            f"(H, W, 4).{hint}"
        )
    if not array.size:
        raise InputError(f"The array has the shape {array.shape}: an image has at least one pixel.")
    if array.dtype == np.uint16 and array.ndim == 2:
        return _to_png(Image.fromarray(array))
    return _to_png(Image.fromarray(_to_uint8(array)))


def _to_uint8(array: np.ndarray) -> np.ndarray:
    if array.dtype == bool:
        return array.astype(np.uint8) * 255
    low, high = array.min(), array.max()  # NaN if one of them is
    if array.dtype.kind == "f":
        if not (low >= 0 and high <= 1):
            raise InputError(
                f"The array of floats has values from {low} to {high}: floats are 0 (black) to 1 "
                "(white). Divide by 255, or convert to uint8."
            )
        return np.round(array * 255).astype(np.uint8)
    if array.dtype.kind not in "iu" or low < 0 or high > 255:
        raise InputError(
            f"The array of {array.dtype} has values from {low} to {high}: use uint8 from 0 to 255, "
            "or uint16 of one channel for 16-bit grey."
        )
    return array.astype(np.uint8)


def _to_png(image: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()
