"""Fill the unknown part of an image, window by window.

Each pass runs the windows whose share of known pixels is at least half of the largest share. Their
results are known to the next pass, so a hole closes from outside in. Windows overlap by half, and
results are averaged with weights that fall to zero at the borders of a window, across passes too,
so that window borders are not visible.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import cache, partial

import numpy as np

from models.inputs.image_files.data import ImageData
from models.inputs.patches import patch_mask_to_pixels
from service.endpoints.complete.tiling import (
    Level,
    Plan,
    doubled,
    halved,
    places,
    shares_of,
    starved,
)
from service.errors import make_problem

Filler = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""Maps windows (B, S, S, C) float32 in [0, 1] and occluded patches (B, S/p, S/p) bool to completed
windows (B, S, S, C). Unknown pixels of a window are 0, or a guess from the next smaller scale."""

Blend = Callable[[np.ndarray], ImageData]
"""Returns the image that would result if the current windows were filled with these values."""

_BATCH = 16
_SETTLED = 0.24  # a window has a weight of 0.25 or more in the cell that it is around
_LEAST = np.float32(1e-6)  # divisor
_MOSTLY = 0.5
_OPAQUE = 255


class Preview:
    """Lets a filler render intermediate values: `blend` is set while it fills windows."""

    blend: Blend


def complete(
    image: ImageData,
    plan: Plan,
    filler: Filler,
    channels: int = 3,
    preview: Preview | None = None,
) -> ImageData:
    """Return `image` with its unknown pixels filled and opaque, and known pixels unchanged.

    Args:
        channels: number of channels that `filler` takes. Grayscale is repeated for three; RGB is
            filled channel by channel for one.

    Raises:
        Problem: `diverged`, if a value of `filler` is not finite.
    """
    unknown, peak = plan.levels[0].unknown, np.iinfo(image.pixels.dtype).max
    state = image.pixels.astype(np.float32)
    state /= peak
    state[unknown] = 0
    written = partial(_written, image, unknown, peak)
    fitted = _Fitted(filler, image.pixels.shape[2], channels, preview)
    _fill(state, plan, 0, fitted, written)
    return written(state)


def _written(image: ImageData, unknown: np.ndarray, peak: int, state: np.ndarray) -> ImageData:
    """Return `image` with its `unknown` pixels taken from `state` (H, W, C) in [0, 1]."""
    pixels, alpha = image.pixels.copy(), image.alpha
    pixels[unknown] = np.rint(state[unknown] * peak).astype(pixels.dtype)
    if alpha is not None:
        alpha = np.where(unknown, np.uint8(_OPAQUE), alpha)
    return replace(image, pixels=pixels, alpha=alpha)


@dataclass(frozen=True)
class _Fitted:
    """`filler` for windows of `image_channels` channels where it reads `model_channels`."""

    filler: Filler
    image_channels: int
    model_channels: int
    preview: Preview | None

    def __call__(self, windows: np.ndarray, occluded: np.ndarray, blend: Blend) -> np.ndarray:
        if self.preview is not None:
            self.preview.blend = lambda answers: blend(self._back(answers))
        try:
            return self._back(self._answers(windows, occluded))
        finally:
            if self.preview is not None:
                del self.preview.blend  # else it holds the image that holds it

    def _answers(self, windows: np.ndarray, occluded: np.ndarray) -> np.ndarray:
        if self.image_channels < self.model_channels:
            windows = np.repeat(windows, self.model_channels, axis=-1)
        elif self.image_channels > self.model_channels:
            windows = np.concatenate(np.split(windows, self.image_channels, axis=-1))
            occluded = np.concatenate([occluded] * self.image_channels)
        return self.filler(windows, occluded)

    def _back(self, answers: np.ndarray) -> np.ndarray:
        if self.image_channels < self.model_channels:
            return answers.mean(axis=-1, keepdims=True)
        if self.image_channels > self.model_channels:
            return np.concatenate(np.split(answers, self.image_channels), axis=-1)
        return answers


