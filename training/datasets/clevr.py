"""Sort-of-CLEVR: questions on one of six objects, on its relation to the others, and on pairs.

After Santoro et al. 2017; written from the rules of kimhc6028/relational-networks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from models.inputs.questions import ANSWERS, COLORS, QUESTIONS, encode_question
from models.tasks.graph_classifier import ClassificationTask
from training.datasets.labeled_images import LabeledImageDataset, consecutive_split

IMAGE_SIDE, OBJECT_RADIUS, QUESTIONS_PER_KIND = 75, 5, 10
PART_SIZES = {"train": 9_800, "val": 500, "test": 1_000}
TASK = ClassificationTask(name="answer", labels=ANSWERS)
KINDS = ("non-relational", "relational")

_RGB = ((255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 156, 0), (128, 128, 128), (255, 255, 0))
_BAND = 12  # pixels above and below a line that still count as on it
_AROUND = np.arange(-OBJECT_RADIUS, OBJECT_RADIUS + 1)
_DISC = np.add.outer(_AROUND**2, _AROUND**2) <= OBJECT_RADIUS**2


@dataclass(frozen=True)
class Scene:
    """Centres (6, 2) as x and y, and which objects are circles (6,); one object of each colour."""

    centers: np.ndarray
    is_circle: np.ndarray


def load_clevr(
    sizes: Mapping[str, int] = PART_SIZES, *, kinds: Sequence[str] = KINDS, seed: int = 0
) -> LabeledImageDataset:
    """Ten questions of each kind on each scene; parts are drawn from seeds of their own."""
    every: list[Scene] = []
    questions, labels, of_kind = [], [], []
    for i, part in enumerate(("train", "val", "test")):
        rng = np.random.default_rng((seed, i, 1))
        of_part = random_scenes(sizes[part], (seed, i))
        for scene, kind in product(of_part, kinds):
            for _ in range(QUESTIONS_PER_KIND):
                question, label = random_question(scene, kind, rng)
                questions.append(question)
                labels.append(label)
                of_kind.append(kinds.index(kind))
        every += of_part
    per_scene = QUESTIONS_PER_KIND * len(kinds)
    split = consecutive_split({p: per_scene * n for p, n in sizes.items()}, f"generated-{seed}")
    return LabeledImageDataset(
        "sort-of-clevr",
        np.stack([render_scene(scene) for scene in every]),
        np.array(labels),
        TASK,
        split,
        np.repeat(np.arange(len(every)), per_scene),
        np.stack(questions),
        np.array(of_kind),
        tuple(kinds),
        note="Generated; no question on an object as near, or as far, as one of another shape.",
    )


def random_scenes(count: int, seed: int | tuple[int, ...]) -> list[Scene]:
    """Six objects each, in the order of the colours, no two centres within two radii."""
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        centres: list[np.ndarray] = []
        while len(centres) < len(COLORS):
            at = rng.integers(OBJECT_RADIUS, IMAGE_SIDE - OBJECT_RADIUS, 2)
            if all(((at - other) ** 2).sum() >= (2 * OBJECT_RADIUS) ** 2 for other in centres):
                centres.append(at)
        found.append(Scene(np.stack(centres), rng.random(len(COLORS)) < 0.5))
    return found


def render_scene(scene: Scene) -> np.ndarray:
    """A picture (3, 75, 75) of squares and discs on white, in bytes; later colours lie on top."""
    pixels = np.full((3, IMAGE_SIDE, IMAGE_SIDE), 255, np.uint8)
    for (x, y), circle, colour in zip(scene.centers, scene.is_circle, _RGB, strict=True):
        window = pixels[
            :, y - OBJECT_RADIUS : y + OBJECT_RADIUS + 1, x - OBJECT_RADIUS : x + OBJECT_RADIUS + 1
        ]
        window[:, _DISC if circle else np.ones_like(_DISC)] = np.array(colour, np.uint8)[:, None]
    return pixels


def random_question(scene: Scene, kind: str, rng: np.random.Generator) -> tuple[np.ndarray, int]:
    """A question of a kind and the place of its answer; another where ties leave it open.

    The reference answers those by the order of the colours, which no picture shows.
    """
    while True:
        asked = int(rng.integers(len(QUESTIONS[kind])))
        if kind == "ternary":  # of the first five colours, as in the reference
            a, b = (int(i) for i in rng.choice(len(COLORS) - 1, 2, replace=False))
            answer = _on_two(scene, asked, a, b)
            return _encoded(kind, asked, a, b), ANSWERS.index(answer)
        a = int(rng.integers(len(COLORS)))
        answer = answer_about_object(scene, kind, asked, a)
        if answer is not None:
            return _encoded(kind, asked, a), ANSWERS.index(answer)


def answer_about_object(scene: Scene, kind: str, asked: int, a: int) -> str | None:
    """The answer to a question on one object; None where ties leave it open."""
    return _on_one(scene, asked, a) if kind == "non-relational" else _related(scene, asked, a)


def _encoded(kind: str, asked: int, a: int, b: int | None = None) -> np.ndarray:
    return encode_question(
        kind, QUESTIONS[kind][asked], COLORS[a], None if b is None else COLORS[b]
    )


def _on_one(scene: Scene, asked: int, a: int) -> str:
    if asked == 0:
        return _shape(scene.is_circle[a])
    return "yes" if scene.centers[a][asked - 1] < IMAGE_SIDE / 2 else "no"


def _related(scene: Scene, asked: int, a: int) -> str | None:
    if asked == 2:
        return str(int((scene.is_circle == scene.is_circle[a]).sum()) - 1)
    # Infinity and its negative: an object is never the closest to itself, nor the furthest.
    squared = ((scene.centers - scene.centers[a]) ** 2).sum(1).astype(float)
    squared[a] = np.inf if asked == 0 else -np.inf
    shapes = scene.is_circle[squared == (squared.min() if asked == 0 else squared.max())]
    return _shape(shapes[0]) if (shapes == shapes[0]).all() else None


def _on_two(scene: Scene, asked: int, a: int, b: int) -> str:
    at_a, at_b = scene.centers[a], scene.centers[b]
    others = np.delete(scene.centers, [a, b], 0)
    if asked == 0:
        low, high = np.minimum(at_a, at_b), np.maximum(at_a, at_b)
        return str(int(((others >= low) & (others <= high)).all(1).sum()))
    if asked == 1:
        slope = (at_b[1] - at_a[1]) / (at_b[0] - at_a[0] + 1e-10)
        off = others[:, 1] - (at_a[1] + slope * (others[:, 0] - at_a[0]))
        return "yes" if (np.abs(off) <= _BAND).any() else "no"
    # The largest angle is in [90, 180) degrees where the longest side outweighs the others and
    # the corners are not on a line: in whole numbers, so that a right angle is one.
    ab = np.full(len(others), ((at_a - at_b) ** 2).sum())
    sides = np.sort([ab, *(((others - end) ** 2).sum(1) for end in (at_a, at_b))], 0)
    along, out = at_b - at_a, (others - at_a).T
    proper = along[0] * out[1] != along[1] * out[0]
    return str(int((proper & (sides[2] >= sides[0] + sides[1])).sum()))


def _shape(circle: Any) -> str:
    return "circle" if circle else "square"
