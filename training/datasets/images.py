"""Images without labels: published sets with their division, and a folder of your own."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import islice
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

from models.inputs.image_files.data import ImageError
from models.inputs.image_files.decode import decode_image
from models.inputs.image_files.header import inspect_header
from training.common.results_log import hash_arrays
from training.datasets.cifar import load_cifar10
from training.datasets.files import decode_jpeg, read_jpegs
from training.datasets.memories import load_mnist_part
from training.datasets.nodes import Split
from training.datasets.sources import data_folder

_SUFFIXES = frozenset(
    (".png", ".jpg", ".jpeg", ".webp", ".avif", ".bmp", ".gif", ".heic", ".heif", ".tif", ".tiff")
)
_MAX_PIXELS = 1 << 28
_CHOSEN_BY = 1000  # most training images that are held back to choose by
_FEWEST = 10


@dataclass(frozen=True)
class ImageDataset:
    """Images uint8 (n, S, S, C), all in memory, and the parts to train, choose by and report on.

    `mirror`: the mirror image of one might as well be another. `sources`: those of the images to
    report on that are also reported on by themselves.
    """

    name: str
    images: np.ndarray
    split: Split
    mirror: bool = True
    note: str = ""
    sources: Mapping[str, np.ndarray] = field(default_factory=dict)

    def __post_init__(self) -> None:
        n, height, width, channels = self.images.shape
        if self.images.dtype != np.uint8 or height != width or channels not in (1, 3):
            raise ValueError(f"{self.name}: images must be uint8 (n, S, S, 1 or 3)")
        parts = np.concatenate(list(self.split.parts().values()))
        if len(np.unique(parts)) != len(parts) or not np.isin(parts, np.arange(n)).all():
            raise ValueError(f"{self.name}: the parts of the split overlap, or leave the images")

    def parts(self) -> dict[str, np.ndarray]:
        """Which images each part is of, those of `sources` too."""
        return self.split.parts() | dict(self.sources)

    @property
    def size(self) -> int:
        return self.images.shape[1]

    @property
    def channels(self) -> int:
        return self.images.shape[3]

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of all that a result depends on beside its recipe."""
        mirror = np.array(self.mirror)
        return hash_arrays(self.images, mirror, *self.split.parts().values())


def load_images(name: str, folder: Path | None = None) -> ImageDataset:
    """One of `IMAGES`, from `folder`/images (default: `data_folder()`).

    Raises:
        FileNotFoundError: saying which file to put where.
        ValueError: for an unknown name.
    """
    if name not in IMAGE_DATASETS:
        raise ValueError(f"unknown dataset {name!r}; known are {', '.join(IMAGE_DATASETS)}")
    return IMAGE_DATASETS[name](folder or data_folder())


def load_mnist(folder: Path) -> ImageDataset:
    """MNIST (LeCun, Cortes, Burges), 28 x 28, with its own test images."""
    train, test = (load_mnist_part(part, folder)[0][..., None] for part in ("train", "t10k"))
    return _official("mnist", train, test, mirror=False)


def load_cifar10_images(folder: Path) -> ImageDataset:
    """CIFAR-10, 32 x 32, of `training.datasets.cifar` without its labels."""
    source = load_cifar10(folder)
    images = source.pixels.transpose(0, 2, 3, 1)
    train = np.union1d(source.split.train, source.split.val)
    note = f"{source.note} They are lossy: figures are not those of the original pixels."
    return _official("cifar10", images[train], images[source.split.test], note=note)


def load_tiny_imagenet(folder: Path, size: int = 64, *, count: int | None = None) -> ImageDataset:
    """Tiny ImageNet, 64 x 64: trained on images of train/ alone, reported on val/ alone.

    Args:
        size: pixels of a side that they are scaled to, bicubic.
        count: take no more of each part, those that the archive has first.
    """
    root = folder / "images" / "tiny_imagenet"
    train, val = (
        _decode_scaled([raw for _, raw in sorted(islice(read_jpegs(root / part), count))], size)
        for part in ("train_first100", "val")
    )
    note = (
        "The first 100 training images of each class; reported on the whole official validation "
        "set, of which nothing is trained on or chosen by. Research use only."
    )
    name = "tiny-imagenet" if size == 64 else f"tiny-imagenet-{size}"
    return _official(name, train, val, note=note)


def _decode_scaled(files: list[bytes], size: int) -> np.ndarray:
    """uint8 (n, size, size, 3), never twice in memory: at 224 pixels 30,000 are 4.5 GB."""
    images = np.empty((len(files), size, size, 3), np.uint8)
    for index, file in enumerate(files):
        image = Image.fromarray(decode_jpeg(file))
        if image.size != (size, size):
            image = image.resize((size, size), Image.Resampling.BICUBIC)
        images[index] = np.asarray(image)
    return images


