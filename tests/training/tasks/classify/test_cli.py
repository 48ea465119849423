"""From a table of SMILES to a checkpoint and a table, by the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest
import torch
from typer.testing import CliRunner

from models.checkpoint import load_checkpoint as load_checkpoint
from training.__main__ import app
from training.datasets import load_smiles, random_split
from training.metrics import evaluate_classifier
from training.tasks.classify.baselines import fit_forest

MOLECULES = [
    f"{head}{'C' * n}{tail}" for head in ("", "c1ccccc1") for n in range(2, 9) for tail in "CON"
]


@pytest.fixture
def csv(tmp_path: Path) -> Path:
    rows = [(text, int("c" in text)) for text in MOLECULES] + [("nonsense", 1)]
    pd.DataFrame(rows, columns=["smi", "aromatic"]).to_csv(tmp_path / "m.csv", index=False)
    return tmp_path / "m.csv"


def test_the_forest_learns(csv: Path) -> None:
    dataset = load_smiles(csv, "smi", ["aromatic"])
    split = random_split(dataset)
    logits = fit_forest(dataset, split, seed=0)
    assert (
        evaluate_classifier(logits, dataset.labels, split, dataset.tasks).mean("test", "roc_auc")
        == 1
    )


def test_command_line_from_smiles_to_checkpoint(csv: Path, tmp_path: Path) -> None:
    result = CliRunner().invoke(
        app,
        [
            *("classify", "--smoke", "--device", "cpu", "--model", "cdat", "--split", "random"),
            *("--smiles", str(csv), "--smiles-column", "smi", "--label", "aromatic"),
            *("--out", str(tmp_path / "checkpoint"), "--run-folder", str(tmp_path / "run")),
        ],
        catch_exceptions=False,
    )
    assert result.exit_code == 0
    checkpoint = load_checkpoint(tmp_path / "checkpoint")
    manifest = checkpoint.manifest
    assert (manifest.architecture, manifest.task) == ("cdat-graph", "classification")
    assert manifest.features[0].name == "element"
    assert manifest.features[0].values is not None
    assert manifest.features[0].values[3] == "C"
    assert manifest.edge_features[0].name == "bond"
    assert len(manifest.temperatures) == 1
    assert manifest.training["note"] == "Left out: 1 not_smiles."
    assert "accuracy" in manifest.metrics["test"]["aromatic"]  # type: ignore[index, operator]
    assert list(manifest.energy.values) == sorted(manifest.energy.values)
    assert (tmp_path / "run" / "state.safetensors").is_file()


def test_table_command_resumes(csv: Path, tmp_path: Path, monkeypatch) -> None:
    from training.tasks.classify import results_table as tables

    asked = [
        *("classify-table", "--smoke", "--device", "cpu", "--split", "random", "--only", "1"),
        *("--smiles", str(csv), "--smiles-column", "smi", "--label", "aromatic"),
        *("--models", "et,mlp,forest", "--out", str(tmp_path / "t.jsonl")),
    ]
    first = CliRunner().invoke(app, asked, catch_exceptions=False)
    rows = [json.loads(line) for line in (tmp_path / "t.jsonl").read_text().splitlines()]
    assert [row["model"] for row in rows] == ["et", "mlp", "forest"]
    assert all(row["seconds"] > 0 and row["machine"] for row in rows)
    assert first.stdout.endswith(f"{rows[0]['machine']}, torch {torch.__version__}.\n")
    monkeypatch.setattr(tables, "_row", pytest.fail)  # nothing is trained again
    again = CliRunner().invoke(app, asked, catch_exceptions=False)
    assert first.exit_code == again.exit_code == 0
    table = [line for line in again.stdout.splitlines() if line.startswith("|")]
    assert table == [line for line in first.stdout.splitlines() if line.startswith("|")]
    assert table[0].startswith("| m, random-0 | accuracy |")


def test_options_that_do_not_go_together() -> None:
    for asked in (["classify"], ["classify", "--smiles", "x.csv"], ["classify", "--model", "gin"]):
        assert CliRunner().invoke(app, asked).exit_code == 2
