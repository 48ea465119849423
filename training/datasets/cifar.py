"""CIFAR-10 as JPEG files, one folder a class."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from sklearn.model_selection import train_test_split

from models.tasks.graph_classifier import ClassificationTask
from training.datasets.files import decode_jpeg, read_jpegs
from training.datasets.labeled_images import LabeledImageDataset
from training.datasets.nodes import Split
from training.datasets.sources import data_folder


def load_cifar10(
    folder: Path | None = None, *, max_per_class: int | None = None
) -> LabeledImageDataset:
    """The official train and test parts; a tenth of the first, stratified, to choose by.

    Reads `images/cifar10_jpeg/` in `folder`: the archive, or what is in it. JPEG loses something,
    so figures are a little below those of the original pixels. `each` limits the number of
    images of each class and part.

    Raises:
        FileNotFoundError: saying what to put where.
    """
    root = (folder or data_folder()) / "images" / "cifar10_jpeg" / "CIFAR-10-images"
    found: dict[str, bytes] = {}
    seen: dict[str, int] = {}
    for name, data in read_jpegs(root):
        place = name.rpartition("/")[0]
        seen[place] = seen.get(place, 0) + 1
        if max_per_class is None or seen[place] <= max_per_class:
            found[name] = data
    names = sorted(found)
    classes = sorted({name.split("/")[1] for name in names})
    pixels = np.stack([decode_jpeg(found[name]) for name in names]).transpose(0, 3, 1, 2)
    labels = np.array([classes.index(name.split("/")[1]) for name in names])
    official = np.array([name.startswith("train/") for name in names])
    train, val = train_test_split(
        np.flatnonzero(official), test_size=0.1, random_state=0, stratify=labels[official]
    )
    split = Split("official", np.sort(train), np.sort(val), np.flatnonzero(~official))
    task = ClassificationTask(name="object", labels=tuple(classes))
    every, note = np.arange(len(labels)), "Read from JPEG files."
    return LabeledImageDataset(
        "cifar10", np.ascontiguousarray(pixels), labels, task, split, every, note=note
    )
