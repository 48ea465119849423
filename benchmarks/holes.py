"""Holes of whole photographs, as `benchmarks.inpaint` measures them: the same on every machine."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from training.tasks.photos.masks import draw_curve, list_fonts

_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.,!?   "
_WRITING_SHARE = 0.09
SMALLEST = 96  # pixels; of a smaller one a block would leave hardly anything
_FONTS = list_fonts()


def draw_hole(kind: str, name: str, shape: tuple[int, int], seed: int = 0) -> np.ndarray:
    """Hidden pixels, bool (H, W), of one of `KINDS`; the same for a name, shape and seed.

    Raises:
        ValueError: the photograph is smaller than `SMALLEST` along a side.
    """
    height, width = shape
    if min(shape) < SMALLEST:
        need = f"at least {SMALLEST} x {SMALLEST} are needed"
        raise ValueError(f"{name}: {width} x {height} pixels; {need}")
    digest = hashlib.sha256(f"{seed} {kind} {name}".encode()).digest()
    image = Image.new("L", (width, height))
    KINDS[kind](image, np.random.default_rng(list(digest)))
    return np.asarray(image) > 127


def _draw_scratches(image: Image.Image, rng: np.random.Generator) -> None:
    """Eight curves across the photograph, 2 to 6 pixels wide."""
    for _ in range(8):
        _draw_curve(image, rng, int(rng.integers(2, 7)))


def _draw_strokes(image: Image.Image, rng: np.random.Generator) -> None:
    """Two curves 20 pixels wide."""
    for _ in range(2):
        _draw_curve(image, rng, 20)


def _draw_curve(image: Image.Image, rng: np.random.Generator, thick: int) -> None:
    points = draw_curve(rng, 100) / 100 * image.size
    ImageDraw.Draw(image).line(
        [(float(x), float(y)) for x, y in points], fill=255, width=thick, joint="curve"
    )


def _draw_writing(image: Image.Image, rng: np.random.Generator) -> None:
    """Lines of writing in several fonts, until 9 % of the photograph is hidden."""
    pen, (width, height) = ImageDraw.Draw(image), image.size
    while np.asarray(image).mean() / 255 < _WRITING_SHARE:
        font = ImageFont.truetype(str(_FONTS[rng.integers(len(_FONTS))]), int(rng.integers(16, 40)))
        text = "".join(rng.choice(list(_LETTERS), 12))
        place = rng.uniform(-20, width - 60), rng.uniform(-10, height - 20)
        pen.text(place, text, fill=255, font=font)


def _draw_block(image: Image.Image, rng: np.random.Generator) -> None:
    """A square of 64 pixels, 8 or more from the border."""
    x, y = (int(rng.integers(8, side - 72 + 1)) for side in image.size)
    ImageDraw.Draw(image).rectangle((x, y, x + 63, y + 63), fill=255)


KINDS: dict[str, Callable[[Image.Image, np.random.Generator], None]] = {
    "scratches": _draw_scratches,
    "writing": _draw_writing,
    "block": _draw_block,
    "strokes": _draw_strokes,
}
