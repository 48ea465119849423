"""Pictures, with holes or to recognise: what detectors are shown, and what they make of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np
import pytest
import torch
from lightning_fabric import Fabric

from models.base import DynamicsParams
from models.checkpoint import Checkpoint
from models.tasks.image_completer import ImageCompleter
from training.datasets import ImageDataset, Split
from training.datasets.clevr import load_clevr
from training.studies.ood import pictures, results_table
from training.studies.ood.rows import Rows
from training.studies.ood.scores import see
from training.studies.ood.sources import source_of
from training.tasks.complete.export import export_images
from training.tasks.complete.task import ImageRecipe
from training.tasks.complete.train import train_images
from training.tasks.images.configs import recognise_recipe, smoke_pictures
from training.tasks.images.export import export_pictures
from training.tasks.images.train import train_pictures

SMALL = {"size": 12, "patch": 3, "dim": 16, "heads": 2, "head_dim": 8, "memories": 16, "steps": 2}
SPOILED = ["negatives", "red and blue exchanged", "upside down", "pixels in another order"]


def _images(name: str, size: int, channels: int) -> ImageDataset:
    images = np.random.default_rng(size).integers(0, 256, (60, size, size, channels), np.uint8)
    split = Split("made", np.arange(40), np.arange(40, 50), np.arange(50, 60))
    return ImageDataset(name, images, split)


@pytest.fixture(scope="module")
def fabric() -> Fabric:
    return Fabric(accelerator="cpu", devices=1)


@pytest.fixture
def completer(tmp_path: Path, fabric: Fabric, monkeypatch: pytest.MonkeyPatch) -> Checkpoint:
    dataset = _images("photos", 12, 3)
    run = train_images(dataset, ImageRecipe("et", SMALL, epochs=1), seed=0, fabric=fabric)
    monkeypatch.setattr(pictures, "images_of", lambda manifest, folder: dataset)
    monkeypatch.setattr(pictures, "load_images", lambda name, folder: _images(name, 16, 1))
    return export_images(tmp_path / "et-photos", "et-photos", dataset, run, seed=0)


@pytest.fixture
def recogniser(tmp_path: Path, fabric: Fabric, monkeypatch: pytest.MonkeyPatch) -> Checkpoint:
    dataset = load_clevr({"train": 4, "val": 2, "test": 2})
    recipe = smoke_pictures(recognise_recipe("ait", "sort-of-clevr"))
    recipe = replace(recipe, epochs=1, batch_pictures=2)
    run = train_pictures(dataset, recipe, seed=0, fabric=fabric)
    monkeypatch.setattr(pictures, "recognised_of", lambda manifest, folder: dataset)
    monkeypatch.setattr(pictures, "load_images", lambda name, folder: _images(name, 16, 1))
    return export_pictures(tmp_path / "ait-clevr", "ait-clevr", dataset, run, seed=0)


def test_images_are_seen_as_each_is_served(completer: Checkpoint) -> None:
    network, source = cast(ImageCompleter, completer.network), source_of(completer, None, 8, 12)
    assert list(source.others) == [
        *("mnist", *SPOILED),
        *("the same, 15 % hidden", "the same, 85 % hidden"),
    ]
    for rows, hidden in (
        (source.own["test"], 8 / 16),
        (source.others["the same, 85 % hidden"], 14 / 16),
    ):
        [(batch, sizes, at)] = rows.pose()
        assert (sizes.tolist(), at.tolist()) == ([16] * 8, list(range(8)))
        assert (batch.occluded_N.view(8, 16).double().mean(1) == hidden).all()
        seen, output = see(completer, rows), network.infer(batch, [DynamicsParams()] * 8)
        energies = sum(s.trace[-1].energy_R for s in output.solutions) / 16
        percentiles = [completer.manifest.energy.percentile(e, hidden) for e in energies]
        np.testing.assert_allclose(seen.percentile_R, percentiles)
        assert seen.probability_R is None
        states = network.codec.norm(output.solutions[-1].x_ND).view(8, 16, -1).mean(1)
        np.testing.assert_allclose(seen.read_RK, states, atol=1e-5)


def test_the_reference_is_of_what_is_hidden(completer: Checkpoint) -> None:
    """Images with few holes, or with many, are not odd for that."""
    reference = completer.manifest.energy
    shares = [of.share for of in reference.by_hidden]
    assert shares[0] == 0
    assert shares[-1] == 1
    assert shares == sorted({round(16 * share) / 16 for share in shares})
    source = source_of(completer, None, 8, 12)
    for share in ("15", "85"):
        seen = see(completer, source.others[f"the same, {share} % hidden"])
        assert ((seen.percentile_R > 0) & (seen.percentile_R < 100)).mean() > 0.5


def _pixels(rows: Rows) -> np.ndarray:
    return torch.cat([batch.pixels_RCHW for batch, _, _ in rows.pose()]).numpy()


def test_pictures_come_with_a_question(recogniser: Checkpoint) -> None:
    source = source_of(recogniser, None, 8, 12)
    assert list(source.others) == ["mnist", "cifar10", "tiny-imagenet", *SPOILED]
    [(own, sizes, at)] = source.own["test"].pose()
    for name, rows in source.others.items():
        [(batch, *_)] = rows.pose()
        assert batch.pixels_RCHW.shape == own.pixels_RCHW.shape, name
        assert torch.equal(batch.question_RKQ, own.question_RKQ), name
        assert not torch.equal(batch.pixels_RCHW, own.pixels_RCHW), name
    upside_down = _pixels(source.others["upside down"])
    np.testing.assert_array_equal(upside_down[:, :, ::-1], _pixels(source.own["test"]))
    shuffled = _pixels(source.others["pixels in another order"]).reshape(8, 3, -1)
    there = _pixels(source.own["test"]).reshape(8, 3, -1)
    np.testing.assert_array_equal(np.sort(shuffled, -1), np.sort(there, -1))
    seen = see(recogniser, source.own["test"])
    assert seen.probability_R is not None
    network = recogniser.network
    logits = network.head(torch.from_numpy(seen.read_RK).float())  # type: ignore[operator]
    expected = network.infer(own, [DynamicsParams()] * 8).logits
    torch.testing.assert_close(logits, expected)
    assert (sizes == network.config.tokens).all()  # type: ignore[attr-defined]
    assert len(at) == 8


def test_what_answers_no_label_has_no_probability(
    completer: Checkpoint, recogniser: Checkpoint, tmp_path: Path
) -> None:
    rows = results_table.run([completer, recogniser], tmp_path / "rows.jsonl", None, 8, 12)
    lines = results_table.markdown(rows).splitlines()
    for row, probabilities in zip(rows, (False, True), strict=True):
        for name, other in row["others"].items():
            assert ("max_softmax" in other) == probabilities
            cells = results_table.line_of(row, name).split(" | ")
            assert (cells[4] == "-") != probabilities
            assert results_table.line_of(row, name) in lines
    assert "nan" not in results_table.markdown(rows[:1])
