"""Images as published and from folders, in parts that never overlap."""

from __future__ import annotations

import gzip
import io
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from training.datasets import ImageDataset, Split, load_folder, load_images
from training.datasets.images import load_tiny_imagenet
from training.datasets.sources import data_folder
from training.tasks.complete.configs import completion_train_config


def _jpeg(rng: np.random.Generator, size: int) -> bytes:
    out = io.BytesIO()
    colour = tuple(int(value) for value in rng.integers(0, 256, 3))
    Image.new("RGB", (size, size), colour).save(out, "JPEG")
    return out.getvalue()


def _tar(path: Path, files: dict[str, bytes]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:xz") as tar:
        for name, raw in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(raw)
            tar.addfile(info, io.BytesIO(raw))


def test_published_files(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    root = tmp_path / "images"
    cifar = {
        f"CIFAR-10-images/{part}/{name}/{i:04d}.jpg": _jpeg(rng, 32)
        for part, count in (("train", 20), ("test", 5))
        for name in ("cat", "dog")
        for i in range(count)
    }
    _tar(root / "cifar10_jpeg" / "CIFAR-10-images.tar.xz", cifar | {"CIFAR-10-images/README": b""})
    packed = load_images("cifar10", tmp_path)
    assert packed.images.shape == (50, 32, 32, 3)
    assert [len(part) for part in packed.split.parts().values()] == [36, 4, 10]
    assert packed.split.test.tolist() == list(range(40, 50))
    assert "lossy" in packed.note
    for name, raw in cifar.items():
        path = root / "cifar10_jpeg" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(raw)
    unpacked = load_images("cifar10", tmp_path)
    assert (packed.images == unpacked.images).all()

    train = {f"t/train/n1/images/n1_{i}.JPEG": _jpeg(rng, 64) for i in range(20)}
    val = {f"t/val/images/val_{i}.JPEG": _jpeg(rng, 64) for i in range(10)}
    _tar(root / "tiny_imagenet" / "train_first100.tar.xz", train)
    _tar(root / "tiny_imagenet" / "val.tar.xz", val)
    tiny = load_images("tiny-imagenet", tmp_path)
    assert [len(part) for part in tiny.split.parts().values()] == [18, 2, 10]
    decoded = np.stack([np.asarray(Image.open(io.BytesIO(val[name]))) for name in sorted(val)])
    assert (tiny.images[tiny.split.test] == decoded).all()
    large = load_tiny_imagenet(tmp_path, 224, count=10)
    assert (large.name, large.images.shape) == ("tiny-imagenet-224", (20, 224, 224, 3))
    scaled = Image.fromarray(decoded[0]).resize((224, 224), Image.Resampling.BICUBIC)
    assert (large.images[large.split.test[0]] == np.asarray(scaled)).all()

    photos = load_images("photos", tmp_path)
    assert photos.images.shape == (50 + 30 + 18, 32, 32, 3)
    sizes = {part: len(of_part) for part, of_part in photos.parts().items()}
    assert sizes == {"train": 36 + 36, "val": 6, "test": 20, "cifar10": 10, "tiny-imagenet": 10}
    assert (photos.images[photos.sources["cifar10"]] == packed.images[packed.split.test]).all()
    halved = photos.images[photos.sources["tiny-imagenet"]]
    assert (abs(halved.mean((1, 2)) - decoded.mean((1, 2))) < 1).all()
    of_cuts = photos.images[-18:]  # of one colour each, as those of which they are cut
    assert (of_cuts[:, 0, 0] == tiny.images[tiny.split.train][:, 0, 0]).all()

    for part, count in (("train", 30), ("t10k", 6)):
        images = rng.integers(0, 256, (count, 28, 28), np.uint8)
        (root / "mnist").mkdir(exist_ok=True)
        for kind, raw in (("images-idx3", bytes(16) + images.tobytes()), ("labels-idx1", bytes(8))):
            path = root / "mnist" / f"{part}-{kind}-ubyte.gz"
            path.write_bytes(gzip.compress(raw))
    digits = load_images("mnist", tmp_path)
    assert digits.images.shape == (36, 28, 28, 1)
    assert not digits.mirror
    with pytest.raises(ValueError, match="known are mnist"):
        load_images("imagenet", tmp_path)
    with pytest.raises(FileNotFoundError, match=r"put CIFAR-10-images.tar.xz into"):
        load_images("cifar10", tmp_path / "elsewhere")


def test_your_own_images(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for i in range(12):
        folder = tmp_path / ("a" if i % 2 else "b")
        folder.mkdir(exist_ok=True)
        pixels = rng.integers(0, 256, (20 + i, 30, 3), np.uint8)
        Image.fromarray(pixels).save(folder / f"{i}.png")
    Image.open(tmp_path / "a" / "1.png").convert("RGBA").save(tmp_path / "again.png")
    (tmp_path / "notes.txt").write_text("no image")
    dataset = load_folder(tmp_path, 16)
    assert dataset.images.shape == (12, 16, 16, 3)
    assert dataset.note == "Left out: 1 that came again."
    assert [len(part) for part in dataset.split.parts().values()] == [10, 1, 1]
    assert completion_train_config("et", dataset).config["patch"] == 2
    (tmp_path / "broken.png").write_bytes(b"not a picture")
    (tmp_path / "old.bmp").write_bytes(b"BM" + bytes(20))
    again = load_folder(tmp_path, 16)
    np.testing.assert_array_equal(again.images, dataset.images)
    assert "broken.png: Unsupported image format: send PNG, JPEG or WebP" in again.note
    assert "old.bmp: Unsupported image format BMP" in again.note
    with pytest.raises(ValueError, match="6 different images"):
        load_folder(tmp_path / "a", 16)


def test_grey_levels_of_16_bits_keep_their_contrast(tmp_path: Path) -> None:
    """As on the server, and not cut off at 255, which would make nearly all of them white."""
    rng = np.random.default_rng(0)
    for i in range(10):
        levels = rng.integers(0, 1 << 16, (16, 16), np.uint16)
        Image.fromarray(levels).save(tmp_path / f"{i}.png")
        if i == 0:
            expected = (levels >> 8).astype(np.uint8)
    images = load_folder(tmp_path, 16).images
    assert images.std() > 60
    np.testing.assert_array_equal(images[0], np.dstack([expected] * 3))


def test_parts_never_overlap() -> None:
    images, parts = np.zeros((9, 6, 6, 3), np.uint8), np.split(np.arange(9), 3)
    dataset = ImageDataset("any", images, Split("any", *parts))
    split = replace(dataset.split, test=np.arange(5, 9))
    with pytest.raises(ValueError, match="overlap"):
        replace(dataset, split=split)


@pytest.mark.skipif(
    not (data_folder() / "images" / "mnist").is_dir(),
    reason="the datasets are not here; set BASIN_DATA",
)
def test_mnist_as_published() -> None:
    dataset = load_images("mnist")
    assert [len(part) for part in dataset.split.parts().values()] == [59_000, 1_000, 10_000]
    assert dataset.images[:60_000].mean() / 255 == pytest.approx(0.1307, abs=1e-4)
    assert dataset.images[dataset.split.test].mean() / 255 == pytest.approx(0.1325, abs=1e-4)
