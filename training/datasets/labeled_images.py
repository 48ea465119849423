"""Pictures with labels, and with questions where there are any."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from models.tasks.graph_classifier import ClassificationTask
from training.common.results_log import hash_arrays
from training.datasets.nodes import Split


@dataclass(frozen=True)
class LabeledImageDataset:
    """Labeled samples of one classification task.

    Attributes:
        pixels: images (I, C, H, W), uint8.
        labels: class of each sample, (S,).
        image_ids: row of `pixels` that each sample shows, (S,).
        questions: what each sample asks, (S, Q), where the task asks.
        kind_ids: group of each sample in the result tables, (S,); `kind_names` names the groups.
        generate: draws more images and their labels from a count and a seed.
    """

    name: str
    pixels: np.ndarray
    labels: np.ndarray
    task: ClassificationTask
    split: Split
    image_ids: np.ndarray
    questions: np.ndarray | None = None
    kind_ids: np.ndarray | None = None
    kind_names: tuple[str, ...] = ()
    note: str = ""
    generate: Callable[[int, tuple[int, ...]], tuple[np.ndarray, np.ndarray]] | None = None

    def __post_init__(self) -> None:
        samples = len(self.labels)
        if self.pixels.dtype != np.uint8 or self.pixels.ndim != 4:
            raise ValueError(f"{self.name}: pictures must be bytes, by channels")
        if len(self.image_ids) != samples or self.image_ids.max() >= len(self.pixels):
            raise ValueError(f"{self.name}: labels and pictures do not fit each other")
        if self.questions is not None and len(self.questions) != samples:
            raise ValueError(f"{self.name}: labels and questions do not fit each other")
        if not ((self.labels >= 0) & (self.labels < len(self.task.labels))).all():
            raise ValueError(f"{self.name}: a label is not one of {self.task.name}")

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of all that a result depends on beside its recipe."""
        given = (self.questions, self.kind_ids)
        arrays = [self.pixels, self.labels, self.image_ids, *self.split.parts().values()]
        names = repr((self.task, self.kind_names)).encode()
        return hash_arrays(
            np.frombuffer(names, np.uint8), *arrays, *(a for a in given if a is not None)
        )


def consecutive_split(sizes: Mapping[str, int], name: str) -> Split:
    """Samples that lie one part after the other: train, val, test."""
    ends = np.cumsum([sizes[part] for part in ("train", "val", "test")])
    train, val, test = np.split(np.arange(ends[-1]), ends[:-1])
    return Split(name, train, val, test)
