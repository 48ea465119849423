"""From the command line to a checkpoint, and to a table."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from models.checkpoint import load_checkpoint as load_checkpoint
from models.tasks.image_completer import ImageCompleter
from training.__main__ import app
from training.datasets import ImageDataset, Split
from training.tasks.complete.configs import completion_train_config


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
    assert manifest.training["precision"] == "32-true"
    assert (tmp_path / "run" / "state.safetensors").is_file()
    network = checkpoint.network
    assert isinstance(network, ImageCompleter)
    assert not torch.equal(network.codec.mean_C, torch.full((3,), 0.5))  # of its own images


@pytest.mark.slow  # 45 s a run; the recipe is tested below
def test_the_papers_size_is_seen_to_run_on_a_cpu(folder: Path, tmp_path: Path) -> None:
    command = [
        *("complete", "--smoke", "--device", "cpu", "--images", str(folder), "--size", "224"),
        *("--out", str(tmp_path / "checkpoint"), "--run-folder", str(tmp_path / "run")),
    ]
    assert CliRunner().invoke(app, command, catch_exceptions=False).exit_code == 0
    first = load_checkpoint(tmp_path / "checkpoint")
    config = first.manifest.config
    assert (config["size"], config["patch"], config["steps"]) == (224, 16, 4)
    # Started again, it goes on from its state: nothing is left to train.
    assert CliRunner().invoke(app, command, catch_exceptions=False).exit_code == 0
    assert load_checkpoint(tmp_path / "checkpoint").sha256 == first.sha256


def test_the_papers_recipe() -> None:
    images = np.zeros((20, 224, 224, 3), np.uint8)
    parts = (np.arange(16), np.arange(16, 18), np.arange(18, 20))
    dataset = ImageDataset("mine", images, Split("random-0", *parts))
    config = completion_train_config("et", dataset).config
    assert {name: config[name] for name in ("size", "patch", "dim", "memories", "steps")} == {
        **{"size": 224, "patch": 16, "dim": 768, "memories": 3072, "steps": 12},
    }


def test_table_command_resumes(folder: Path, tmp_path: Path, monkeypatch) -> None:
    from training.tasks.complete import results_table as tables

    asked = [
        *("complete-table", "--smoke", "--device", "cpu", "--images", str(folder)),
        *("--size", "16", "--epochs", "1", "--models", "et,et:no-attention,vit,telea,mean-colour"),
        *("--out", str(tmp_path / "t.jsonl")),
    ]
    first = CliRunner().invoke(app, asked, catch_exceptions=False)
    rows = [json.loads(line) for line in (tmp_path / "t.jsonl").read_text().splitlines()]
    assert [row["parameters"] > 0 for row in rows] == [True, True, True, False, False]
    monkeypatch.setattr(tables, "_row", pytest.fail)  # nothing is trained again
    again = CliRunner().invoke(app, asked, catch_exceptions=False)
    assert first.exit_code == again.exit_code == 0
    table = [line for line in again.stdout.splitlines() if line.startswith("|")]
    assert table == [line for line in first.stdout.splitlines() if line.startswith("|")]
    assert table[0].startswith("| pictures | parameters | MFLOP an image | MSE x 1000 |")
    assert [row["operations"] > 0 for row in rows] == [True, True, True, False, False]
    vit = rows[2]  # each weight but places and norms has a part in each of 64 patches
    assert vit["operations"] > 2 * 0.6 * vit["parameters"] * 64
    assert table[-1].startswith("| mean-colour | - |")
    assert "10 masks of 2 test images" in " ".join(again.stdout.split())


def test_options_that_do_not_go_together(folder: Path) -> None:
    both = ["--dataset", "mnist", "--images", str(folder)]
    for asked in ([], both, ["--images", str(folder), "--ablation", "no-w"]):
        assert CliRunner().invoke(app, ["complete", *asked]).exit_code == 2
    refused = CliRunner().invoke(app, ["complete", "--images", str(folder), "--size", "10"])
    assert refused.exit_code == 2
    assert "a multiple of 4" in " ".join(refused.output.split())
