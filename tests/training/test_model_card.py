"""Model cards are what hubs read, and say what the manifest says."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from models.checkpoint import load_checkpoint, seal_checkpoint
from models.manifest import CheckpointError, Manifest
from models.manifest_digest import write_with_digest
from service.settings import Settings
from training.__main__ import app
from training.datasets.terms import DATASET_TERMS, MEANING
from training.model_card import build_card, build_metadata, read_description, rewrite_card

hub = pytest.importorskip("huggingface_hub")
FOLDERS = sorted(path for path in Settings().checkpoints.iterdir() if path.is_dir())

# https://huggingface.co/docs/hub/model-cards and modelcard.md of huggingface/hub-docs
KEYS = {
    *("license", "license_name", "license_link", "library_name", "pipeline_tag", "tags"),
    *("datasets", "metrics", "model-index"),
}
PIPELINES = {  # of https://huggingface.co/tasks, those that fit a task of Basin
    *("graph-ml", "tabular-classification", "image-classification"),
    *("visual-question-answering", "image-to-image"),
}


def _read(folder: Path) -> tuple[Manifest, str, dict[str, Any]]:
    card = (folder / "README.md").read_text()
    assert card.startswith("---\n")
    return load_checkpoint(folder).manifest, card, yaml.safe_load(card.split("---\n")[1])


def _flatten(figures: dict[str, Any]) -> list[float]:
    """Return all figures of a part, of every label."""
    values = list[float]()
    for value in figures.values():
        values += _flatten(value) if isinstance(value, dict) else [value]
    return values


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_a_hub_reads_the_card(folder: Path) -> None:
    manifest, _, metadata = _read(folder)
    assert set(metadata) <= KEYS
    data = hub.ModelCard.load(folder / "README.md").data  # raises where `model-index` is malformed
    assert data.model_name == manifest.name
    assert data.library_name == "basin"
    assert data.pipeline_tag in PIPELINES
    assert data.datasets == [manifest.training["dataset"]]
    assert {"basin", manifest.architecture, manifest.task} <= set(data.tags)
    assert (data.license == "other") == (data.license_link == "README.md")
    figures = manifest.metrics.get("test") or manifest.metrics["val"]
    assert isinstance(figures, dict)
    assert data.eval_results
    for result in data.eval_results:
        assert result.metric_value in _flatten(figures)
        assert result.metric_type in data.metrics
        assert result.task_type == data.pipeline_tag
        assert result.dataset_split == ("test" if "test" in manifest.metrics else "validation")


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_a_card_says_what_the_terms_of_the_data_mean(folder: Path) -> None:
    manifest, card, metadata = _read(folder)
    terms = DATASET_TERMS[str(manifest.training["dataset"])]
    assert card == build_card(manifest, read_description(card), terms)
    assert MEANING[terms.kind] in card
    assert terms.stated in card
    free = terms.kind in ("generated", "permissive")
    assert metadata["license"] == ("apache-2.0" if free else "other")


def test_a_card_of_other_data_says_that_its_terms_are_not_known() -> None:
    manifest = load_checkpoint(FOLDERS[0]).manifest
    card = build_card(manifest, "# a title\n\nwhat it is\n")
    assert build_metadata(manifest)["license"] == "unknown"
    assert "not known to" in card
    assert read_description(card) == "# a title\n\nwhat it is"


def test_figures_that_are_missing_are_left_out() -> None:
    manifest = load_checkpoint(FOLDERS[0]).manifest
    part = {"object": {"accuracy": 0.5, "roc_auc": None, "samples": 3}}
    [index] = build_metadata(manifest.model_copy(update={"metrics": {"test": part}}))["model-index"]
    assert [metric["type"] for metric in index["results"][0]["metrics"]] == ["accuracy"]


def test_cards_are_written_anew_without_touching_anything_else(tmp_path: Path) -> None:
    """From a card without metadata and terms, as of earlier versions."""
    copies = tmp_path / "checkpoints"
    shutil.copytree(Settings().checkpoints, copies)
    for folder in copies.iterdir():
        path, text = folder / "README.md", (folder / "README.md").read_text()
        old = read_description(text) + "\n"
        path.write_text(old)
        seal_checkpoint(folder)
    result = CliRunner().invoke(app, ["cards", "--folder", str(copies)], catch_exceptions=False)
    assert result.exit_code == 0
    for folder in FOLDERS:
        for file in folder.iterdir():
            assert (copies / folder.name / file.name).read_bytes() == file.read_bytes()


def test_a_checkpoint_whose_manifest_lists_no_card_is_refused(tmp_path: Path) -> None:
    shutil.copytree(FOLDERS[0], tmp_path / "one")
    (tmp_path / "one" / "README.md").unlink()
    path = tmp_path / "one" / "manifest.json"
    manifest = json.loads(path.read_text())
    del manifest["files"]["README.md"]
    path.write_bytes(write_with_digest(manifest))
    with pytest.raises(CheckpointError, match=r"lists no README\.md"):
        rewrite_card(tmp_path / "one")
