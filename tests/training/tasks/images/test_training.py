"""Pictures: what is learned, resumed, chosen and reported, and what test labels never touch."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np
import pytest
import torch
from lightning_fabric import Fabric
from typer.testing import CliRunner

from models.architectures.ait import AiT
from models.base import DynamicsParams
from models.checkpoint import load_checkpoint as load_checkpoint
from tests.support.killed_run import killed_after
from training.__main__ import app
from training.datasets.clevr import load_clevr
from training.datasets.labeled_images import LabeledImageDataset
from training.datasets.triangle import load_triangle
from training.tasks.images.configs import (
    ABLATIONS,
    image_classifier_train_config,
    smoke_image_classifier_config,
)
from training.tasks.images.export import samples_to_inputs
from training.tasks.images.task import (
    ImageClassifierTrainConfig,
    ImageClassifierTrainingTask,
    TrainStep,
    shift_and_mirror,
)
from training.tasks.images.train import (
    count_config_parameters,
    network_config,
    train_image_classifier,
)
from training.trainer import count_parameters


@pytest.fixture(scope="module")
def triangle() -> LabeledImageDataset:
    return load_triangle({"train": 96, "val": 48, "test": 48})


@pytest.fixture(scope="module")
def clevr() -> LabeledImageDataset:
    return load_clevr({"train": 4, "val": 2, "test": 2})


@pytest.fixture(scope="module")
def fabric() -> Fabric:
    return Fabric(accelerator="cpu", devices=1)


def _recipe(model: str = "ait", dataset: str = "triangle", **changed) -> ImageClassifierTrainConfig:
    return replace(
        smoke_image_classifier_config(image_classifier_train_config(model, dataset)), **changed
    )


def _problem(
    dataset: LabeledImageDataset, recipe: ImageClassifierTrainConfig
) -> ImageClassifierTrainingTask:
    return ImageClassifierTrainingTask(
        dataset, network_config(dataset, recipe), recipe, torch.device("cpu")
    )


def test_it_learns_what_it_is_shown(triangle: LabeledImageDataset, fabric: Fabric) -> None:
    """By heart at this size; and what is served says what was measured."""
    recipe = _recipe(epochs=40, learning_rate=5e-3, check_every=20, fresh=False)
    dataset = replace(triangle, split=replace(triangle.split, val=triangle.split.train))
    result = train_image_classifier(dataset, recipe, seed=0, fabric=fabric)
    assert result.evaluation.parts["train"][0].accuracy > 0.9
    assert result.accuracy_by_kind == {}
    some = np.arange(0, 192, 5)
    network = result.network
    served = network.infer(
        network.pack(samples_to_inputs(dataset, some)), [DynamicsParams()] * len(some)
    )
    np.testing.assert_allclose(served.logits.numpy(), result.logits[some], atol=1e-4)


def test_test_labels_have_no_part(clevr: LabeledImageDataset, fabric: Fabric) -> None:
    labels = clevr.labels.copy()
    labels[clevr.split.test] = 9 - labels[clevr.split.test]
    recipe = _recipe(dataset="sort-of-clevr", epochs=2)
    first, second = (
        train_image_classifier(data, recipe, seed=0, fabric=fabric)
        for data in (clevr, replace(clevr, labels=labels))
    )
    np.testing.assert_array_equal(first.logits, second.logits)
    assert first.evaluation.temperatures == second.evaluation.temperatures
    assert first.evaluation.parts["val"] == second.evaluation.parts["val"]
    assert first.accuracy_by_kind.keys() == {"non-relational", "relational"}
    parts = np.mean(list(first.accuracy_by_kind.values()))  # as many of each kind
    assert parts == pytest.approx(first.evaluation.parts["test"][0].accuracy)
    problem = _problem(clevr, recipe)
    assert (problem.labels[clevr.split.test] == -1).all()


@pytest.mark.parametrize("model", ["ait", "ait:reset-memory"])
def test_a_killed_run_goes_on_to_the_same_result(
    model: str, triangle: LabeledImageDataset, fabric: Fabric, tmp_path: Path
) -> None:
    """The memories that the batches wrote are part of what goes on."""
    recipe = _recipe(model, epochs=4, fresh=False, augment="shift")
    whole = train_image_classifier(triangle, recipe, seed=3, fabric=fabric)
    with killed_after(2):
        train_image_classifier(triangle, recipe, seed=3, fabric=fabric, run_folder=tmp_path)
    resumed = train_image_classifier(triangle, recipe, seed=3, fabric=fabric, run_folder=tmp_path)
    np.testing.assert_array_equal(whole.logits, resumed.logits)
    for name, tensor in whole.network.state_dict().items():
        assert torch.equal(tensor, resumed.network.state_dict()[name]), name
    with pytest.raises(ValueError, match="of another recipe"):
        train_image_classifier(
            triangle, replace(recipe, epochs=7), seed=3, fabric=fabric, run_folder=tmp_path
        )


def test_the_loss_is_cross_entropy_and_the_balance(triangle: LabeledImageDataset) -> None:
    problem = _problem(triangle, _recipe(balance=0.5))
    logits, target = torch.randn(6, 2), torch.tensor([0, 1, 1, 0, 0, 1])

    class Network:
        balance = torch.tensor(3.0)
        resets = 0

        def __call__(self, batch) -> torch.Tensor:
            return logits

        def reset_memories(self) -> None:
            self.resets += 1

    network = Network()
    step = TrainStep(None, target, True)  # type: ignore[arg-type]
    got = problem.loss(network, step)  # type: ignore[arg-type]
    torch.testing.assert_close(got, torch.nn.functional.cross_entropy(logits, target) + 1.5)
    assert network.resets == 0
    problem.recipe = replace(problem.recipe, reset_memory=True)
    for starts_epoch in (True, False):
        problem.loss(network, step._replace(starts_epoch=starts_epoch))  # type: ignore[arg-type]
    assert network.resets == 1


def test_every_process_takes_whole_batches_of_its_own(triangle: LabeledImageDataset) -> None:
    problem = _problem(triangle, _recipe(fresh=False, augment="shift"))

    class Of:
        def __init__(self, world_size: int, rank: int) -> None:
            self.world_size, self.global_rank = world_size, rank

    taken = [list(problem.batches(1, cast(Fabric, Of(2, rank)))) for rank in range(2)]
    assert [len(steps) for steps in taken] == [3, 3]
    pixels = [step.batch.pixels_RCHW for steps in taken for step in steps]
    assert all(len(part) == 16 for part in pixels)
    assert len({picture.numpy().tobytes() for part in pixels for picture in part}) == 96
    assert [step.starts_epoch for step in taken[1]] == [True, False, False]
    alone = [step.batch.pixels_RCHW for step in problem.batches(1, cast(Fabric, Of(1, 0)))]
    for rank, steps in enumerate(taken):
        for step, whole in zip(steps, alone[rank::2], strict=False):
            assert torch.equal(step.batch.pixels_RCHW, whole)
    problem.recipe = replace(problem.recipe, batch_pictures=64)
    with pytest.raises(ValueError, match="smaller batches"):
        next(problem.batches(1, cast(Fabric, Of(2, 0))))


def test_a_picture_comes_with_all_that_is_asked_of_it(clevr: LabeledImageDataset) -> None:
    problem = _problem(clevr, _recipe(dataset="sort-of-clevr"))
    assert clevr.questions is not None
    labels = {}
    for step in problem.batches(0, Fabric(accelerator="cpu", devices=1)):
        assert step.batch.question_RKQ is not None
        target_RK = step.target_R.view(step.batch.question_RKQ.shape[:2])
        every = zip(step.batch.pixels_RCHW, step.batch.question_RKQ, target_RK, strict=True)
        for pixels, asked_KQ, target_K in every:
            picture = (255 * pixels).byte().numpy()
            [at] = np.flatnonzero((clevr.pixels == picture).all((1, 2, 3)))
            mine = np.flatnonzero(clevr.image_ids == at)
            np.testing.assert_array_equal(asked_KQ, clevr.questions[mine])
            labels[at] = target_K.tolist(), clevr.labels[mine].tolist()
    assert labels.keys() == set(clevr.image_ids[clevr.split.train])
    assert all(shown == asked for shown, asked in labels.values())
    uneven = replace(clevr, image_ids=np.roll(clevr.image_ids, 1))
    with pytest.raises(ValueError, match="20 each"):
        next(_problem(uneven, problem.recipe).batches(0, Fabric(accelerator="cpu", devices=1)))


def test_fresh_pictures_are_another_each_epoch_and_the_same_each_time(
    triangle: LabeledImageDataset,
) -> None:
    problem = _problem(triangle, _recipe())

    def drawn(epoch: int) -> list[bytes]:
        steps = list(problem.batches(epoch, Fabric(accelerator="cpu", devices=1)))
        for step in steps:
            assert step.batch.pixels_RCHW.shape[2:] == (64, 64)
            assert set(step.target_R.tolist()) == {0, 1}
        return [step.batch.pixels_RCHW.numpy().tobytes() for step in steps]

    assert drawn(1) == drawn(1)
    assert not set(drawn(1)) & set(drawn(2))
    for wrong in (_recipe(augment="shift"), _recipe()):
        dataset = triangle if wrong.augment else replace(triangle, generate=None)
        with pytest.raises(ValueError, match="fresh pictures"):
            _problem(dataset, wrong)


def test_shifted_pictures_are_moved_and_mirrored() -> None:
    rng = np.random.default_rng(0)
    picture = np.zeros((200, 2, 16, 16), np.uint8)
    picture[:, :, 6:9, 6:10] = np.arange(1, 13).reshape(3, 4)
    out = shift_and_mirror(picture, rng)
    mirrored, places = 0, set()
    for one in out:
        rows, columns = np.nonzero(one[0])
        assert rows.max() - rows.min() == 2
        cut = one[:, rows.min() : rows.max() + 1, columns.min() : columns.max() + 1]
        flipped = cut[0, 0, 0] == 4
        mirrored += flipped
        places.add((int(rows.min()), int(columns.min())))
        for channel in cut:
            assert np.array_equal(
                channel[:, ::-1] if flipped else channel, picture[0, 0, 6:9, 6:10]
            )
    assert 70 < mirrored < 130
    assert {row for row, _ in places} == set(range(2, 11))


def test_half_precision_trains(clevr: LabeledImageDataset) -> None:
    half = Fabric(accelerator="cpu", devices=1, precision="bf16-mixed")
    recipe = _recipe(dataset="sort-of-clevr", epochs=1)
    result = train_image_classifier(clevr, recipe, seed=0, fabric=half)
    assert np.isfinite(result.logits).all()
    assert result.network.layers[0].workspace.memory_MD.dtype == torch.float32  # type: ignore[union-attr]


@pytest.mark.parametrize("model", ["ait", *(f"ait:{name}" for name in ABLATIONS), "vit"])
def test_training_moves_every_parameter(
    model: str, triangle: LabeledImageDataset, fabric: Fabric
) -> None:
    start, end = (
        train_image_classifier(triangle, _recipe(model, epochs=n), seed=0, fabric=fabric).network
        for n in (0, 1)
    )
    after = dict(end.named_parameters())
    for name, before in start.named_parameters():
        if before.requires_grad:
            assert not torch.equal(before, after[name]), name


def test_the_vision_transformer_weighs_as_much(
    triangle: LabeledImageDataset, clevr: LabeledImageDataset
) -> None:
    for dataset in (triangle, clevr):
        ours, vit = (
            network_config(dataset, image_classifier_train_config(model, dataset.name))
            for model in ("ait", "vit")
        )
        assert not vit.workspace
        assert count_config_parameters(vit) == pytest.approx(
            count_config_parameters(ours), rel=1e-3
        )
        assert count_config_parameters(ours) == count_parameters(AiT(ours))


def test_recipes() -> None:
    for model, dataset in (("cdat", "triangle"), ("ait:nonsense", "triangle"), ("ait", "mnist")):
        with pytest.raises(ValueError, match="known are"):
            image_classifier_train_config(model, dataset)
    assert image_classifier_train_config("ait:reset-memory", "triangle").reset_memory


@pytest.mark.parametrize("dataset", ["triangle", "sort-of-clevr"])
def test_command_line_to_checkpoint(dataset: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(
        app,
        [
            *("recognise", "--smoke", "--device", "cpu", "--dataset", dataset, "--epochs", "1"),
            *("--out", str(tmp_path / "checkpoint"), "--run-folder", str(tmp_path / "run")),
        ],
        catch_exceptions=False,
    )
    assert result.exit_code == 0
    checkpoint = load_checkpoint(tmp_path / "checkpoint")
    manifest, network = checkpoint.manifest, cast(AiT, checkpoint.network)
    assert (manifest.architecture, manifest.task) == ("ait", "images")
    assert (len(manifest.temperatures), len(manifest.knobs.beta)) == (1, 2)
    task = network.config.tasks[0].name
    figures = manifest.metrics["test"][task]  # type: ignore[index, call-overload]
    assert figures["samples"] == {"triangle": 160, "sort-of-clevr": 160}[dataset]  # type: ignore[index, call-overload]
    assert ("test_accuracy_by_kind" in manifest.metrics) == (dataset == "sort-of-clevr")
    assert list(manifest.energy.values) == sorted(manifest.energy.values)
    assert network.std_C.min() > 0.01
    card = (tmp_path / "checkpoint" / "README.md").read_text()
    assert card.startswith("---\nlicense: unknown\nlibrary_name: basin\n")
    assert "test part measured once" in card
    assert (tmp_path / "run" / "state.safetensors").is_file()


def test_table_command_resumes(tmp_path: Path, monkeypatch) -> None:
    from training.tasks.images import results_table as tables

    asked = [
        *("recognise-table", "--smoke", "--device", "cpu", "--dataset", "sort-of-clevr"),
        *("--seeds", "1", "--models", "ait,vit", "--out", str(tmp_path / "t.jsonl")),
    ]
    first = CliRunner().invoke(app, asked, catch_exceptions=False)
    rows = [json.loads(line) for line in (tmp_path / "t.jsonl").read_text().splitlines()]
    assert [row["model"] for row in rows] == ["ait", "vit"]
    monkeypatch.setattr(tables, "_row", pytest.fail)  # nothing is trained again
    again = CliRunner().invoke(app, asked, catch_exceptions=False)
    assert first.exit_code == again.exit_code == 0
    table = [line for line in again.stdout.splitlines() if line.startswith("|")]
    assert table == [line for line in first.stdout.splitlines() if line.startswith("|")]
    assert table[0] == "| sort-of-clevr | non-relational | relational | accuracy | parameters |"


def test_options_that_are_not_there() -> None:
    for asked in (["recognise", "--dataset", "mnist"], ["recognise-table", "--seeds", "0"]):
        assert CliRunner().invoke(app, asked).exit_code == 2
