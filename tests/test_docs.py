"""The README names every setting, route and example, and the tables are what a command printed."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from pathlib import Path

import pytest

from service.main import create_app
from service.settings import Settings
from training.anomaly.table import line_of

REPO = Path(__file__).resolve().parents[1]
README = (REPO / "README.md").read_text()


@pytest.mark.parametrize("name", Settings.model_fields)
def test_every_setting_is_named(name: str) -> None:
    (row,) = [line for line in README.splitlines() if line.startswith(f"| `BASIN_{name.upper()}`")]
    assert Settings.model_fields[name].description in row.replace("\\|", "|")


def test_no_setting_is_named_that_is_not_there() -> None:
    named = set(re.findall(r"^\| `BASIN_([A-Z_]+)`", README, re.M))
    assert named == {name.upper() for name in Settings.model_fields}


def test_every_route_is_named() -> None:
    for path, methods in create_app(Settings()).openapi()["paths"].items():
        for method in methods:
            assert f"{method.upper()} {path}" in README


@pytest.mark.parametrize("path", sorted((REPO / "examples").glob("*.json")), ids=lambda p: p.name)
def test_every_example_is_named(path: Path) -> None:
    assert path.name in README


def test_every_metric_is_named() -> None:
    source = (REPO / "service" / "metrics.py").read_text()
    operations = (REPO / "docs" / "operations.md").read_text()
    names = re.findall(r'"(basin_[a-z_]+)"', source)
    assert names
    for name in names:
        assert f"`{name}`" in operations


def test_decisions_are_numbered() -> None:
    numbers = sorted(int(p.name[:4]) for p in (REPO / "docs" / "decisions").glob("*.md"))
    assert numbers == list(range(1, len(numbers) + 1))


def test_every_problem_is_named() -> None:
    from service.errors import KINDS

    operations = (REPO / "docs" / "operations.md").read_text()
    for kind, (status, title) in KINDS.items():
        assert f"| {status} | `urn:basin:problem:{kind}` | {title} |" in operations


@pytest.mark.parametrize(
    "folder",
    sorted(p for p in (REPO / "checkpoints").iterdir() if p.is_dir()),
    ids=lambda p: p.name,
)
def test_shipped_figures_are_those_of_the_manifest(folder: Path) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    test, training = manifest["metrics"]["test"], manifest["training"]
    names = ("roc_auc", "pr_auc", "macro_f1", "recall_at_k")
    if manifest["task"] == "classification":
        [test], names = test.values(), ("roc_auc", "accuracy", "macro_f1", "brier")
    figures = " | ".join(f"{test[name]:.4f}" for name in names)
    row = f"| `{folder.name}` | {training['dataset']}, `{training['split']}` | {figures} |"
    assert row in README


@pytest.mark.parametrize(
    "path", sorted((REPO / "docs" / "tables").glob("*.jsonl")), ids=lambda path: path.stem
)
def test_tables_of_fraud_are_those_of_their_rows(path: Path) -> None:
    text = (REPO / "docs" / "fraud.md").read_text()
    rows = defaultdict(list)
    for row in map(json.loads, path.read_text().splitlines()):
        rows[row["model"]].append(row)
    for model, found in rows.items():
        assert len({row["split"] for row in found}) == len(found)
        assert line_of(model, found) in text
        figure = line_of(model, found).split(" | ")[1]
        assert figure in README
