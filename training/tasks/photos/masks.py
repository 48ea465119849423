"""Holes of windows as people make them: strokes, writing, blocks and ellipses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import matplotlib
import numpy as np
from PIL import Image, ImageDraw, ImageFont

KINDS = ("strokes", "writing", "shapes", "wide strokes", "mixed")
_SHARES = (0.36, 0.28, 0.15, 0.11, 0.10)
_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.,!?@&    "
_MARGIN = 8  # pixels on each side that windows may be cut from

Draw = Callable[[ImageDraw.ImageDraw, np.random.Generator, int], None]


_FONT_NAMES = (
    *("DejaVuSans-Bold", "DejaVuSans-BoldOblique", "DejaVuSans-Oblique", "DejaVuSans"),
    *("DejaVuSansDisplay", "DejaVuSansMono-Bold", "DejaVuSansMono-BoldOblique"),
    *("DejaVuSansMono-Oblique", "DejaVuSansMono", "DejaVuSerif-Bold", "DejaVuSerif-BoldItalic"),
    *("DejaVuSerif-Italic", "DejaVuSerif", "DejaVuSerifDisplay", "LastResortHE-Regular"),
    *("STIXGeneral", "STIXGeneralBol", "STIXGeneralBolIta", "STIXGeneralItalic"),
    *("cmb10", "cmmi10", "cmr10", "cmss10", "cmti10", "cmtt10"),
)


def list_fonts() -> list[Path]:
    """25 fonts that matplotlib ships, in an order that does not depend on its version."""
    folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    return [folder / f"{name}.ttf" for name in _FONT_NAMES]


_FONTS = list_fonts()


def draw_mask(rng: np.random.Generator, size: int) -> tuple[np.ndarray, int]:
    """A mask, bool (size, size), true where hidden, and the place of its kind in `KINDS`.

    Between 1.5 and 55 % of what is 8 pixels off the border is hidden.
    """
    while True:
        kind = int(rng.choice(len(KINDS), p=_SHARES))
        image = Image.new("L", (size, size))
        pen = ImageDraw.Draw(image)
        for draw in _draws(kind, rng):
            draw(pen, rng, size)
        if rng.random() < 0.3:
            image = image.rotate(rng.uniform(-20, 20))
        mask = np.asarray(image) > 110
        if 0.015 < mask[_MARGIN:-_MARGIN, _MARGIN:-_MARGIN].mean() < 0.55:
            return mask, kind


def draw_masks(count: int, size: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """`count` masks, bool (n, size, size), and their kinds (n,)."""
    rng = np.random.default_rng(seed)
    masks, kinds = zip(*(draw_mask(rng, size) for _ in range(count)), strict=True)
    return np.stack(masks), np.array(kinds)


def _draws(kind: int, rng: np.random.Generator) -> tuple[Draw, ...]:
    second: Draw = _draw_shapes if rng.random() < 0.25 else _draw_writing
    by_kind = ((_draw_thin,), (_draw_writing,), (_draw_shapes,), (_draw_wide,))
    return (*by_kind, (_draw_few_thin, second))[kind]


def _draw_thin(pen: ImageDraw.ImageDraw, rng: np.random.Generator, size: int) -> None:
    _draw_strokes(pen, rng, size, (1, 7), 4)


def _draw_few_thin(pen: ImageDraw.ImageDraw, rng: np.random.Generator, size: int) -> None:
    _draw_strokes(pen, rng, size, (1, 7), 2)


def _draw_wide(pen: ImageDraw.ImageDraw, rng: np.random.Generator, size: int) -> None:
    _draw_strokes(pen, rng, size, (8, 24), 2)


def _draw_strokes(
    pen: ImageDraw.ImageDraw,
    rng: np.random.Generator,
    size: int,
    widths: tuple[int, int],
    most: int,
) -> None:
    for _ in range(rng.integers(1, most + 1)):
        width = int(rng.integers(widths[0], widths[1] + 1))
        points = [(float(x), float(y)) for x, y in draw_curve(rng, size)]
        pen.line(points, fill=255, width=width, joint="curve")
        if rng.random() < 0.5:  # round ends
            for x, y in (points[0], points[-1]):
                pen.ellipse((x - width / 2, y - width / 2, x + width / 2, y + width / 2), fill=255)


def draw_curve(rng: np.random.Generator, size: int) -> np.ndarray:
    """33 points (33, 2) of a cubic Bezier curve, four in ten nearly straight."""
    control = rng.uniform(-0.2 * size, 1.2 * size, (4, 2))
    if rng.random() < 0.4:
        control[1:3] = np.linspace(control[0], control[3], 4)[1:3] + rng.normal(0, 2, (2, 2))
    t = np.linspace(0, 1, 33)[:, None]
    weights = (1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t * t * (1 - t), t**3
    return sum((w * point for w, point in zip(weights, control, strict=True)), np.zeros((33, 2)))


def _draw_writing(pen: ImageDraw.ImageDraw, rng: np.random.Generator, size: int) -> None:
    height = int(rng.integers(24, 44) if rng.random() < 0.3 else rng.integers(9, 26))
    font = ImageFont.truetype(str(_FONTS[rng.integers(len(_FONTS))]), height)
    y = rng.uniform(-height, height)
    while y < size:
        text = "".join(rng.choice(list(_LETTERS), 30))
        bold = int(rng.random() < 0.3)
        pen.text((rng.uniform(-30, 0), y), text, fill=255, font=font, stroke_width=bold)
        y += height * rng.uniform(1.1, 2.5)
        if rng.random() < 0.25:
            break


def _draw_shapes(pen: ImageDraw.ImageDraw, rng: np.random.Generator, size: int) -> None:
    for _ in range(rng.integers(1, 4)):
        width, height = rng.uniform(5, 36, 2)
        x, y = (
            rng.uniform(-width / 2, size - width / 2),
            rng.uniform(-height / 2, size - height / 2),
        )
        shape = pen.rectangle if rng.random() < 0.6 else pen.ellipse
        shape((x, y, x + width, y + height), fill=255)