def _fill(state: np.ndarray, plan: Plan, depth: int, filler: _Fitted, written: Blend) -> None:
    """Fill the unknown pixels of `state` (H, W, C) of level `depth` in place.

    Args:
        written: returns the full image for a state of this level.
    """
    level = plan.levels[depth]
    guide = None
    if level.guided:
        guide = halved(state, ~level.unknown)
        if depth + 1 < len(plan.levels):  # else nothing is unknown there
            _fill(guide, plan, depth + 1, filler, lambda g: written(_guessed(state, level, g)))
    filling = _Filling(state, level, guide, plan)
    for corners in filling.passes():
        for start in range(0, len(corners), _BATCH):
            filling.run(corners[start : start + _BATCH], filler, written)
        filling.settle()


def _guessed(state: np.ndarray, level: Level, guide: np.ndarray) -> np.ndarray:
    """Return `state` with unknown pixels interpolated from the next smaller level."""
    height, width = level.unknown.shape
    large = doubled(guide, np.arange(height), np.arange(width))
    return np.where(level.unknown[..., None], large, state)


@dataclass(frozen=True)
class _Window:
    """Where a window is: the rows and columns it shows, mirror images included, and the part of
    the image and of the window that are the same."""

    rows: np.ndarray
    columns: np.ndarray
    outer: tuple[slice, slice]
    inner: tuple[slice, slice]
    blend: np.ndarray

    @classmethod
    def at(cls, corner: Sequence[int], shape: Sequence[int], size: int) -> _Window:
        (top, left), (height, width) = corner, shape
        rows, within_rows = places(top, height, size)
        columns, within_columns = places(left, width, size)
        blend = np.outer(_fade(top, height, size), _fade(left, width, size))
        inner = within_rows, within_columns
        outer = _moved(within_rows, top), _moved(within_columns, left)
        return cls(rows, columns, outer, inner, blend[inner])


def _moved(part: slice, by: int) -> slice:
    return slice(part.start + by, part.stop + by)


