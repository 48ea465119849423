"""Complete the holes of an image window by window, from the smallest scale to full size.

At each scale hidden pixels begin as Laplace's equation has them, a network improves on them window
by window, and its answers are averaged with weights that fall to zero at the borders of a window,
so that these do not show. Windows of a scale do not wait for each other. Beside the image itself,
and images of half its size and less for wide holes, only hidden pixels are held in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np

from models.inputs.inpainting.laplace import fill_harmonic
from models.inputs.inpainting.plan import Level, Plan, halve, mirror_within


class Windows(NamedTuple):
    """Windows (B, S, S, C) float32 from 0 to 1 with hidden pixels prefilled, and which those are,
    bool (B, S, S)."""

    pixels: np.ndarray
    hidden: np.ndarray


class Answers(NamedTuple):
    """Completed windows (B, S, S, C), and the absolute error that is expected of each pixel
    (B, S, S), where a network tells it."""

    pixels: np.ndarray
    expected_error: np.ndarray | None


class FilledPixels(NamedTuple):
    """Hidden pixels of an image, as row * width + column in order; their values (n, C) from 0 to
    1; and the absolute error expected of each (n,), where a network tells it."""

    places: np.ndarray
    values: np.ndarray
    expected_error: np.ndarray | None

    def write(self, image_HWC: np.ndarray) -> np.ndarray:
        """A copy of an image of integers with its hidden pixels filled."""
        completed = image_HWC.copy()
        flat = completed.reshape(-1, completed.shape[2])
        flat[self.places] = np.rint(self.values * np.iinfo(completed.dtype).max)
        return completed


CompleteWindows = Callable[[Windows, Callable[[Answers], FilledPixels]], Answers]
"""Completes windows. The second argument tells the hidden pixels of the whole image as they would
be, should these windows be answered so, for a preview."""


def fill_holes(
    pixels_HWC: np.ndarray,
    plan: Plan,
    complete: CompleteWindows,
    *,
    batch: int = 16,
    check: Callable[[], None] = lambda: None,
) -> FilledPixels:
    """Complete the hidden pixels of an image; those hidden have no part in the answer.

    Args:
        pixels_HWC: uint8, uint16, or float from 0 to 1.
        plan: of the same image.
        complete: what completes windows, at most `batch` at a time.
        check: called now and then while no window is completed; may raise to end it all.
    """
    return HoleFiller(pixels_HWC, plan).fill(complete, batch=batch, check=check)


class HoleFiller:
    """Completes the holes of one image any number of times. What every completion begins with is
    computed once: the image at all scales, and at the smallest one the prefill. At a larger scale
    that depends on what the smaller one was completed to.

    Args:
        pixels_HWC: uint8, uint16, or float from 0 to 1.
        plan: of the same image.
    """

    def __init__(self, pixels_HWC: np.ndarray, plan: Plan) -> None:
        self._scales = [_Scale.from_image(pixels_HWC, plan)]
        for level in plan.levels[1:]:
            self._scales.append(self._scales[-1].halve(level))
        self._prefilled: np.ndarray | None = None

    def fill(
        self,
        complete: CompleteWindows,
        *,
        batch: int = 16,
        check: Callable[[], None] = lambda: None,
    ) -> FilledPixels:
        """As `fill_holes`."""
        scales = [scale.renew() for scale in self._scales]
        filled: _Scale | None = None
        for depth in reversed(range(len(scales))):
            scale = scales[depth]
            if filled is None and self._prefilled is not None:
                scale.values = self._prefilled
            else:
                scale.prefill(filled, check)
            if filled is None:
                self._prefilled = scale.values  # which no method writes into from here on
            corners = scale.level.corners.tolist()
            for start in range(0, len(corners), batch):
                scale.run(
                    corners[start : start + batch],
                    complete,
                    partial(_enlarge, scales[0], scale, depth),
                )
            scale.finish()
            filled = scale
        return scales[0].filled()


def fill_whole(
    pixels_HWC: np.ndarray, hidden_HW: np.ndarray, complete: CompleteWindows
) -> FilledPixels:
    """Complete the hidden pixels of an image that is one window."""
    places = np.flatnonzero(hidden_HW)

    def read(answers: Answers) -> FilledPixels:
        errors = answers.expected_error
        values = np.clip(answers.pixels[0][hidden_HW], 0, 1)
        return FilledPixels(places, values, None if errors is None else errors[0][hidden_HW])

    windows = Windows(scale_to_one(pixels_HWC)[None], hidden_HW[None])
    return read(complete(windows, read))


def scale_to_one(pixels_HWC: np.ndarray) -> np.ndarray:
    """Pixels as float32 from 0 to 1."""
    values = pixels_HWC.astype(np.float32)
    if np.issubdtype(pixels_HWC.dtype, np.integer):
        values /= np.iinfo(pixels_HWC.dtype).max
    return values


@dataclass(frozen=True)
class _Window:
    """The rows and columns that a window shows, mirror images included; the part of it that is not
    mirrored; and its weights there."""

    rows: np.ndarray
    columns: np.ndarray
    inner: tuple[slice, slice]
    weights: np.ndarray

    @classmethod
    def from_corner(cls, corner: Sequence[int], shape: Sequence[int], size: int) -> _Window:
        (top, left), (height, width) = corner, shape
        rows, inner_rows = mirror_within(top, height, size)
        columns, inner_columns = mirror_within(left, width, size)
        weights = np.outer(_fade(top, height, size), _fade(left, width, size))
        inner = inner_rows, inner_columns
        return cls(rows, columns, inner, weights[inner])


class _Scale:
    """One scale while it is filled: values of its hidden pixels, and weighted sums of answers."""

    def __init__(self, pixels_HWC: np.ndarray, peak: float, level: Level, plan: Plan) -> None:
        self.pixels, self.peak, self.level, self.plan = pixels_HWC, peak, level, plan
        self.shape = (pixels_HWC.shape[0], pixels_HWC.shape[1])
        self.places = np.flatnonzero(level.hidden)
        self.is_completed = level.completed.ravel()[self.places]
        self.values = np.zeros((len(self.places), pixels_HWC.shape[2]), np.float32)
        self.error: np.ndarray | None = None
        # Of those that are completed here.
        self.completed_places = self.places[self.is_completed]
        n = len(self.completed_places)
        self.sums = np.zeros((n, pixels_HWC.shape[2]), np.float32)
        self.error_sums: np.ndarray | None = None
        self.weights = np.zeros(n, np.float32)

    @classmethod
    def from_image(cls, pixels_HWC: np.ndarray, plan: Plan) -> _Scale:
        is_integer = np.issubdtype(pixels_HWC.dtype, np.integer)
        peak = np.iinfo(pixels_HWC.dtype).max if is_integer else 1.0
        return cls(pixels_HWC, float(peak), plan.levels[0], plan)

    def renew(self) -> _Scale:
        """The same scale before anything of it was filled."""
        return _Scale(self.pixels, self.peak, self.level, self.plan)

    def halve(self, level: Level) -> _Scale:
        return _Scale(halve(self.pixels, ~self.level.hidden), self.peak, level, self.plan)

    def prefill(self, half: _Scale | None, check: Callable[[], None]) -> None:
        """Deep pixels as the half size has them, the others by Laplace's equation."""
        deep = self.places[~self.is_completed]
        if half is not None:  # so it is where a pixel is deep
            image, error = half.image(), half.error_image()
            at = _halve_places(deep, self.shape[1], 1)
            self.values[~self.is_completed] = sample_bilinear(image, *at)
            if error is not None:
                at = _halve_places(self.places, self.shape[1], 1)
                self.error = sample_bilinear(error[..., None], *at)[:, 0]
        self.values[self.is_completed] = fill_harmonic(
            self.completed_places, self.shape, self._read, check
        )

    def _read(self, places: np.ndarray) -> np.ndarray:
        """Values (m, C) at known pixels and deep ones."""
        values = self.pixels.reshape(-1, self.pixels.shape[2])[places] / np.float32(self.peak)
        hidden = self.level.hidden.ravel()[places]
        values[hidden] = self.values[self._index(places[hidden])]
        return values

    def _index(self, places: np.ndarray) -> np.ndarray:
        return np.searchsorted(self.places, places)

    def run(
        self,
        corners: Sequence[Sequence[int]],
        complete: CompleteWindows,
        enlarge: Callable[[np.ndarray], FilledPixels],
    ) -> None:
        """Complete a batch of windows, and add the answers."""
        windows = [
            _Window.from_corner(corner, self.shape, self.plan.tiling.size) for corner in corners
        ]
        shown = Windows(*map(np.stack, zip(*map(self._show, windows), strict=True)))

        def preview(answers: Answers) -> FilledPixels:
            trial = copy(self)
            trial.sums = self.sums.copy()
            trial.weights = self.weights.copy()
            trial._add(windows, Answers(answers.pixels, None))  # no preview shows errors
            values, _ = trial._average()
            return enlarge(values)

        self._add(windows, complete(shown, preview))

    def _show(self, window: _Window) -> tuple[np.ndarray, np.ndarray]:
        at = window.rows[:, None], window.columns
        pixels = self.pixels[at].astype(np.float32)
        pixels /= self.peak
        hidden = self.level.hidden[at]
        pixels[hidden] = self.values[self._index(self._places(window)[hidden])]
        return pixels, self.level.completed[at]

    def _places(self, window: _Window) -> np.ndarray:
        return window.rows[:, None] * self.shape[1] + window.columns

    def _add(self, windows: Sequence[_Window], answers: Answers) -> None:
        for row, window in enumerate(windows):
            places = self._places(window)[window.inner]
            completed = self.level.completed.ravel()[places]
            index = np.searchsorted(self.completed_places, places[completed])
            weights = window.weights[completed]
            pixels = answers.pixels[row][window.inner][completed]
            self.sums[index] += weights[:, None] * pixels
            self.weights[index] += weights
            if answers.expected_error is not None:
                if self.error_sums is None:
                    self.error_sums = np.zeros_like(self.weights)
                error = answers.expected_error[row][window.inner][completed]
                self.error_sums[index] += weights * error

    def _average(self) -> tuple[np.ndarray, np.ndarray | None]:
        """Values and expected errors as far as windows have answered, prefilled elsewhere."""
        answered = self.weights > 0
        weights = self.weights[answered]
        at = np.flatnonzero(self.is_completed)[answered]
        values = self.values.copy()
        answers = np.clip(self.sums[answered] / weights[:, None], 0, 1)
        trust = self.level.trust[at, None]
        values[at] = trust * answers + (1 - trust) * values[at]
        if self.error_sums is None:
            return values, self.error
        # What half the size is unsure of is as doubtful here, where it counts as known.
        error = np.zeros_like(values[:, 0]) if self.error is None else self.error.copy()
        error[at] = np.maximum(error[at], self.error_sums[answered] / weights)
        return values, error

    def finish(self) -> None:
        """Take the averages for good."""
        self.values, self.error = self._average()

    def filled(self) -> FilledPixels:
        return FilledPixels(self.places, self.values, self.error)

    def image(self, values: np.ndarray | None = None) -> np.ndarray:
        """The whole image (H, W, C) at this scale, float32."""
        image = self.pixels.astype(np.float32)
        image /= self.peak
        image.reshape(-1, image.shape[2])[self.places] = self.values if values is None else values
        return image

    def error_image(self) -> np.ndarray | None:
        """Expected errors (H, W) at this scale, 0 where pixels are known."""
        if self.error is None:
            return None
        image = np.zeros(self.shape, np.float32)
        image.ravel()[self.places] = self.error
        return image


