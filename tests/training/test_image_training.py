"""Images: what is learned, resumed, chosen and reported, and what test images never touch."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lightning_fabric import Fabric
from PIL import Image
from typer.testing import CliRunner

from models.architectures.et import ETImage, ETImageConfig
from models.checkpoint import load as load_checkpoint
from models.contract import Knobs
from models.image_completer import ImageCompleter
from models.patches import MaskedImage, patchify, spread
from training.__main__ import app
from training.datasets import ImageDataset, Split, load_folder, load_images
from training.datasets.sources import data_folder
from training.image_baselines import UNTRAINED, ViT, mean_colour, parameters
from training.image_evaluate import (
    ImageMetrics,
    completer,
    evaluate_images,
    measure_images,
    occlude,
    over_seeds,
    ssim,
)
from training.image_problem import ImageProblem, ImageRecipe
from training.image_recipes import IMAGE_ABLATIONS, image_recipe, smoke_images
from training.image_runs import train_images

CPU = torch.device("cpu")
SMALL = {"size": 12, "patch": 3, "dim": 32, "heads": 2, "head_dim": 16, "memories": 32, "steps": 6}


@pytest.fixture(scope="module")
def dataset() -> ImageDataset:
    """Two halves, each of a colour of its own: what is hidden is told by patches of its side."""
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (400, 1, 2, 3), np.uint8).repeat(12, 1).repeat(6, 2)
    split = Split("made", np.arange(300), np.arange(300, 340), np.arange(340, 400))
    return ImageDataset("halves", images, split)


@pytest.fixture(scope="module")
def fabric() -> Fabric:
    return Fabric(accelerator="cpu", devices=1)


def _recipe(model: str = "et", **changed: Any) -> ImageRecipe:
    values = {"epochs": 2, "learning_rate": 3e-3, "batch_images": 32} | changed
    return ImageRecipe(model, SMALL, **values)


@pytest.mark.parametrize("model", ["et", "vit"])
def test_it_learns(model: str, dataset: ImageDataset, fabric: Fabric) -> None:
    rate = 1e-2 if model == "et" else 3e-3
    recipe = _recipe(model, epochs=20, batch_images=16, learning_rate=rate, check_every=5)
    result = train_images(dataset, recipe, seed=0, fabric=fabric)
    share = recipe.occluded
    naive = evaluate_images(mean_colour(3), dataset, 3, share, parts=("test",))["test"]
    learned = over_seeds(result.parts["test"])
    assert learned["psnr"] > over_seeds(naive)["psnr"] + 3
    assert learned["whole_mse"] == pytest.approx(share * learned["mse"], rel=1e-6)
    assert learned["masks"] == 10


@pytest.mark.parametrize("model", ["et", "vit"])
def test_test_images_have_no_part(model: str, dataset: ImageDataset, fabric: Fabric) -> None:
    """Other pixels in every test image change no weight, epoch or choice."""
    images = dataset.images.copy()
    images[dataset.split.test] = 255 - images[dataset.split.test]
    first, second = (
        train_images(d, _recipe(model), seed=0, fabric=fabric)
        for d in (dataset, replace(dataset, images=images))
    )
    assert first.fitted.best_val == second.fitted.best_val
    assert first.parts["val"] == second.parts["val"]
    assert first.parts["test"] != second.parts["test"]
    states = first.network.state_dict(), second.network.state_dict()
    assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])


def test_a_killed_run_goes_on_to_the_same_result(
    dataset: ImageDataset, fabric: Fabric, tmp_path: Path, monkeypatch
) -> None:
    from training import trainer

    recipe = _recipe(epochs=4)
    whole = train_images(dataset, recipe, seed=3, fabric=fabric)
    write = trainer._State._write

    def killed(self, run: Path) -> None:
        write(self, run)
        if self.epoch == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(trainer._State, "_write", killed)
    with pytest.raises(KeyboardInterrupt):
        train_images(dataset, recipe, seed=3, fabric=fabric, run=tmp_path)
    monkeypatch.setattr(trainer._State, "_write", write)
    resumed = train_images(dataset, recipe, seed=3, fabric=fabric, run=tmp_path)
    states = whole.network.state_dict(), resumed.network.state_dict()
    assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])
    assert whole.parts == resumed.parts
    with pytest.raises(ValueError, match="of another recipe"):
        train_images(dataset, replace(recipe, occluded=0.4), seed=3, fabric=fabric, run=tmp_path)


def test_the_loss_counts_what_is_occluded_and_hides_most_of_it(
    dataset: ImageDataset, fabric: Fabric
) -> None:
    recipe = _recipe(occluded=0.6, kept_open=0.2)
    network = ETImage.fitted(
        ETImageConfig.model_validate(SMALL), dataset.images[dataset.split.train], 0
    )
    problem = ImageProblem(dataset, network.codec, recipe, CPU)
    steps = list(problem.steps(0, fabric))
    assert sum(batch.rows for batch, _ in steps) == 300
    for batch, counted in steps:
        masked = batch.occluded_N
        assert (counted.view(batch.rows, -1).sum(1) == 10).all()  # 60 % of 16
        assert (masked.view(batch.rows, -1).sum(1) == 8).all()  # two of them stay open
        assert counted[masked].all()
    batch, counted = steps[0]
    images = torch.rand(batch.rows, 3, 12, 12)
    error = (patchify(images, 3) - batch.patches_NP) / network.codec.scale()[1]
    expected = error[counted].square().mean()
    torch.testing.assert_close(problem.loss(lambda _: images, (batch, counted)), expected)  # type: ignore[arg-type]
    again, another = (next(iter(problem.steps(seed, fabric))) for seed in (0, 1))
    assert torch.equal(batch.patches_NP, again[0].patches_NP)
    assert torch.equal(counted, again[1])
    assert not torch.equal(counted, another[1])


def test_images_are_mirrored_where_that_may_be(dataset: ImageDataset, fabric: Fabric) -> None:
    network = ETImage(ETImageConfig.model_validate(SMALL))
    for mirror in (True, False):
        problem = ImageProblem(replace(dataset, mirror=mirror), network.codec, _recipe(), CPU)
        order = np.random.default_rng(0).permutation(dataset.split.train)[:32]
        (batch, _), *_ = problem.steps(0, fabric)
        left = batch.patches_NP.view(32, 4, 4, 3, 9)[:, 0, 0, :, 0] * 255
        turned = (left.round().numpy() != dataset.images[order][:, 0, 0]).any(1)
        assert 5 < turned.sum() < 27 if mirror else not turned.any()


@pytest.mark.parametrize("model", ["et", "vit"])
def test_half_precision_trains(model: str, dataset: ImageDataset) -> None:
    half = Fabric(accelerator="cpu", devices=1, precision="bf16-mixed")
    result = train_images(dataset, _recipe(model, epochs=1), seed=0, fabric=half)
    assert np.isfinite(over_seeds(result.parts["test"])["mse"])


@pytest.mark.parametrize("model", ["et", "vit"])
def test_training_moves_every_parameter(model: str, dataset: ImageDataset, fabric: Fabric) -> None:
    start = train_images(dataset, _recipe(model, epochs=0), seed=0, fabric=fabric)
    end = train_images(dataset, _recipe(model, epochs=1), seed=0, fabric=fabric)
    after = dict(end.network.named_parameters())
    for name, before in start.network.named_parameters():
        if before.requires_grad:
            assert not torch.equal(before, after[name]), name


def test_what_is_measured_is_what_is_served(dataset: ImageDataset, fabric: Fabric) -> None:
    network = train_images(dataset, _recipe(), seed=0, fabric=fabric).network
    assert isinstance(network, ImageCompleter)
    images, occluded = dataset.images[:5], occlude(1, 5, 4, 0.5)
    measured = completer(network, 3, CPU)(images, occluded)
    pictures = [MaskedImage(*both) for both in zip(images, occluded, strict=True)]
    served = network.infer(network.pack(pictures), [Knobs()] * 5).logits
    pixels = (255 * served).round().clamp(0, 255).permute(0, 2, 3, 1).numpy()
    mask = spread(occluded, 3)
    assert np.abs(measured[mask].astype(int) - pixels[mask]).max() <= 1
    assert (measured[~mask] == images[~mask]).all()


def test_ssim_is_that_of_its_formula() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.random((2, 1, 2, 16, 14))
    y = 0.6 * x + 0.4 * y
    at = np.arange(-5, 6)
    weight = np.exp(-(at[:, None] ** 2 + at**2) / (2 * 1.5**2))
    weight /= weight.sum()
    found = ssim(torch.from_numpy(x), torch.from_numpy(y)).numpy()
    for channel, row, column in ((0, 8, 7), (1, 5, 8), (1, 0, 0), (0, 15, 3)):
        windows = (
            np.pad(image[0, channel], 5, "reflect")[row : row + 11, column : column + 11]
            for image in (x, y)
        )
        a, b = windows
        ma, mb = (weight * a).sum(), (weight * b).sum()
        va, vb = (weight * (a - ma) ** 2).sum(), (weight * (b - mb) ** 2).sum()
        ab = (weight * (a - ma) * (b - mb)).sum()
        c1, c2 = 1e-4, 9e-4
        expected = (2 * ma * mb + c1) * (2 * ab + c2) / ((ma**2 + mb**2 + c1) * (va + vb + c2))
        assert found[0, channel, row, column] == pytest.approx(expected, abs=1e-10)
    torch.testing.assert_close(ssim(*[torch.from_numpy(x)] * 2), torch.ones(1, 2, 16, 14).double())


def test_figures() -> None:
    images = np.full((2, 12, 12, 3), 100, np.uint8)
    occluded = occlude(0, 2, 4, 0.5)
    assert occluded.sum((1, 2)).tolist() == [8, 8]

    def wrong(true: np.ndarray, hidden: np.ndarray) -> np.ndarray:
        return np.where(spread(hidden, 3)[..., None], true + np.uint8(51), true)

    m = measure_images(wrong, images, occluded, 3)
    assert (m.mse, m.whole_mse) == (pytest.approx(0.04), pytest.approx(0.02))
    assert m.psnr == pytest.approx(10 * np.log10(25))
    assert max(m.ssim, m.whole_ssim) < 0.5
    right = measure_images(lambda true, _: true, images, occluded, 3)
    assert right == ImageMetrics(0.0, 100.0, 1.0, 0.0, 100.0, 1.0, 2)
    summary = over_seeds([m, right])
    assert (summary["mse"], summary["mse_std"]) == (pytest.approx(0.02), pytest.approx(0.02))
    assert (summary["images"], summary["masks"]) == (2, 2)


@pytest.mark.parametrize("name", UNTRAINED)
@pytest.mark.parametrize("channels", [1, 3])
def test_baselines_fill_holes_and_nothing_else(name: str, channels: int) -> None:
    rng = np.random.default_rng(0)
    flat = np.full((1, 12, 12, channels), 77, np.uint8)
    noisy = rng.integers(0, 256, (1, 12, 12, channels), np.uint8)
    images, occluded = np.concatenate([flat, noisy]), occlude(0, 2, 4, 0.5)
    mask = spread(occluded, 3)
    broken = np.where(mask[..., None], rng.integers(0, 256, images.shape, np.uint8), images)
    filled = UNTRAINED[name](3)(broken, occluded)
    assert filled.dtype == np.uint8
    assert (filled[~mask] == images[~mask]).all()
    assert np.abs(filled[0].astype(int) - 77).max() <= 4  # Telea's sums are not exact
    again = UNTRAINED[name](3)(images, occluded)
    assert (again == filled).all()  # what was in the holes has no part
    every = np.ones((2, 4, 4), bool)
    assert UNTRAINED["mean-colour"](3)(images, every).std() == 0


@pytest.mark.parametrize("dim", [64, 256])
def test_the_vit_is_as_large(dim: int) -> None:
    config = ETImageConfig(size=32, patch=4, dim=dim, heads=4, memories=4 * dim)
    vit = ViT.like(config)
    assert parameters(vit) == pytest.approx(parameters(ETImage(config)), rel=0.1)


def test_recipes(dataset: ImageDataset) -> None:
    for ablation, changed in IMAGE_ABLATIONS.items():
        recipe = image_recipe("et", dataset, ablation)
        config = ETImageConfig.model_validate(recipe.config)
        assert changed.items() <= config.model_dump().items()
        assert (config.size, config.channels, config.steps) == (12, 3, 12)
        smoke = ETImageConfig.model_validate(smoke_images(recipe).config)
        assert changed.items() <= smoke.model_dump().items()
    for model, ablation in (("et", "no-w"), ("vit", "no-hopfield"), ("gin", "none")):
        with pytest.raises(ValueError, match=r"known are|those of et"):
            image_recipe(model, dataset, ablation)
    sizes = {7: 1, 10: 2, 64: 8, 28: 4, 96: 12}
    for size, patch in sizes.items():
        assert image_recipe("et", _of_size(size)).config["patch"] == patch
    with pytest.raises(ValueError, match="67 x 67 pixels have no whole patches"):
        image_recipe("et", _of_size(67))


def _of_size(size: int) -> ImageDataset:
    images, parts = np.zeros((3, size, size, 3), np.uint8), np.split(np.arange(3), 3)
    return ImageDataset("any", images, Split("any", *parts))


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
    assert image_recipe("et", dataset).config["patch"] == 2
    (tmp_path / "broken.png").write_bytes(b"not a picture")
    with pytest.raises(ValueError, match=r"broken\.png: not an image"):
        load_folder(tmp_path, 16)
    with pytest.raises(ValueError, match="6 different images"):
        load_folder(tmp_path / "a", 16)


def test_parts_never_overlap(dataset: ImageDataset) -> None:
    split = replace(dataset.split, test=np.arange(299, 400))
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


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    (tmp_path / "pictures").mkdir()
    for i in range(20):
        pixels = rng.integers(0, 256, (1, 2, 3), np.uint8).repeat(16, 0).repeat(8, 1)
        Image.fromarray(pixels).save(tmp_path / "pictures" / f"{i}.png")
    return tmp_path / "pictures"


def test_command_line_from_images_to_checkpoint(folder: Path, tmp_path: Path) -> None:
    result = CliRunner().invoke(
        app,
        [
            *("complete", "--smoke", "--device", "cpu", "--images", str(folder), "--size", "16"),
            *("--ablation", "self-attention", "--out", str(tmp_path / "checkpoint")),
            *("--run-folder", str(tmp_path / "run")),
        ],
        catch_exceptions=False,
    )
    assert result.exit_code == 0
    checkpoint = load_checkpoint(tmp_path / "checkpoint")
    manifest = checkpoint.manifest
    assert (manifest.name, manifest.architecture) == ("et-pictures", "et-image")
    assert manifest.task == "completion"
    assert manifest.config["self_attention"] is True
    assert manifest.metrics["test"]["masks"] == 10  # type: ignore[index, call-overload]
    assert list(manifest.energy.values) == sorted(manifest.energy.values)
    assert manifest.training["split"] == "random-0"
    assert (tmp_path / "run" / "state.safetensors").is_file()
    network = checkpoint.network
    assert isinstance(network, ImageCompleter)
    assert not torch.equal(network.codec.mean_C, torch.full((3,), 0.5))  # of its own images


def test_table_command_resumes(folder: Path, tmp_path: Path, monkeypatch) -> None:
    from training import image_table

    asked = [
        *("complete-table", "--smoke", "--device", "cpu", "--images", str(folder)),
        *("--size", "16", "--epochs", "1", "--models", "et,et:no-attention,vit,telea,mean-colour"),
        *("--out", str(tmp_path / "t.jsonl")),
    ]
    first = CliRunner().invoke(app, asked, catch_exceptions=False)
    rows = [json.loads(line) for line in (tmp_path / "t.jsonl").read_text().splitlines()]
    assert [row["parameters"] > 0 for row in rows] == [True, True, True, False, False]
    monkeypatch.setattr(image_table, "_row", None)  # would fail if it trained anything again
    again = CliRunner().invoke(app, asked, catch_exceptions=False)
    assert first.exit_code == again.exit_code == 0
    table = [line for line in again.stdout.splitlines() if line.startswith("|")]
    assert table == [line for line in first.stdout.splitlines() if line.startswith("|")]
    assert table[0].startswith("| pictures | parameters | MSE x 1000 |")
    assert table[-1].startswith("| mean-colour | - |")
    assert "10 masks of 2 test images" in " ".join(again.stdout.split())


def test_options_that_do_not_go_together(folder: Path) -> None:
    both = ["--dataset", "mnist", "--images", str(folder)]
    for asked in ([], both, ["--images", str(folder), "--ablation", "no-w"]):
        assert CliRunner().invoke(app, ["complete", *asked]).exit_code == 2