def load_photos(folder: Path) -> ImageDataset:
    """CIFAR-10 and Tiny ImageNet together, 32 x 32: natural images of two kinds.

    Tiny ImageNet at half its size; of what is trained on also a cut-out of each image, as a window
    of a photograph is one.
    """
    cifar, tiny = load_cifar10_images(folder), load_tiny_imagenet(folder)
    whole, first = _halved(tiny.images), len(cifar.images)
    cuts = _cut(tiny.images[tiny.split.train], cifar.size)
    of_cuts = first + len(whole) + np.arange(len(cuts))
    pairs = zip(cifar.split.parts().values(), tiny.split.parts().values(), strict=True)
    train, val, test = (np.concatenate([one, first + other]) for one, other in pairs)
    return ImageDataset(
        "photos",
        np.concatenate([cifar.images, whole, cuts]),
        Split("official", np.concatenate([train, of_cuts]), val, test),
        note="CIFAR-10 from lossy JPEG files; Tiny ImageNet, research use only, its first 100 "
        "training images of each class, at half size, and cut-outs of those trained on; reported "
        "on its validation images.",
        sources={cifar.name: cifar.split.test, tiny.name: first + tiny.split.test},
    )


def _halved(images: np.ndarray) -> np.ndarray:
    """Each two by two pixels as their mean."""
    n, size, _, channels = images.shape
    cut = images.reshape(n, size // 2, 2, size // 2, 2, channels)
    return ((cut.sum((2, 4), dtype=np.uint16) + 2) // 4).astype(np.uint8)


def _cut(images: np.ndarray, size: int) -> np.ndarray:
    """A square of each, drawn with seed 0."""
    windows = np.lib.stride_tricks.sliding_window_view(images, (size, size), (1, 2))
    down, right = np.random.default_rng(0).integers(0, windows.shape[1], (2, len(images)))
    return windows[np.arange(len(images)), down, right].transpose(0, 2, 3, 1)


IMAGE_DATASETS: dict[str, Callable[[Path], ImageDataset]] = {
    "mnist": load_mnist,
    "cifar10": load_cifar10_images,
    "tiny-imagenet": load_tiny_imagenet,
    "tiny-imagenet-224": partial(load_tiny_imagenet, size=224),
    "photos": load_photos,
}


def load_folder(folder: Path, size: int = 64) -> ImageDataset:
    """Your images, in `folder` or below: cut to their middle square, scaled to `size`, in colour.

    Files are decoded as the server decodes them: upright, 16-bit grey by its upper 8 bits, what is
    transparent on black. A file that cannot be read is named in `note`, and the others are taken.

    80/10/10, drawn with seed 0. What comes again after scaling is left out, so that no image is
    both trained on and reported on.

    Raises:
        ValueError: there are too few images.
    """
    images: dict[bytes, np.ndarray] = {}
    faults: list[str] = []
    count = 0
    for _, _, image in iterate_images(folder, faults.append):
        count += 1
        fitted = ImageOps.fit(Image.fromarray(image), (size, size), Image.Resampling.BICUBIC)
        pixels = np.asarray(fitted)
        images.setdefault(hashlib.sha256(pixels.tobytes()).digest(), pixels)
    n = len(images)
    if n < _FEWEST:
        first = f" First of {len(faults)} that cannot be read: {faults[0]}" if faults else ""
        raise ValueError(f"{folder}: {n} different images; at least {_FEWEST} are needed.{first}")
    order, tenth = np.random.default_rng(0).permutation(n), max(1, n // 10)
    val, test, train = (np.sort(part) for part in np.split(order, [tenth, 2 * tenth]))
    again = count - n
    notes = [f"Left out: {again} that came again."] * bool(again)
    notes += [f"Left out: {fault}" for fault in faults]
    note = " ".join(notes)
    split = Split("random-0", train, val, test)
    return ImageDataset(folder.resolve().name, np.stack(list(images.values())), split, note=note)


def iterate_images(
    folder: Path, report: Callable[[str], object]
) -> Iterator[tuple[Path, str, np.ndarray]]:
    """The path, the SHA-256 and the pixels, uint8 (H, W, 3), of each image in a folder and below.

    Files are decoded as the server decodes them; `report` gets a message for each that cannot be.
    """
    paths = sorted(path for path in folder.rglob("*") if path.suffix.lower() in _SUFFIXES)
    for path in paths:
        content = path.read_bytes()
        try:
            image = decode_image(inspect_header(content, _MAX_PIXELS))
        except ImageError as error:
            report(f"{path}: {error.rule}")
        else:
            yield path, hashlib.sha256(content).hexdigest(), image.to_rgb()


def _official(
    name: str, train: np.ndarray, test: np.ndarray, *, mirror: bool = True, note: str = ""
) -> ImageDataset:
    """The official division; up to a tenth of the training images are held back to choose by."""
    order = np.random.default_rng(0).permutation(len(train))
    held_back = min(_CHOSEN_BY, len(train) // 10)
    val, rest = np.sort(order[:held_back]), np.sort(order[held_back:])
    split = Split("official", rest, val, len(train) + np.arange(len(test)))
    return ImageDataset(name, np.concatenate([train, test]), split, mirror, note)
