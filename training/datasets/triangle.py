"""Triangle: do three clusters of points form an equilateral triangle?

After Goyal et al. 2022 as Associative Transformer's code draws them; written from the rules.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from models.tasks.graph_classifier import ClassificationTask
from training.datasets.labeled_images import LabeledImageDataset, consecutive_split

IMAGE_SIDE = 64
PART_SIZES = {"train": 50_000, "val": 5_000, "test": 10_000}
TASK = ClassificationTask(name="triangle", labels=("equilateral", "other"))

_LOW, _HIGH = 1, IMAGE_SIDE - 1  # of a centre, both included: its points lie within one pixel of it
_CHUNK = 4096
_DISC = np.argwhere(np.add.outer(np.arange(-2, 3) ** 2, np.arange(-2, 3) ** 2) <= 4) - 2


def load_triangle(sizes: Mapping[str, int] = PART_SIZES, *, seed: int = 0) -> LabeledImageDataset:
    """Pictures of parts that are drawn from seeds of their own."""
    parts = [
        random_triangles(sizes[part], (seed, i)) for i, part in enumerate(("train", "val", "test"))
    ]
    pixels, labels, _ = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    split = consecutive_split(sizes, f"generated-{seed}")
    note = "Generated; pictures that only happen to be equilateral are drawn again."
    every = np.arange(len(labels))
    return LabeledImageDataset(
        "triangle", pixels, labels, TASK, split, every, note=note, generate=_more
    )


def _more(count: int, seed: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    return random_triangles(count, seed)[:2]


def random_triangles(
    count: int, seed: int | tuple[int, ...]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Pictures (I, 1, 64, 64) of 0 and 255, labels (I,), and centres (I, 3, 2) as x and y.

    A cluster is four points within a pixel of its centre and their reflections through it, each
    drawn as a disc of radius 2. Which of the two a picture is to be is a fair coin. Where another
    triangle happens to be what `equilateral` would make, the reference keeps it; here it is drawn
    again, and so is a triangle that is one point.
    """
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 2, count)
    centres = np.zeros((count, 3, 2), np.int64)
    missing = np.arange(count)
    while len(missing):
        drawn = rng.integers(_LOW, _HIGH + 1, (len(missing), 3, 2))
        even = labels[missing] == 0
        drawn[even, 2] = third_corner(drawn[even, 0], drawn[even, 1])
        inside = ((drawn >= _LOW) & (drawn <= _HIGH)).all((1, 2))
        apart = (drawn[:, 0] != drawn[:, 1]).any(1)
        right = inside & apart & (is_equilateral(drawn) == even)
        centres[missing[right]] = drawn[right]
        missing = missing[~right]
    offsets = rng.integers(-1, 2, (count, 3, 4, 2))
    points = centres[:, :, None] + np.concatenate([offsets, -offsets], 2)
    return _paint(points.reshape(count, -1, 2)), labels, centres


def third_corner(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """The corner (I, 2) 60 degrees from the second as seen from the first, cut to whole pixels."""
    (dx, dy), (cos, sin) = (second - first).T, (math.cos(math.pi / 3), math.sin(math.pi / 3))
    turned = np.stack([cos * dx + sin * dy, cos * dy - sin * dx], -1)
    return np.trunc(first + turned).astype(np.int64)


def is_equilateral(centres: np.ndarray) -> np.ndarray:
    """Would `third` make any corner of each (I, 3, 2) from the other two, either way round?"""
    found = np.zeros(len(centres), bool)
    for a, b in ((0, 1), (1, 2), (2, 0)):
        for one, other in ((a, b), (b, a)):
            made = third_corner(centres[:, one], centres[:, other])
            found |= (made == centres[:, 3 - a - b]).all(1)
    return found


def _paint(points: np.ndarray) -> np.ndarray:
    """Discs at points (I, K, 2), cut off at the edges: (I, 1, 64, 64)."""
    pixels = np.zeros((len(points), 1, IMAGE_SIDE, IMAGE_SIDE), np.uint8)
    for start in range(0, len(points), _CHUNK):
        of_chunk = points[start : start + _CHUNK]
        at = (of_chunk[:, :, None] + _DISC).reshape(len(of_chunk), -1, 2)
        picture, which = np.nonzero(((at >= 0) & (at < IMAGE_SIDE)).all(-1))
        x, y = at[picture, which].T
        pixels[start + picture, 0, y, x] = 255
    return pixels
