"""An image of any size at the one size a network looks at."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np

from models.inputs.image_files.data import ImageData
from models.inputs.image_files.decode import decode_image
from models.inputs.image_files.header import EncodedImage
from service.imaging.errors import image_errors_at

Fit = Literal["stretch", "crop"]
_LUMA = np.array([0.299, 0.587, 0.114])  # ITU-R 601


def fitted(
    image: ImageData, shape: tuple[int, int, int], blank_C: np.ndarray, fit: Fit
) -> np.ndarray:
    """The image as float32 (C, H, W) of `shape`, in [0, 1].

    What shrinks is averaged over the area that each pixel covers, what grows is interpolated
    linearly, each axis by itself; an image of this size keeps its values. RGB becomes luma where
    one channel is read, grey becomes RGB where three are.

    Args:
        blank_C: what shows through where the image is transparent, in [0, 1].
        fit: `stretch` shows the whole image, `crop` the middle of it in its own proportions.
    """
    channels, height, width = shape
    rows, columns = _middle(image.shape, (height, width)) if fit == "crop" else _WHOLE
    planes = image.pixels[rows, columns]
    alpha = None if image.alpha is None else image.alpha[rows, columns, None]
    if alpha is not None:  # averages of colours times alpha: what is transparent has no colour
        planes = planes * (alpha / np.float32(255))
    small = _resampled(planes, height, width) / np.iinfo(image.pixels.dtype).max
    if small.shape[2] > channels:
        small = small @ _LUMA[:, None]
    if alpha is not None:
        small = small + (1 - _resampled(alpha, height, width) / 255) * blank_C
    small = np.broadcast_to(small, (height, width, channels)).clip(0, 1)
    return np.ascontiguousarray(small.transpose(2, 0, 1), np.float32)


_WHOLE = (slice(None), slice(None))


def _middle(shape: tuple[int, int], target: tuple[int, int]) -> tuple[slice, slice]:
    """The largest part of the proportions of `target`, at least a pixel wide and high."""
    (rows, columns), (height, width) = shape, target
    high = min(rows, max(1, round(columns * height / width)))
    wide = min(columns, max(1, round(rows * width / height)))
    top, left = (rows - high) // 2, (columns - wide) // 2
    return slice(top, top + high), slice(left, left + wide)


def _resampled(planes: np.ndarray, height: int, width: int) -> np.ndarray:
    """(H, W, C) of another size, float64. The axis that shrinks more goes first: a line of
    millions of pixels must not be repeated before it is averaged."""
    if len(planes) * width < planes.shape[1] * height:
        return _resampled(planes.swapaxes(0, 1), width, height).swapaxes(0, 1)
    return _along(_along(planes, height).swapaxes(0, 1), width).swapaxes(0, 1)


def _along(values: np.ndarray, size: int) -> np.ndarray:
    """The first axis in `size` steps."""
    length = len(values)
    if length >= size:
        return np.stack([_mean(values, i * length, (i + 1) * length, size) for i in range(size)])
    middle = ((np.arange(size) + 0.5) * length / size - 0.5).clip(0, length - 1)
    low = np.floor(middle).astype(np.intp)
    share = (middle - low)[:, None, None]
    return values[low] * (1 - share) + values[np.minimum(low + 1, length - 1)] * share


def _mean(values: np.ndarray, start: int, stop: int, parts: int) -> np.ndarray:
    """The mean from `start` to `stop`, in units of a `parts`-th of a value, so that it is exact."""
    low, high = start // parts, -(-stop // parts)
    total = values[low:high].sum(0, dtype=np.float64) * parts
    total -= values[low] * np.float64(start - low * parts)
    total -= values[high - 1] * np.float64(high * parts - stop)
    return total / (stop - start)


def decode_and_fit(
    file: EncodedImage, where: str, fit: Callable[[ImageData], np.ndarray]
) -> np.ndarray:
    """Decode an image and bring it to the size of the model, (C, H, W).

    Raises:
        Problem: `invalid-image`, at the JSON pointer `where`.
    """
    with image_errors_at(where):
        return fit(decode_image(file))
