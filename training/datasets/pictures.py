"""Pictures with labels, and with questions where there are any."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from models.tasks.graph_classifier import Task
from training.common.results_log import fingerprint
from training.datasets.nodes import Split


@dataclass(frozen=True)
class PictureDataset:
    """Pictures (I, C, H, W) as bytes, and S samples: each a picture with a label of the one task.

    `picture_of` (S,) names the picture of each sample, and `questions` (S, Q), where there are
    any, what it asks. `kinds` (S,) parts the samples for the tables; `names` names the kinds.
    `draw`, where pictures are generated, makes so many more of them with their labels, by a seed.
    """

    name: str
    pixels: np.ndarray
    labels: np.ndarray
    task: Task
    split: Split
    picture_of: np.ndarray
    questions: np.ndarray | None = None
    kinds: np.ndarray | None = None
    names: tuple[str, ...] = ()
    note: str = ""
    draw: Callable[[int, tuple[int, ...]], tuple[np.ndarray, np.ndarray]] | None = None

    def __post_init__(self) -> None:
        samples = len(self.labels)
        if self.pixels.dtype != np.uint8 or self.pixels.ndim != 4:
            raise ValueError(f"{self.name}: pictures must be bytes, by channels")
        if len(self.picture_of) != samples or self.picture_of.max() >= len(self.pixels):
            raise ValueError(f"{self.name}: labels and pictures do not fit each other")
        if self.questions is not None and len(self.questions) != samples:
            raise ValueError(f"{self.name}: labels and questions do not fit each other")
        if not ((self.labels >= 0) & (self.labels < len(self.task.labels))).all():
            raise ValueError(f"{self.name}: a label is not one of {self.task.name}")

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of all that a result depends on beside its recipe."""
        given = (self.questions, self.kinds)
        arrays = [self.pixels, self.labels, self.picture_of, *self.split.parts().values()]
        names = repr((self.task, self.names)).encode()
        return fingerprint(
            np.frombuffer(names, np.uint8), *arrays, *(a for a in given if a is not None)
        )


def in_parts(sizes: Mapping[str, int], name: str) -> Split:
    """Samples that lie one part after the other: train, val, test."""
    ends = np.cumsum([sizes[part] for part in ("train", "val", "test")])
    train, val, test = np.split(np.arange(ends[-1]), ends[:-1])
    return Split(name, train, val, test)
