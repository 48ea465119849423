"""What ships was made by the recipes as they are, and there is a command that makes it again."""

from __future__ import annotations

import json
from dataclasses import MISSING, asdict, fields, replace
from inspect import signature
from pathlib import Path
from shutil import copytree
from types import SimpleNamespace
from typing import Any

import pytest
from basin_client import InputError
from typer.testing import CliRunner

from models.checkpoint import load_checkpoint
from models.inputs.molecules import ATOM_COLUMNS
from models.manifest import Manifest
from service.settings import Settings
from training.__main__ import app
from training.release import SHIPPED_CHECKPOINTS
from training.tasks.anomaly.configs import HYBRID, WITH_LABELS, node_train_config
from training.tasks.anomaly.transactions.train import transaction_train_config
from training.tasks.classify.configs import graph_train_config
from training.tasks.complete.configs import completion_train_config
from training.tasks.images.configs import image_classifier_train_config
from training.tasks.photos.configs import photo_train_config

SHAPES = {"mnist": {"size": 28, "channels": 1}}
FOLDERS = sorted(path for path in Settings().checkpoints.iterdir() if path.is_dir())


def _recipe(manifest: Manifest) -> Any:
    model, _, _ = manifest.name.partition("-")
    trained: dict[str, Any] = manifest.training
    if manifest.transactions is not None:
        return transaction_train_config(model, trained["train_transactions"])
    if manifest.task == "anomaly":
        variant = HYBRID if manifest.config.get("trees") else "none"
        if manifest.config.get("label_trees"):
            variant = WITH_LABELS
        recipe = node_train_config(model, trained["dataset"], trained["train_nodes"], variant)
        given: Any = SHIPPED_CHECKPOINTS[manifest.name]
        return replace(recipe, members=given.keywords.get("members", 1))
    if manifest.architecture == "et-window":
        return photo_train_config("et", "large")
    if manifest.task == "completion":
        of = SimpleNamespace(name=trained["dataset"], **SHAPES[trained["dataset"]])
        return completion_train_config(model, of, brief=True)  # type: ignore[arg-type]
    if manifest.task == "images":
        return image_classifier_train_config(model, trained["dataset"])
    features = tuple(feature.name for feature in manifest.features)
    molecules = features == tuple(column.name for column in ATOM_COLUMNS)
    return graph_train_config(model, trained["dataset"], molecules=molecules)


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_shipped_checkpoints_follow_their_recipes(folder) -> None:
    manifest = load_checkpoint(folder).manifest
    chosen = _recipe(manifest)
    trained: dict[str, Any] = manifest.training
    # What a recipe has had since then is at its default.
    defaults = {f.name: f.default for f in fields(chosen) if f.default is not MISSING}
    expected = json.loads(json.dumps(asdict(chosen)))
    assert defaults | trained["recipe"] == expected


def test_what_ships_is_what_is_made() -> None:
    assert {folder.name for folder in FOLDERS} == set(SHIPPED_CHECKPOINTS)


def test_what_ships_is_trained_in_the_precision_that_is_asked_for(tmp_path, monkeypatch) -> None:
    given = {}

    def train(**how: Any) -> None:
        given.update(how)
        copytree(Settings().checkpoints / "et-mnist", how["out"])

    monkeypatch.setitem(SHIPPED_CHECKPOINTS, "et-mnist", train)
    asked = ["ship", "--only", "et-mnist", "--folder", str(tmp_path), "--precision", "bf16-mixed"]
    assert CliRunner().invoke(app, asked, catch_exceptions=False).exit_code == 0
    assert given["out"] == tmp_path / "et-mnist"
    assert given["precision"] == "bf16-mixed"


@pytest.mark.parametrize("name", ["cdat-ames", "et-ames", "cdat-bbbp"])
def test_molecules_are_asked_for_before_anything_is_trained(name, tmp_path) -> None:
    with pytest.raises((FileNotFoundError, InputError), match=name.partition("-")[2].upper()):
        SHIPPED_CHECKPOINTS[name](name=name, out=tmp_path / name, data=tmp_path, device="cpu")


@pytest.mark.parametrize("name", SHIPPED_CHECKPOINTS)
def test_whatever_trains_it_takes_what_ship_gives(name: str, tmp_path: Path) -> None:
    given = {"name": name, "out": tmp_path, "data": None, "device": "cpu", "precision": "32-true"}
    signature(SHIPPED_CHECKPOINTS[name]).bind(**given)