def _fade(start: int, length: int, size: int) -> np.ndarray:
    """Blending weight along one axis: falls to zero at the ends of a window, except at the border
    of the image."""
    weight = np.sin(np.pi * (np.arange(size, dtype=np.float32) + 0.5) / size) ** 2
    if start <= 0:
        weight[: size // 2] = 1
    if start + size >= length:
        weight[size // 2 :] = 1
    return weight


class _Filling:
    """One level while it is filled. `weight` is that of all answers for a pixel so far, of which
    `state` is the mean. `trust` is how much of it was there before this pass: 1 where the pixel is
    known or has had enough, and is context for windows to come, which no longer change it."""

    def __init__(
        self, state: np.ndarray, level: Level, guide: np.ndarray | None, plan: Plan
    ) -> None:
        self.state, self.unknown, self.guide, self.plan = state, level.unknown, guide, plan
        self.level = level
        self.trust = (~level.unknown).astype(np.float32)
        self.weight = np.zeros(level.unknown.shape, np.float32)
        self.waiting = level.corners
        self.blur = _blur(plan.size)

    def passes(self) -> Iterator[list[list[int]]]:
        """The windows that are next, by their corners, until all have run."""
        while len(self.waiting):
            seen = np.array([self._seen(corner) for corner in self.waiting.tolist()])
            now = seen >= seen.max() / 2
            corners, self.waiting = self.waiting[now], self.waiting[~now]
            yield corners.tolist()

    def _seen(self, corner: Sequence[int]) -> float:
        """Share of the pixels of a window that are known or settled."""
        top, left = (max(start, 0) for start in corner)
        bottom, right = (start + self.plan.size for start in corner)
        return float((self.trust[top:bottom, left:right] == 1).mean())

    def run(self, corners: Sequence[Sequence[int]], filler: _Fitted, written: Blend) -> None:
        """Fill a batch of windows, and average the answers into the state."""
        windows = [_Window.at(corner, self.unknown.shape, self.plan.size) for corner in corners]
        shown, occluded = zip(*map(self._shown, windows), strict=True)
        shown, occluded = np.clip(np.stack(shown), 0, 1), np.stack(occluded)

        def blend(answers: np.ndarray) -> ImageData:
            trial = copy(self)
            trial.state, trial.weight = self._so_far(), self.weight.copy()
            trial._average(windows, shown, occluded, np.nan_to_num(answers))
            return written(trial.state)

        answers = filler(shown, occluded, blend)
        if not np.isfinite(answers).all():
            rule = (
                "The dynamics diverged: a pixel became infinite or NaN. Lower `step_size`, "
                "`steps` or `noise`."
            )
            raise make_problem("diverged", "/dynamics", "diverged", rule)
        self._average(windows, shown, occluded, answers)

    def _average(
        self,
        windows: Sequence[_Window],
        shown: np.ndarray,
        occluded: np.ndarray,
        answers: np.ndarray,
    ) -> None:
        # Of a patch it was shown whole a filler need not say anything.
        as_shown = ~patch_mask_to_pixels(occluded, self.plan.patch)
        answers = np.where(as_shown[..., None], shown, answers)
        for window, answer in zip(windows, answers, strict=True):
            answer = np.clip(self._guided(window, answer)[window.inner], 0, 1)
            unknown = self.unknown[window.outer]
            state, weight = self.state[window.outer], self.weight[window.outer]
            # What is nearly settled hardly moves, so what is settled has no border that shows.
            more = window.blend * (1 - self.trust[window.outer])
            total = weight + more
            moved = state + (answer - state) * (more / np.maximum(total, _LEAST))[..., None]
            state[unknown], weight[unknown] = moved[unknown], total[unknown]

    def _so_far(self) -> np.ndarray:
        """The state, with the guide's where no window has answered yet."""
        if self.guide is None:
            return self.state.copy()
        waiting = replace(self.level, unknown=self.unknown & (self.weight == 0))
        return _guessed(self.state, waiting, self.guide)

    def settle(self) -> None:
        """End a pass."""
        np.maximum(self.trust, np.minimum(self.weight / _SETTLED, 1), out=self.trust)

    def _shown(self, window: _Window) -> tuple[np.ndarray, np.ndarray]:
        """What a filler sees of a window: pixels, and which patches it must not trust."""
        at = window.rows[:, None], window.columns
        known = self.trust[at] == 1
        shares = shares_of(known, self.plan.patch)
        rest = np.float32(0)
        if self.guide is not None and starved(known, shares):
            # Better patches with a few guessed pixels than hardly any patch.
            rest, occluded = doubled(self.guide, window.rows, window.columns), shares < _MOSTLY
        else:
            occluded = shares < 1
        return np.where(known[..., None], self.state[at], rest), occluded

    def _guided(self, window: _Window, answer: np.ndarray) -> np.ndarray:
        """`answer` with its large structure, over an eighth of a window, replaced by the guide's
        where the image is unknown."""
        if self.guide is None:
            return answer
        unknown = self.unknown[window.rows[:, None], window.columns].astype(np.float32)
        off = doubled(self.guide, window.rows, window.columns) - answer
        off = np.moveaxis(off * unknown[..., None], -1, 0)
        around = self.blur @ unknown @ self.blur.T
        smooth = self.blur @ off @ self.blur.T / np.maximum(around, _LEAST)
        return answer + np.moveaxis(smooth, 0, -1)


@cache
def _blur(size: int) -> np.ndarray:
    """A Gaussian along one axis of a window, as a matrix."""
    position = np.arange(size, dtype=np.float32)
    blur = np.exp(-0.5 * ((position[:, None] - position) / (size / 8)) ** 2)
    return (blur / blur.sum(axis=1, keepdims=True)).astype(np.float32)
