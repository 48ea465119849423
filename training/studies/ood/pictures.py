"""Pictures with holes and pictures to recognise, a network's own and other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, cast

import numpy as np
from PIL import Image

from models.architectures.ait import AiT
from models.base import Architecture
from models.checkpoint import Checkpoint
from models.inputs.patches import MaskedImage
from models.tasks.image_completer import ImageCompleter
from training.datasets import load_images
from training.datasets.nodes import draw_sample
from training.provenance import load_image_data, load_labeled_image_data
from training.studies.ood.rows import SAME_ROWS, RowBatches, RowSet, StudyRows
from training.tasks.complete.evaluate import draw_occlusion
from training.tasks.images.export import samples_to_inputs

_AT_A_TIME = 64
_OTHER = ("mnist", "cifar10", "tiny-imagenet")


def load_completion_rows(
    checkpoint: Checkpoint, folder: Path | None, most: int, fitted: int
) -> StudyRows:
    """Images of which the share is hidden that the network was trained to fill most of the time."""
    if not isinstance(checkpoint.network, ImageCompleter):
        raise ValueError(f"{checkpoint.manifest.name}: this study does not support et-window")
    network = checkpoint.network
    dataset, c = load_image_data(checkpoint.manifest, folder), network.config
    usual = cast(dict[str, float], checkpoint.manifest.training["recipe"])["occluded"]

    def of(images: np.ndarray, share: float = usual) -> RowSet:
        masks = draw_occlusion(0, len(images), c.size // c.patch, share)
        return _rows(network, list(map(MaskedImage, images, masks)), network.codec.num_patches)

    train, val, test = (
        dataset.images[draw_sample(part, count)]
        for part, count in zip(dataset.split.parts().values(), (fitted, most, most), strict=True)
    )
    others = _foreign(dataset.name, c.size, c.channels, folder, most) | _spoiled(test)
    one_class = np.zeros(len(train), np.int64)
    return StudyRows(
        {"train": replace(of(train), labels=one_class), "val": of(val), "test": of(test)},
        {name: of(images) for name, images in others.items()}
        | {f"{SAME_ROWS}, {100 * share:g} % hidden": of(test, share) for share in (0.15, 0.85)},
    )


def load_labeled_image_rows(
    checkpoint: Checkpoint, folder: Path | None, most: int, fitted: int
) -> StudyRows:
    """Pictures with a question where the network answers one; others get that of a test sample."""
    network = cast(AiT, checkpoint.network)
    dataset, c = load_labeled_image_data(checkpoint.manifest, folder), network.config
    parts = dataset.split.parts()
    train, val, test = (
        draw_sample(parts[part], count)
        for part, count in (("train", fitted), ("val", most), ("test", most))
    )

    def own(samples: np.ndarray) -> RowSet:
        return _rows(
            network, samples_to_inputs(dataset, samples), c.num_tokens, dataset.labels[samples]
        )

    def of(images: np.ndarray) -> RowSet:
        asked = samples_to_inputs(dataset, test[: len(images)])
        shown = images.transpose(0, 3, 1, 2).astype(np.float32) / 255
        told = zip(asked, shown, strict=True)
        return _rows(network, [replace(one, pixels=pixels) for one, pixels in told], c.num_tokens)

    images = dataset.pixels[dataset.image_ids[test]].transpose(0, 2, 3, 1)
    channels, _, size = c.shape
    others = _foreign(dataset.name, size, channels, folder, most) | _spoiled(images)
    return StudyRows(
        {"train": own(train), "val": own(val), "test": own(test)},
        {name: of(images) for name, images in others.items()},
    )


def _rows(
    network: Architecture, items: Sequence[Any], tokens: int, labels: np.ndarray | None = None
) -> RowSet:
    def pose() -> RowBatches:
        left = iter(items)
        while part := list(islice(left, _AT_A_TIME)):
            yield network.pack(part), np.full(len(part), tokens), np.arange(len(part))

    return RowSet(pose, labels)


def _foreign(
    own: str, size: int, channels: int, folder: Path | None, most: int
) -> dict[str, np.ndarray]:
    """Test images of other datasets as a client sends them: scaled, and in its colours."""
    held = {own} | ({"cifar10", "tiny-imagenet"} if own == "photos" else set())
    found = {}
    for name in _OTHER:
        if name not in held:
            other = load_images(name, folder)
            images = other.images[draw_sample(other.split.test, most)]
            found[name] = np.stack([_as(image, size, channels) for image in images])
    return found


def _as(image: np.ndarray, size: int, channels: int) -> np.ndarray:
    mode = "L" if channels == 1 else "RGB"
    drawn_on = Image.fromarray(image.squeeze()).convert(mode)
    scaled = drawn_on.resize((size, size), Image.Resampling.BICUBIC)
    return np.asarray(scaled).reshape(size, size, channels)


def _spoiled(images: np.ndarray) -> dict[str, np.ndarray]:
    """Images (R, S, S, C) of its own, sent wrongly."""
    rng = np.random.default_rng(0)
    flat = images.reshape(len(images), -1, images.shape[3])
    order = rng.random(flat.shape[:2]).argsort(1)[..., None]
    reversed_too = {"red and blue exchanged": images[..., ::-1]} if images.shape[3] == 3 else {}
    return {
        "negatives": 255 - images,
        **reversed_too,
        "upside down": images[:, ::-1],
        "pixels in another order": np.take_along_axis(flat, order, 1).reshape(images.shape),
    }