def sample_bilinear(image_HWC: np.ndarray, y_n: np.ndarray, x_n: np.ndarray) -> np.ndarray:
    """Values (n, C) between the pixels of an image, at float32 coordinates of rows and columns;
    extrapolated linearly beyond the border, clipped to 0..1."""
    low_high_share = []
    for position, length in ((y_n, image_HWC.shape[0]), (x_n, image_HWC.shape[1])):
        low = np.clip(np.floor(position), 0, max(length - 2, 0)).astype(np.intp)
        share = (position - low).astype(np.float32)[:, None]
        low_high_share.append((low, np.minimum(low + 1, length - 1), share))
    (top, bottom, down), (left, right, along) = low_high_share
    above = image_HWC[top, left] * (1 - along) + image_HWC[top, right] * along
    below = image_HWC[bottom, left] * (1 - along) + image_HWC[bottom, right] * along
    return np.clip(above * (1 - down) + below * down, 0, 1)


def _halve_places(places: np.ndarray, width: int, times: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows and columns of pixels in an image halved `times` times."""
    y, x = (at.astype(np.float32) for at in np.divmod(places, width))
    for _ in range(times):
        y, x = (y - 0.5) / 2, (x - 0.5) / 2
    return y, x


def _enlarge(full: _Scale, scale: _Scale, depth: int, values: np.ndarray) -> FilledPixels:
    """The hidden pixels at full size, as a smaller scale has them."""
    if depth == 0:
        return FilledPixels(full.places, values, None)
    at = _halve_places(full.places, full.shape[1], depth)
    return FilledPixels(full.places, sample_bilinear(scale.image(values), *at), None)


def _fade(start: int, length: int, size: int) -> np.ndarray:
    """Weights along one axis, which fall to zero at the ends of a window except at the border of
    the image."""
    weight = np.sin(np.pi * (np.arange(size, dtype=np.float32) + 0.5) / size) ** 2
    if start <= 0:
        weight[: size // 2] = 1
    if start + size >= length:
        weight[size // 2 :] = 1
    return weight
