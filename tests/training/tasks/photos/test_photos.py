"""Windows of photographs: masks, prefill, the energy and its peer, and a short training."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from models.checkpoint import load_checkpoint
from models.inputs.windows import WindowBatch
from models.tasks.window_completer import WindowConfig
from service.registry.handles import Completer, handle_for
from tests.models.inputs.inpainting.test_laplace import solve_dense
from training.__main__ import app
from training.datasets import data_folder
from training.tasks.photos.configs import CORES, SIZES
from training.tasks.photos.data import (
    ARCHIVE,
    WindowSource,
    list_bsds,
    load_photo_folder,
    split_bsds,
)
from training.tasks.photos.masks import draw_masks
from training.tasks.photos.peers import build_network
from training.tasks.photos.prefill import prefill_windows
from training.tasks.photos.task import compute_loss
from training.trainer import count_parameters

with_photos = pytest.mark.skipif(
    not (data_folder() / ARCHIVE).exists(), reason="BSDS500 is not here"
)


def test_prefill_is_the_dense_solution() -> None:
    rng = np.random.default_rng(0)
    images, masks = rng.random((4, 32, 32)), draw_masks(4, 32, 0)[0]
    both = torch.from_numpy(images)[:, None], torch.from_numpy(masks)[:, None].double()
    filled = prefill_windows(*both, iterations=300)[:, 0].numpy()
    for image, mask, found in zip(images, masks, filled, strict=True):
        np.testing.assert_allclose(found, solve_dense(image, mask), atol=1e-9)
    quickly = prefill_windows(*both)[:, 0].numpy()
    assert np.abs(quickly - filled).mean() < 1e-4


def test_prefill_of_what_nothing_is_known_of() -> None:
    filled = prefill_windows(torch.rand(1, 3, 16, 16), torch.ones(1, 1, 16, 16))
    assert torch.equal(filled, torch.full_like(filled, 0.5))


def test_masks_come_of_their_seed() -> None:
    one, kinds = draw_masks(30, 80, 1)
    assert np.array_equal(one, draw_masks(30, 80, 1)[0])
    assert not np.array_equal(one, draw_masks(30, 80, 2)[0])
    assert len(set(kinds.tolist())) > 3
    inside = one[:, 8:-8, 8:-8].mean((1, 2))
    assert inside.min() > 0.015
    assert inside.max() < 0.55


def batch_of(size: int, num_tokens: int) -> WindowBatch:
    mask = torch.from_numpy(draw_masks(2, size + 16, 0)[0])[:, None, 8:-8, 8:-8].float()
    return WindowBatch(torch.rand(2, 3, size, size), mask, num_tokens)


@pytest.mark.parametrize("core", CORES)
def test_before_training_the_answer_is_the_prefill(core: str) -> None:
    network = build_network(core, WindowConfig.model_validate(SIZES["smoke"]))
    batch = batch_of(16, 16)
    outputs = network(batch)
    assert outputs.shape == (2, 4, 16, 16)
    torch.testing.assert_close(outputs[:, :3], batch.pixels_RCSS)
    assert outputs[:, 3].isfinite().all()


@pytest.mark.parametrize("size", ["small", "large"])
def test_peers_are_as_large(size: str) -> None:
    config = WindowConfig.model_validate(SIZES[size])
    numbers = {core: count_parameters(build_network(core, config)) for core in CORES}
    assert numbers["vit"] == pytest.approx(numbers["et"], rel=0.05)
    assert numbers["unet"] == pytest.approx(numbers["et"], rel=0.05)
    assert numbers["none"] < numbers["et"] / 2
    with pytest.raises(ValueError, match="known are et, none, vit, unet"):
        build_network("gan", config)


def test_the_loss_is_of_hidden_pixels_alone() -> None:
    torch.manual_seed(0)
    batch = batch_of(16, 16)
    truth, outputs = torch.rand(2, 3, 16, 16), torch.rand(2, 4, 16, 16)
    loss = compute_loss(outputs, truth, batch.hidden_R1SS)
    other = torch.where(batch.hidden_R1SS > 0, outputs, torch.rand(2, 4, 16, 16))
    torch.testing.assert_close(compute_loss(other, truth, batch.hidden_R1SS), loss)
    nearer = torch.cat([truth, outputs[:, 3:]], 1)
    assert compute_loss(nearer, truth, batch.hidden_R1SS) < loss


def test_expected_errors_change_no_pixel() -> None:
    network = build_network("et", WindowConfig.model_validate(SIZES["smoke"]))
    torch.nn.init.normal_(network.codec.doubt.weight)  # of zeros nothing could learn
    network(batch_of(16, 16))[:, 3].sum().backward()
    learned = {
        name for name, p in network.named_parameters() if p.grad is not None and p.grad.any()
    }
    assert learned == {"codec.doubt.bias", "codec.doubt.weight"} or learned == {"codec.doubt.bias"}


@with_photos
def test_photographs_are_set_apart() -> None:
    archive = data_folder() / ARCHIVE
    names = list_bsds(archive)
    split = split_bsds(names)
    assert [len(part) for part in split.parts().values()] == [220, 20, 60]
    assert len(np.unique(np.concatenate(list(split.parts().values())))) == 300
    apart = [names[index] for index in split.test[:3]]
    assert apart == ["val/54082.jpg", "val/219090.jpg", "val/291000.jpg"]


def test_a_folder_of_photographs(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for place in range(12):
        pixels = rng.integers(0, 256, (8, 10, 3), np.uint8)
        image = Image.fromarray(pixels).resize((300 + 50 * place, 280))
        image.save(tmp_path / f"{place}.png")
    Image.new("RGB", (100, 100)).save(tmp_path / "small.png")
    (tmp_path / "broken.jpg").write_bytes(b"no picture")
    photos = load_photo_folder(tmp_path)
    assert {name: len(part) for name, part in photos.split.parts().items()} == {
        "train": 10,
        "val": 1,
        "test": 1,
    }
    assert photos.train.shape[1:] == photos.val.shape[1:] == (3, 256, 256)
    assert len(photos.train) > 10
    assert "small.png: smaller than 256 x 256" in photos.note
    assert "broken.jpg" in photos.note
    for path in sorted(tmp_path.glob("?.png")):
        path.unlink()
    with pytest.raises(ValueError, match=r"10 are needed\. First of"):
        load_photo_folder(tmp_path)


def test_windows_follow_from_their_seed() -> None:
    photos = torch.randint(0, 256, (3, 3, 120, 130), dtype=torch.uint8)
    source = WindowSource(photos, 5, 16, 0, turn=True)

    def draw(seed: int) -> torch.Tensor:
        source.seed(seed)
        return torch.cat([part.flatten() for part in source.draw(8)])

    assert torch.equal(draw(1), draw(1))
    assert not torch.equal(draw(1), draw(2))


def test_a_share_of_windows_is_compressed_as_jpeg() -> None:
    noise = torch.randint(0, 256, (3, 3, 120, 130), dtype=torch.uint8)
    photos = torch.nn.functional.avg_pool2d(noise.float(), 5, 1, 2).byte()

    def draw(share: float, seed: int = 1) -> torch.Tensor:
        source = WindowSource(photos, 5, 16, seed, turn=True, jpeg_share=share)
        source.seed(seed)
        return source.draw(400).truth

    assert torch.equal(draw(0.4), draw(0.4))
    assert not torch.equal(draw(0.4), draw(0.4, seed=2))
    clean = WindowSource(photos, 5, 16, 1, turn=True)
    every = WindowSource(photos, 5, 16, 1, turn=True, jpeg_share=1.0)
    some = WindowSource(photos, 5, 16, 1, turn=True, jpeg_share=0.3)
    for scale, both in zip(clean.pyramid, some.pyramid, strict=True):
        assert torch.equal(both[:3], scale)
        off = (both[3:].float() - scale.float()).abs().mean()
        assert 0 < off < 12
    cut = some._crop(some.pyramid[0], 2000)
    canvases = clean.pyramid[0].float() / 255
    assert 0.2 < _share_of(cut, canvases) < 0.4
    assert _share_of(every._crop(every.pyramid[0], 200), canvases) == 1


def _share_of(crops: torch.Tensor, photos: torch.Tensor) -> float:
    """Share of crops that are in none of the photographs."""
    side = crops.shape[-1]
    count = 0
    patches = photos.unfold(2, side, 1).unfold(3, side, 1)
    corners = patches[..., 0, 0].permute(0, 2, 3, 1).reshape(-1, 3)
    whole = patches.permute(0, 2, 3, 1, 4, 5).reshape(-1, 3, side, side)
    for crop in crops:
        at = (corners == crop[:, 0, 0]).all(1).nonzero()[:, 0]
        count += any(torch.equal(whole[index], crop) for index in at)
    return 1 - count / len(crops)


@with_photos
def test_a_short_training_is_served(tmp_path: Path) -> None:
    jpeg = ["--jpeg-share", "0.5"]
    arguments = [
        "photos",
        "--smoke",
        *jpeg,
        "--name",
        "et-tiny-photos",
        "--out",
        str(tmp_path / "ck"),
    ]
    run = ["--run-folder", str(tmp_path / "run")]
    ran = CliRunner().invoke(app, arguments + run, catch_exceptions=False)
    assert ran.exit_code == 0
    loaded = load_checkpoint(tmp_path / "ck")
    assert loaded.manifest.architecture == "et-window"
    assert loaded.manifest.training["test_photos"] == 60
    assert loaded.manifest.training["recipe"]["jpeg_share"] == 0.5
    energy = loaded.manifest.energy
    assert 0 <= energy.percentile(energy.values[50], 0.2) <= 100
    assert isinstance(handle_for(loaded), Completer)


@with_photos
def test_a_table_of_two(tmp_path: Path) -> None:
    arguments = ["photos-table", "--smoke", "--seeds", "1", "--minutes", "0.01"]
    where = ["--models", "vit,unet", "--out", str(tmp_path / "rows.jsonl")]
    first = CliRunner().invoke(app, arguments + where, catch_exceptions=False)
    assert first.exit_code == 0
    assert "| vit | " in first.stdout
    assert "| Laplace alone | " in first.stdout
    assert len((tmp_path / "rows.jsonl").read_text().splitlines()) == 2
    again = CliRunner().invoke(app, arguments + where, catch_exceptions=False)
    assert again.stdout == first.stdout
