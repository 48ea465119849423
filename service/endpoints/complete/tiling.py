"""Plan the windows that fill a hole, at several scales.

The image is cut into cells of half a window, and every cell with unknown pixels gets the window
around it: a quarter of a window of context on each side. So the number of windows grows with the
area of the hole, and a hole within a cell takes one window.

Where a hole is so wide that a window within it would see nothing known, or so scattered that hardly
a patch is whole, the image is completed at half its size first, by the same rule; that guides the
larger structure. At half size a pixel is known if any of its four is, so every halving closes the
hole a little and some size needs no other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from models.inputs.image_files.data import ImageError


@dataclass(frozen=True)
class Level:
    """One scale: `unknown` (H, W), the corners (N, 2) of its windows in row-major order, and
    whether the level of half its size guides it. Corners may be outside of a small image."""

    unknown: np.ndarray
    corners: np.ndarray
    guided: bool


@dataclass(frozen=True)
class Plan:
    """How to fill a hole with windows of `size` x `size` in patches of `patch` x `patch`: the
    levels from full size to the smallest."""

    size: int
    patch: int
    levels: tuple[Level, ...]

    @property
    def windows(self) -> int:
        """Number of windows of all levels."""
        return sum(len(level.corners) for level in self.levels)


def plan_windows(unknown: np.ndarray, size: int, patch: int, max_windows: int) -> Plan:
    """Plan the windows that fill `unknown` (H, W) of a whole image.

    Raises:
        ImageError: `unknown` takes more than `max_windows`.
        ValueError: a window is no whole number of patches, or nothing is known, which no halving
            would change.
    """
    if unknown.all():
        raise ValueError("every pixel is unknown")
    if size % patch or size % 4:
        raise ValueError("the window size must be a multiple of the patch size and of 4")
    levels: list[Level] = []
    windows, guided = 0, True
    while guided and unknown.any():
        corners = _corners(unknown, size)
        if (windows := windows + len(corners)) > max_windows:
            rule = (
                f"This image takes more than {max_windows} windows (BASIN_MAX_WINDOWS) to "
                "complete. Mark fewer pixels, or send a smaller image."
            )
            raise ImageError("too_much_work", rule, "invalid-request")
        guided = _wide(unknown, size // 2 + 1) or _scattered(unknown, corners, size, patch)
        levels.append(Level(unknown, corners, guided))
        unknown = ~_any_of_four(~unknown)
    return Plan(size, patch, tuple(levels))


def halved(pixels: np.ndarray, known: np.ndarray) -> np.ndarray:
    """Halve an image: mean of the known pixels of each 2 x 2 block, 0 if none is known."""
    height, width, channels = pixels.shape
    total = np.zeros((-(-height // 2), -(-width // 2), channels), np.float32)
    count = np.zeros(total.shape[:2], np.float32)
    for part in _quarters():
        values, weight = pixels[part], known[part]
        rows, columns = weight.shape
        total[:rows, :columns] += values * weight[..., None]
        count[:rows, :columns] += weight
    return total / np.maximum(count, 1)[..., None]


def doubled(pixels: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Interpolate rows and columns of an image of twice the size bilinearly; the inverse of
    `halved` for linear images."""
    for axis, index in enumerate((rows, columns)):
        middle = (index - np.float32(0.5)) / 2
        low = np.clip(np.floor(middle), 0, max(pixels.shape[axis] - 2, 0)).astype(np.intp)
        high = np.minimum(low + 1, pixels.shape[axis] - 1)
        share = (middle - low).astype(np.float32).reshape((-1, 1, 1) if axis == 0 else (-1, 1))
        first = pixels.take(low, axis)
        pixels = first + (pixels.take(high, axis) - first) * share
    return pixels


def places(start: int, length: int, size: int) -> tuple[np.ndarray, slice]:
    """Return the indices of the pixels of a window at `start`, mirrored beyond the ends of
    `length`, and the slice of the window that is not mirrored."""
    position = (start + np.arange(size)) % (2 * length)
    real = slice(max(-start, 0), min(size, length - start))
    return np.where(position < length, position, 2 * length - 1 - position), real


def shares_of(known: np.ndarray, patch: int) -> np.ndarray:
    """Return the known share (..., S/p, S/p) of each patch of windows (..., S, S)."""
    *batch, size, _ = known.shape
    side = size // patch
    return known.reshape(*batch, side, patch, side, patch).mean(axis=(-3, -1), dtype=np.float32)


def starved(known: np.ndarray, shares: np.ndarray) -> bool:
    """Whether fully known patches cover less than half of the known pixels of a window."""
    return (shares == 1).mean() < known.mean() / 2


def _corners(unknown: np.ndarray, size: int) -> np.ndarray:
    cell = size // 2
    top, rows = _cells(np.any(unknown, axis=1), cell)
    left, columns = _cells(np.any(unknown, axis=0), cell)
    filled = np.logical_or.reduceat(unknown, rows, axis=0)
    filled = np.logical_or.reduceat(filled, columns, axis=1)
    flagged = [
        _within(start + cell * index - size // 4, length, size)
        for index, start, length in zip(np.nonzero(filled), (top, left), unknown.shape, strict=True)
    ]
    return np.unique(np.stack(flagged, axis=1), axis=0)


def _cells(occupied: Any, cell: int) -> tuple[int, np.ndarray]:
    """Return the start of the cells that cover the occupied range, centered on it, and the first
    pixel of the range in each cell."""
    low, high = np.flatnonzero(occupied)[[0, -1]] + (0, 1)
    count = -(-(high - low) // cell)
    start = int(low - (count * cell - (high - low)) // 2)
    return start, np.maximum(start + cell * np.arange(count), low)


def _within(start: np.ndarray, length: int, size: int) -> np.ndarray:
    """Move windows inside the image; center them if the image is smaller."""
    if length < size:
        return np.full_like(start, -((size - length) // 2))
    return np.clip(start, 0, length - size)


def _wide(unknown: np.ndarray, side: int) -> bool:
    """Whether there is a square of `side`, cut to the image, with nothing known."""
    side_y, side_x = (min(side, length) for length in unknown.shape)
    sums = np.cumsum(np.cumsum(unknown, axis=0, dtype=np.uint32), axis=1, dtype=np.uint32)
    sums = np.pad(sums, ((1, 0), (1, 0)))
    boxes = sums[side_y:] - sums[:-side_y]
    return bool((boxes[:, side_x:] - boxes[:, :-side_x] == side_y * side_x).any())


def _scattered(unknown: np.ndarray, corners: np.ndarray, size: int, patch: int) -> bool:
    """Whether any window is starved at the start."""
    height, width = unknown.shape
    for top, left in corners.tolist():
        rows, columns = places(top, height, size)[0], places(left, width, size)[0]
        known = ~unknown[rows[:, None], columns]
        if starved(known, shares_of(known, patch)):
            return True
    return False


def _any_of_four(flags: np.ndarray) -> np.ndarray:
    flagged = np.zeros((-(-flags.shape[0] // 2), -(-flags.shape[1] // 2)), bool)
    for part in _quarters():
        quarter = flags[part]
        flagged[: quarter.shape[0], : quarter.shape[1]] |= quarter
    return flagged


def _quarters() -> list[tuple[slice, slice]]:
    return [(slice(y, None, 2), slice(x, None, 2)) for y in (0, 1) for x in (0, 1)]
