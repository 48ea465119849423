"""Images: what is learned, resumed, chosen and reported, and what test images never touch."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
import torch
from lightning_fabric import Fabric

from models.architectures.et import ETImage, ETImageConfig
from models.base import DynamicsParams
from models.inputs.patches import MaskedImage, patch_mask_to_pixels, patchify
from models.tasks.image_completer import ImageCompleter
from tests.support.killed_run import killed_after
from training.datasets import ImageDataset, Split
from training.tasks.complete.baselines import ViT, mean_color
from training.tasks.complete.configs import (
    ABLATIONS,
    completion_train_config,
    smoke_completion_config,
)
from training.tasks.complete.evaluate import (
    draw_occlusion,
    evaluate_completion,
    make_completion_function,
    summarize_over_masks,
)
from training.tasks.complete.task import CompletionTrainConfig, CompletionTrainingTask
from training.tasks.complete.train import train_image_completer

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


def _recipe(model: str = "et", **changed: Any) -> CompletionTrainConfig:
    values = {"epochs": 2, "learning_rate": 3e-3, "batch_images": 32} | changed
    return CompletionTrainConfig(model, SMALL, **values)


@pytest.mark.parametrize("model", ["et", "vit"])
def test_it_learns(model: str, dataset: ImageDataset, fabric: Fabric) -> None:
    rate = 1e-2 if model == "et" else 3e-3
    recipe = _recipe(model, epochs=20, batch_images=16, learning_rate=rate, check_every=5)
    if model == "vit":  # as small as ET is here, at a width of 8, it learns or not by chance
        recipe = replace(recipe, config=SMALL | {"memories": 512})
    result = train_image_completer(dataset, recipe, seed=0, fabric=fabric)
    share = recipe.occluded
    naive = evaluate_completion(mean_color(3), dataset, 3, share, parts=("test",))["test"]
    learned = summarize_over_masks(result.parts["test"])
    assert learned["psnr"] > summarize_over_masks(naive)["psnr"] + 3
    assert learned["whole_mse"] == pytest.approx(share * learned["mse"], rel=1e-6)
    assert learned["masks"] == 10


@pytest.mark.parametrize("model", ["et", "vit"])
def test_test_images_have_no_part(model: str, dataset: ImageDataset, fabric: Fabric) -> None:
    """Other pixels in every test image change no weight, epoch or choice."""
    images = dataset.images.copy()
    images[dataset.split.test] = 255 - images[dataset.split.test]
    first, second = (
        train_image_completer(d, _recipe(model), seed=0, fabric=fabric)
        for d in (dataset, replace(dataset, images=images))
    )
    assert first.result.best_val == second.result.best_val
    assert first.parts["val"] == second.parts["val"]
    assert first.parts["test"] != second.parts["test"]
    states = first.network.state_dict(), second.network.state_dict()
    assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])


@pytest.mark.parametrize("muon", [False, True])
def test_a_killed_run_goes_on_to_the_same_result(
    dataset: ImageDataset, fabric: Fabric, tmp_path: Path, muon: bool
) -> None:
    recipe = _recipe(epochs=4, muon=muon)
    whole = train_image_completer(dataset, recipe, seed=3, fabric=fabric)
    with killed_after(2):
        train_image_completer(dataset, recipe, seed=3, fabric=fabric, run_folder=tmp_path)
    with safetensors.safe_open(tmp_path / "state.safetensors", "pt") as state:
        told_s = json.loads(state.metadata()["progress"])["seconds"]
    mixed = Fabric(accelerator="cpu", devices=1, precision="bf16-mixed")
    with pytest.raises(ValueError, match="of another recipe, precision"):
        train_image_completer(dataset, recipe, seed=3, fabric=mixed, run_folder=tmp_path)
    resumed = train_image_completer(dataset, recipe, seed=3, fabric=fabric, run_folder=tmp_path)
    assert resumed.result.precision == "32-true"
    states = whole.network.state_dict(), resumed.network.state_dict()
    assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])
    assert whole.parts == resumed.parts
    assert resumed.result.seconds > told_s > 0
    with pytest.raises(ValueError, match="of another recipe"):
        train_image_completer(
            dataset, replace(recipe, occluded=0.4), seed=3, fabric=fabric, run_folder=tmp_path
        )


@pytest.mark.parametrize("model", ["et", "vit"])
def test_mixed_precision_has_the_same_gradients(model: str, dataset: ImageDataset) -> None:
    def gradients(precision: Any) -> dict[str, torch.Tensor]:
        fabric = Fabric(accelerator="cpu", devices=1, precision=precision)
        config = ETImageConfig.model_validate(SMALL)
        kind = ETImage if model == "et" else ViT
        network = kind.from_data(config, dataset.images, 0).train()
        problem = CompletionTrainingTask(dataset, network.codec, _recipe(model), CPU)
        wrapped = fabric.setup(network)
        fabric.backward(problem.loss(wrapped, next(problem.batches(0, fabric))))
        return {name: p.grad for name, p in network.named_parameters() if p.grad is not None}

    exact = gradients("32-true")
    for name, found in gradients("bf16-mixed").items():
        true = exact[name].flatten()
        likeness = torch.cosine_similarity(found.flatten(), true, 0).item()
        assert likeness > 0.98, name
        assert found.norm() == pytest.approx(true.norm().item(), rel=0.2), name


def test_the_loss_counts_what_is_occluded_and_hides_most_of_it(
    dataset: ImageDataset, fabric: Fabric
) -> None:
    recipe = _recipe(occluded=0.6, kept_open=0.2)
    network = ETImage.from_data(
        ETImageConfig.model_validate(SMALL), dataset.images[dataset.split.train], 0
    )
    problem = CompletionTrainingTask(dataset, network.codec, recipe, CPU)
    steps = list(problem.batches(0, fabric))
    assert sum(batch.rows for batch, _ in steps) == 300
    for batch, counted in steps:
        masked = batch.occluded_N
        assert (counted.view(batch.rows, -1).sum(1) == 10).all()  # 60 % of 16
        assert (masked.view(batch.rows, -1).sum(1) == 8).all()  # two of them stay open
        assert counted[masked].all()
    batch, counted = steps[0]
    again, another = (next(iter(problem.batches(seed, fabric))) for seed in (0, 1))
    assert torch.equal(batch.patches_NP, again[0].patches_NP)
    assert torch.equal(counted, again[1])
    assert not torch.equal(counted, another[1])


def test_every_image_counts_as_much_in_the_loss(dataset: ImageDataset, fabric: Fabric) -> None:
    network = ETImage(ETImageConfig.model_validate(SMALL))
    problem = CompletionTrainingTask(dataset, network.codec, _recipe(occluded=0.5, vary=0.45), CPU)
    batch, counted = next(problem.batches(0, fabric))
    many = counted.view(batch.rows, 16).sum(1)
    assert many.min() < 4 < 12 < many.max()
    images = torch.rand(batch.rows, 3, 12, 12)
    error = (patchify(images, 3) - batch.patches_NP) / network.codec.get_training_scale()[1]
    squares = error.square().view(batch.rows, 16, -1), counted.view(batch.rows, 16)
    expected = torch.stack([of[what].mean() for of, what in zip(*squares, strict=True)]).mean()
    torch.testing.assert_close(problem.loss(lambda _: images, (batch, counted)), expected)  # type: ignore[arg-type]
    none = problem.loss(lambda _: images, (batch, torch.zeros_like(counted)))  # type: ignore[arg-type]
    assert none == 0


def test_images_are_mirrored_where_that_may_be(dataset: ImageDataset, fabric: Fabric) -> None:
    network = ETImage(ETImageConfig.model_validate(SMALL))
    for mirror in (True, False):
        problem = CompletionTrainingTask(
            replace(dataset, mirror=mirror), network.codec, _recipe(), CPU
        )
        order = np.random.default_rng(0).permutation(dataset.split.train)[:32]
        (batch, _), *_ = problem.batches(0, fabric)
        left = batch.patches_NP.view(32, 4, 4, 3, 9)[:, 0, 0, :, 0] * 255
        turned = (left.round().numpy() != dataset.images[order][:, 0, 0]).any(1)
        assert 5 < turned.sum() < 27 if mirror else not turned.any()


@pytest.mark.parametrize("model", ["et", "vit"])
def test_half_precision_trains(model: str, dataset: ImageDataset) -> None:
    half = Fabric(accelerator="cpu", devices=1, precision="bf16-mixed")
    result = train_image_completer(dataset, _recipe(model, epochs=1), seed=0, fabric=half)
    assert np.isfinite(summarize_over_masks(result.parts["test"])["mse"])


@pytest.mark.parametrize("muon", [False, True])
@pytest.mark.parametrize("model", ["et", "vit"])
def test_training_moves_every_parameter(
    model: str, muon: bool, dataset: ImageDataset, fabric: Fabric
) -> None:
    start = train_image_completer(
        dataset, _recipe(model, epochs=0, muon=muon), seed=0, fabric=fabric
    )
    end = train_image_completer(dataset, _recipe(model, epochs=1, muon=muon), seed=0, fabric=fabric)
    after = dict(end.network.named_parameters())
    for name, before in start.network.named_parameters():
        if before.requires_grad:
            assert not torch.equal(before, after[name]), name


def test_muon_trains_what_is_within(dataset: ImageDataset, fabric: Fabric) -> None:
    for model, kinds in (("et", {"key_HYD", "query_HYD", "memories_MD"}), ("vit", {"weight"})):
        network = train_image_completer(
            dataset, _recipe(model, epochs=0), seed=0, fabric=fabric
        ).network
        problem = CompletionTrainingTask(dataset, network.codec, _recipe(model, muon=True), CPU)
        chosen = {id(p) for p in problem.muon_parameters(network)}
        names = [name for name, p in network.named_parameters() if id(p) in chosen]
        assert {name.rpartition(".")[2] for name in names} == kinds
        assert not any(name.startswith("codec") for name in names)
        assert (
            CompletionTrainingTask(dataset, network.codec, _recipe(model), CPU).muon_parameters(
                network
            )
            == []
        )


def test_what_is_measured_is_what_is_served(dataset: ImageDataset, fabric: Fabric) -> None:
    network = train_image_completer(dataset, _recipe(), seed=0, fabric=fabric).network
    assert isinstance(network, ImageCompleter)
    images, occluded = dataset.images[:5], draw_occlusion(1, 5, 4, 0.5)
    measured = make_completion_function(network, 3, CPU)(images, occluded)
    pictures = [MaskedImage(*both) for both in zip(images, occluded, strict=True)]
    served = network.infer(network.pack(pictures), [DynamicsParams()] * 5).logits
    pixels = (255 * served).round().clamp(0, 255).permute(0, 2, 3, 1).numpy()
    mask = patch_mask_to_pixels(occluded, 3)
    assert np.abs(measured[mask].astype(int) - pixels[mask]).max() <= 1
    assert (measured[~mask] == images[~mask]).all()


def test_recipes(dataset: ImageDataset) -> None:
    for ablation, changed in ABLATIONS.items():
        recipe = completion_train_config("et", dataset, ablation)
        config = ETImageConfig.model_validate(recipe.config)
        assert changed.items() <= config.model_dump().items()
        assert (config.size, config.channels, config.steps) == (12, 3, 12)
        smoke = ETImageConfig.model_validate(smoke_completion_config(recipe).config)
        assert changed.items() <= smoke.model_dump().items()
    for model, ablation in (("et", "no-w"), ("vit", "no-hopfield"), ("gin", "none")):
        with pytest.raises(ValueError, match=r"known are|those of et"):
            completion_train_config(model, dataset, ablation)
    sizes = {8: 1, 20: 4, 64: 8, 28: 4, 96: 12}
    for size, patch in sizes.items():
        assert completion_train_config("et", _of_size(size)).config["patch"] == patch
    with pytest.raises(ValueError, match="size must be a multiple of 4"):
        completion_train_config("et", _of_size(67))


def _of_size(size: int) -> ImageDataset:
    images, parts = np.zeros((3, size, size, 3), np.uint8), np.split(np.arange(3), 3)
    return ImageDataset("any", images, Split("any", *parts))
