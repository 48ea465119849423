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
from training.studies.ood.rows import RowSet
from training.studies.ood.scores import evaluate_rows
from training.studies.ood.sources import load_study_rows
from training.tasks.complete.export import export_image_completer
from training.tasks.complete.task import CompletionTrainConfig
from training.tasks.complete.train import train_image_completer
from training.tasks.images.configs import (
    image_classifier_train_config,
    smoke_image_classifier_config,
)
from training.tasks.images.export import export_image_classifier
from training.tasks.images.train import train_image_classifier

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
    run = train_image_completer(
        dataset, CompletionTrainConfig("et", SMALL, epochs=1), seed=0, fabric=fabric
    )
    monkeypatch.setattr(pictures, "load_image_data", lambda manifest, folder: dataset)
    monkeypatch.setattr(pictures, "load_images", lambda name, folder: _images(name, 16, 1))
    return export_image_completer(tmp_path / "et-photos", "et-photos", dataset, run, seed=0)


@pytest.fixture
def recogniser(tmp_path: Path, fabric: Fabric, monkeypatch: pytest.MonkeyPatch) -> Checkpoint:
    dataset = load_clevr({"train": 4, "val": 2, "test": 2})
    recipe = smoke_image_classifier_config(image_classifier_train_config("ait", "sort-of-clevr"))
    recipe = replace(recipe, epochs=1, batch_pictures=2)
    run = train_image_classifier(dataset, recipe, seed=0, fabric=fabric)
    monkeypatch.setattr(pictures, "load_labeled_image_data", lambda manifest, folder: dataset)
    monkeypatch.setattr(pictures, "load_images", lambda name, folder: _images(name, 16, 1))
    return export_image_classifier(tmp_path / "ait-clevr", "ait-clevr", dataset, run, seed=0)


def test_images_are_seen_as_each_is_served(completer: Checkpoint) -> None:
    network, source = (
        cast(ImageCompleter, completer.network),
        load_study_rows(completer, None, 8, 12),
    )
    assert list(source.others) == [
        *("mnist", *SPOILED),
        *("the same, 15 % hidden", "the same, 85 % hidden"),
    ]
    for rows, hidden in (
        (source.own["test"], 8 / 16),
        (source.others["the same, 85 % hidden"], 14 / 16),
    ):
        [(batch, sizes, at)] = rows.batches()
        assert (sizes.tolist(), at.tolist()) == ([16] * 8, list(range(8)))
        assert (batch.occluded_N.view(8, 16).double().mean(1) == hidden).all()
        seen, output = evaluate_rows(completer, rows), network.infer(batch, [DynamicsParams()] * 8)
        energies = sum(s.trace[-1].energy_R for s in output.solutions) / 16
        percentiles = [completer.manifest.energy.percentile(e, hidden) for e in energies]
        np.testing.assert_allclose(seen.percentile_R, percentiles)
        assert seen.probability_R is None
        states = network.codec.norm(output.solutions[-1].x_ND).view(8, 16, -1).mean(1)
        np.testing.assert_allclose(seen.head_input_RK, states, atol=1e-5)


def test_the_reference_is_of_what_is_hidden(completer: Checkpoint) -> None:
    """Images with few holes, or with many, are not odd for that."""
    reference = completer.manifest.energy
    shares = [of.share for of in reference.by_hidden]
    assert shares[0] == 0
    assert shares[-1] == 1
    assert shares == sorted({round(16 * share) / 16 for share in shares})
    source = load_study_rows(completer, None, 8, 12)
    for share in ("15", "85"):
        seen = evaluate_rows(completer, source.others[f"the same, {share} % hidden"])
        assert ((seen.percentile_R > 0) & (seen.percentile_R < 100)).mean() > 0.5


def _pixels(rows: RowSet) -> np.ndarray:
    return torch.cat([batch.pixels_RCHW for batch, _, _ in rows.batches()]).numpy()


def test_pictures_come_with_a_question(recogniser: Checkpoint) -> None:
    source = load_study_rows(recogniser, None, 8, 12)
    assert list(source.others) == ["mnist", "cifar10", "tiny-imagenet", *SPOILED]
    [(own, sizes, at)] = source.own["test"].batches()
    for name, rows in source.others.items():
        [(batch, *_)] = rows.batches()
        assert batch.pixels_RCHW.shape == own.pixels_RCHW.shape, name
        assert torch.equal(batch.question_RKQ, own.question_RKQ), name
        assert not torch.equal(batch.pixels_RCHW, own.pixels_RCHW), name
    upside_down = _pixels(source.others["upside down"])
    np.testing.assert_array_equal(upside_down[:, :, ::-1], _pixels(source.own["test"]))
    shuffled = _pixels(source.others["pixels in another order"]).reshape(8, 3, -1)
    there = _pixels(source.own["test"]).reshape(8, 3, -1)
    np.testing.assert_array_equal(np.sort(shuffled, -1), np.sort(there, -1))
    seen = evaluate_rows(recogniser, source.own["test"])
    assert seen.probability_R is not None
    network = recogniser.network
    logits = network.head(torch.from_numpy(seen.head_input_RK).float())  # type: ignore[operator]
    expected = network.infer(own, [DynamicsParams()] * 8).logits
    torch.testing.assert_close(logits, expected)
    assert (sizes == network.config.num_tokens).all()  # type: ignore[attr-defined]
    assert len(at) == 8


def test_what_answers_no_label_has_no_probability(
    completer: Checkpoint, recogniser: Checkpoint, tmp_path: Path
) -> None:
    rows = results_table.run_study([completer, recogniser], tmp_path / "rows.jsonl", None, 8, 12)
    lines = results_table.format_tables(rows).splitlines()
    for row, probabilities in zip(rows, (False, True), strict=True):
        for name, other in row["others"].items():
            assert ("max_softmax" in other) == probabilities
            cells = results_table.format_line(row, name).split(" | ")
            assert (cells[4] == "-") != probabilities
            assert results_table.format_line(row, name) in lines
    assert "nan" not in results_table.format_tables(rows[:1])
