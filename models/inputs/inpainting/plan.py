"""Plan which windows complete a hole, at which scales.

The part of the image that is hidden is cut into cells, and every cell with hidden pixels gets the
window around it. So the number of windows grows with the area of the hole, and a hole within a cell
takes one window.

Only pixels within `depth` of a known one are completed at full size. What lies deeper is completed
at half the size first, by the same rule, and enlarged: then it counts as known. At half size a
pixel is known if any of its four is, so every halving closes the hole a little and some size has no
pixels so deep.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from scipy.ndimage import maximum_filter1d

_FADES = 4


MAX_PIXELS = 1 << 22
"""Most pixels of a level that may be completed: each takes some 400 bytes while it is prefilled."""


class HoleTooLargeError(Exception):
    """The hole takes more windows, or has more pixels beside known ones, than are allowed.

    Attributes:
        limit: which of the two, `windows` or `pixels`.
    """

    def __init__(self, limit: Literal["windows", "pixels"]) -> None:
        super().__init__(f"too many {limit}")
        self.limit = limit


@dataclass(frozen=True)
class Tiling:
    """Windows of `size` x `size` pixels, a cell of `stride` in the middle of each, and how deep
    in a hole (chessboard distance) pixels are completed without a guess from half the size."""

    size: int
    stride: int
    depth: int

    @classmethod
    def from_size(cls, size: int) -> Tiling:
        """What serves windows of a size: cells of three quarters of it, a quarter deep."""
        return cls(size, size * 3 // 4, size // 4)


@dataclass(frozen=True)
class Level:
    """One scale.

    Attributes:
        hidden: which pixels are hidden (H, W).
        completed: which of them are completed here; the others are taken from the level of half
            the size.
        trust: of each hidden pixel (n,), how much of the network's answer counts: less the nearer
            pixels are that half the size has completed, so that no border shows. 0 for those.
        corners: of the windows (N, 2), in row-major order; outside of a small image for some.
    """

    hidden: np.ndarray
    completed: np.ndarray
    trust: np.ndarray
    corners: np.ndarray

    @property
    def needs_guide(self) -> bool:
        """Whether hidden pixels are left to the level of half the size."""
        return bool((self.hidden != self.completed).any())


@dataclass(frozen=True)
class Plan:
    """How to complete the holes of one image: its levels from full size to the smallest."""

    tiling: Tiling
    levels: tuple[Level, ...]

    @property
    def num_windows(self) -> int:
        """Of all levels."""
        return sum(len(level.corners) for level in self.levels)


@dataclass(frozen=True)
class WholeImage:
    """One window that is the image itself, for what completes images of one shape."""

    hidden: np.ndarray
    num_windows: int = 1


def plan_windows(hidden_HW: np.ndarray, tiling: Tiling, max_windows: int) -> Plan:
    """Plan the windows that complete the hidden pixels of a whole image.

    Raises:
        HoleTooLargeError: they take more than `max_windows`, or a level completes more than
            `MAX_PIXELS`.
        ValueError: no pixel is hidden, or every one, which no halving would change.
    """
    if hidden_HW.all() or not hidden_HW.any():
        raise ValueError("no pixel is hidden, or every pixel is")
    levels: list[Level] = []
    windows = 0
    while True:
        completed = hidden_HW & _is_near(~hidden_HW, tiling.depth)
        corners = _find_corners(completed, tiling)
        if (windows := windows + len(corners)) > max_windows:
            raise HoleTooLargeError("windows")
        if np.count_nonzero(completed) > MAX_PIXELS:
            raise HoleTooLargeError("pixels")
        trust = _measure_trust(hidden_HW, completed, tiling.depth)
        levels.append(Level(hidden_HW, completed, trust, corners))
        if not levels[-1].needs_guide:
            return Plan(tiling, tuple(levels))
        hidden_HW = ~_any_of_four(~hidden_HW)


def halve(pixels_HWC: np.ndarray, known_HW: np.ndarray) -> np.ndarray:
    """An image of half the size, float32: the mean of the known pixels of each 2 x 2 block, 0 if
    none is known."""
    height, width, channels = pixels_HWC.shape
    total = np.zeros((-(-height // 2), -(-width // 2), channels), np.float32)
    count = np.zeros(total.shape[:2], np.float32)
    for part in _quarters():
        values, weight = pixels_HWC[part], known_HW[part]
        rows, columns = weight.shape
        total[:rows, :columns] += values * weight[..., None]
        count[:rows, :columns] += weight
    return total / np.maximum(count, 1)[..., None]


def mirror_within(start: int, length: int, size: int) -> tuple[np.ndarray, slice]:
    """Places along an axis of a window at `start`, mirrored beyond the ends of `length`, and the
    slice of the window that is not mirrored."""
    position = (start + np.arange(size)) % (2 * length)
    real = slice(max(-start, 0), min(size, length - start))
    return np.where(position < length, position, 2 * length - 1 - position), real


def _measure_trust(hidden_HW: np.ndarray, completed_HW: np.ndarray, depth: int) -> np.ndarray:
    """From 0 at what is left to half the size to 1 from half of `depth` on, in `_FADES` steps."""
    deep_HW = hidden_HW & ~completed_HW
    trust_n = np.ones(np.count_nonzero(hidden_HW), np.float32)
    if deep_HW.any():
        trust_n[deep_HW[hidden_HW]] = 0
        for step in reversed(range(_FADES)):
            distance = max(depth * (step + 1) // (2 * _FADES), 1)
            is_close = _is_near(deep_HW, distance)[hidden_HW]
            trust_n[is_close] = np.minimum(trust_n[is_close], (step + 1) / (_FADES + 1))
    return trust_n


def _is_near(flags_HW: np.ndarray, depth: int) -> np.ndarray:
    """Where a flagged pixel is at most `depth` away, diagonals counting 1."""
    near = flags_HW.view(np.uint8)
    for axis in (0, 1):
        near = maximum_filter1d(near, 2 * depth + 1, axis=axis, mode="nearest")
    return near.view(bool)


def _find_corners(completed_HW: np.ndarray, tiling: Tiling) -> np.ndarray:
    top, rows = _cells(completed_HW.any(axis=1), tiling.stride)
    left, columns = _cells(completed_HW.any(axis=0), tiling.stride)
    occupied = np.logical_or.reduceat(completed_HW, rows, axis=0)
    occupied = np.logical_or.reduceat(occupied, columns, axis=1)
    margin = (tiling.size - tiling.stride) // 2
    both = zip(np.nonzero(occupied), (top, left), completed_HW.shape, strict=True)
    corners = [
        _move_inside(first + tiling.stride * index - margin, length, tiling.size)
        for index, first, length in both
    ]
    return np.unique(np.stack(corners, axis=1), axis=0)


def _cells(occupied: Any, stride: int) -> tuple[int, np.ndarray]:
    """The start of the cells that cover the occupied range, centered on it, and the first pixel
    of the range in each cell."""
    low, high = np.flatnonzero(occupied)[[0, -1]] + (0, 1)
    count = -(-(high - low) // stride)
    start = int(low - (count * stride - (high - low)) // 2)
    return start, np.maximum(start + stride * np.arange(count), low)


def _move_inside(start: np.ndarray, length: int, size: int) -> np.ndarray:
    """Windows moved inside the image, or centered on it if it is smaller."""
    if length < size:
        return np.full_like(start, -((size - length) // 2))
    return np.clip(start, 0, length - size)


def _any_of_four(flags: np.ndarray) -> np.ndarray:
    flagged = np.zeros((-(-flags.shape[0] // 2), -(-flags.shape[1] // 2)), bool)
    for part in _quarters():
        quarter = flags[part]
        flagged[: quarter.shape[0], : quarter.shape[1]] |= quarter
    return flagged


def _quarters() -> list[tuple[slice, slice]]:
    return [(slice(y, None, 2), slice(x, None, 2)) for y in (0, 1) for x in (0, 1)]
