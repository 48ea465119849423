"""The docs name every setting, route and example, and the tables are what a command printed."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from benchmarks import inpaint
from service.app import create_app
from service.settings import Settings
from tests.support.paths import REPO
from training.studies.ood import results_table as ood
from training.studies.resonance import results_table as resonate
from training.tasks.anomaly.results_table import format_row
from training.tasks.classify.results_table import format_row as line_of_graphs
from training.tasks.complete import results_table as completion
from training.tasks.images import results_table as recognition

PAGES = ("api", "results", "settings")
DOCS = "\n".join((REPO / "docs" / f"{page}.md").read_text() for page in PAGES)


@pytest.mark.parametrize("name", Settings.model_fields)
def test_every_setting_is_named(name: str) -> None:
    (row,) = [line for line in DOCS.splitlines() if line.startswith(f"| `BASIN_{name.upper()}`")]
    assert Settings.model_fields[name].description in row.replace("\\|", "|")


def test_no_setting_is_named_that_is_not_there() -> None:
    named = set(re.findall(r"^\| `BASIN_([A-Z0-9_]+)`", DOCS, re.M))
    assert named == {name.upper() for name in Settings.model_fields}


def test_every_route_is_named() -> None:
    for path, methods in create_app(Settings()).openapi()["paths"].items():
        for method in methods:
            assert f"{method.upper()} {path}" in DOCS


@pytest.mark.parametrize("path", sorted((REPO / "examples").glob("*.json")), ids=lambda p: p.name)
def test_every_example_is_named(path: Path) -> None:
    assert path.name in DOCS


def test_every_metric_is_named() -> None:
    files = [*(REPO / "service" / "observability").glob("*.py"), REPO / "service" / "context.py"]
    source = "".join(path.read_text() for path in files)
    operations = (REPO / "docs" / "operations.md").read_text()
    names = re.findall(r'"(basin_[a-z_]+)"', source)
    assert names
    for name in names:
        assert f"`{name}`" in operations


def test_the_way_of_beta_has_at_most_ten_stops() -> None:
    text = (REPO / "docs" / "architecture.md").read_text()
    section = text.split("## The way of beta\n")[1].split("\n## ")[0]
    stops = re.findall(r"^\d+\. `([\w/]+\.py)`", section, re.M)
    assert 0 < len(stops) <= 10
    for stop in stops:
        assert re.search(r"beta|params|inputs", (REPO / stop).read_text())


def test_the_files_of_the_architecture_are_there() -> None:
    text = (REPO / "docs" / "architecture.md").read_text()
    for path in re.findall(r"`((?:models|service|training)/[\w/.]*)`", text):
        assert (REPO / path).exists(), path


def test_decisions_are_numbered() -> None:
    numbers = sorted(int(p.name[:4]) for p in (REPO / "docs" / "decisions").glob("*.md"))
    assert numbers == list(range(1, len(numbers) + 1))


def test_every_problem_is_named() -> None:
    from service.errors import PROBLEM_TYPES

    operations = (REPO / "docs" / "operations.md").read_text()
    for kind, (status, title) in PROBLEM_TYPES.items():
        assert f"| {status} | `urn:basin:problem:{kind}` | {title} |" in operations


@pytest.mark.parametrize(
    "folder",
    sorted(p for p in (REPO / "checkpoints").iterdir() if p.is_dir()),
    ids=lambda p: p.name,
)
def test_shipped_figures_are_those_of_the_manifest(folder: Path) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    part = "val" if manifest["architecture"] == "et-window" else "test"
    test, training = manifest["metrics"][part], manifest["training"]
    names = ("roc_auc", "pr_auc", "macro_f1", "recall_at_k")
    if manifest["task"] == "classification":
        [test], names = test.values(), ("roc_auc", "accuracy", "macro_f1", "brier")
    if manifest["task"] == "completion":
        names = ("psnr", "ssim", "whole_psnr", "whole_ssim")
    if part == "val":
        names = ("prefill_psnr_all", "psnr_all", "psnr_strokes", "psnr_writing", "doubt")
    if manifest["task"] == "images":
        [test] = test.values()
        kinds = manifest["metrics"].get("test_accuracy_by_kind", {})
        test |= kinds
        names = ("accuracy", *(kinds or ("macro_f1",)), "brier")
    rows = {"": test}
    if (with_labels := manifest["metrics"].get("test_with_labels")) is not None:
        rows[", with labels of neighbours"] = with_labels
    for suffix, metrics in rows.items():
        figures = " | ".join(f"{metrics[name]:.4f}" for name in names)
        of = f"{training['dataset']}, `{training['split']}`"
        assert f"| `{folder.name}`{suffix} | {of} | {figures} |" in DOCS


TABLES = REPO / "docs" / "tables"
FRAUD = [p for name in ("amazon", "tolokers", "yelpchi") for p in TABLES.glob(f"{name}-*.jsonl")]


@pytest.mark.parametrize("path", sorted(FRAUD), ids=lambda path: path.stem)
def test_tables_of_fraud_are_those_of_their_rows(path: Path) -> None:
    text = (REPO / "docs" / "fraud.md").read_text()
    rows = defaultdict(list)
    for row in map(json.loads, path.read_text().splitlines()):
        rows[row["model"]].append(row)
    for model, found in rows.items():
        assert len({row["split"] for row in found}) == len(found)
        assert format_row(model, found) in text
        figure = format_row(model, found).split(" | ")[1]
        assert figure in DOCS


def test_the_table_of_whole_photographs_is_that_of_its_rows() -> None:
    rows = _rows(TABLES / "images" / "inpaint.jsonl")
    assert set(inpaint.format_table(rows, inpaint.METHODS).splitlines()) <= set(IMAGES)


def test_the_table_of_windows_is_that_of_its_rows() -> None:
    columns = ("all", "strokes", "writing", "shapes", "wide strokes", "mixed")
    rows = {row["core"]: row for row in _rows(TABLES / "images" / "photo-windows.jsonl")}
    assert rows.keys() == {"et", "vit"}  # the last minute of each
    for core, row in rows.items():
        [line] = [line for line in IMAGES if line.startswith(f"| {core} | {row['parameters']} |")]
        cells = [cell.strip() for cell in line.strip("|").split("|")][3:]
        expected = [*(row[column][1] for column in columns), row["doubt"]]
        assert cells == [f"{value:.2f}" for value in expected]
        assert row["steps"] * row["rows"] / 1e6 == pytest.approx(float(line.split()[5]), abs=0.006)


IMAGES = (REPO / "docs" / "images.md").read_text().splitlines()


@pytest.mark.parametrize(
    ("name", "parts"), [("mnist", ("test",)), ("photos", ("cifar10", "tiny-imagenet"))]
)
def test_tables_of_completion_are_those_of_their_rows(name: str, parts: tuple[str, ...]) -> None:
    for row in _rows(TABLES / "images" / f"{name}.jsonl"):
        for part in parts:
            assert completion.format_row(row["model"], row, part) in IMAGES


def test_the_table_of_classification_is_that_of_its_rows() -> None:
    for row in _rows(TABLES / "images" / "cifar10.jsonl"):
        assert recognition.format_row(row["model"], [row], ["accuracy"]) in IMAGES


def test_tables_of_out_of_distribution_are_those_of_their_rows() -> None:
    text = (REPO / "docs" / "out-of-distribution.md").read_text()
    rows = _rows(TABLES / "out-of-distribution.jsonl")
    for row in rows:
        assert (REPO / "checkpoints" / row["model"]).is_dir()
        told = [ood.format_own_line(row), *(ood.format_line(row, name) for name in row["others"])]
        assert set(told) <= set(text.splitlines())
    lines = [line for line in text.splitlines() if line.startswith("| `")]
    assert len(lines) == sum(1 + len(row["others"]) for row in rows)
    assert ood.format_median_line(rows) in text


def test_the_table_of_resonance_is_that_of_its_rows() -> None:
    text = (REPO / "docs" / "resonance.md").read_text()
    expected = resonate.format_lines(_rows(TABLES / "resonance.jsonl"))
    assert [line for line in text.splitlines() if line.startswith("| `")] == expected


def _rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


MOLECULES = (REPO / "docs" / "molecules.md").read_text()


def test_the_readme_has_the_same_figures_of_folds() -> None:
    lines = re.findall(r"^\| [A-Za-z0-9]+ \| \d+(?: of 10)? \| .*±.*", DOCS, re.M)
    assert lines
    for line in lines:
        name, folds, *cells = (cell.strip() for cell in line.strip("|").split("|"))
        told = MOLECULES.partition(f"| {name.lower()}, {folds.split()[0]} folds ")[2].splitlines()
        for cell, row in zip(cells, told[2:6], strict=True):
            mean, std = row.split("|")[2].split("±")
            assert cell == f"{float(mean):.1f} ± {float(std):.1f}", name


@pytest.mark.parametrize("name", re.findall(r"^\| ([a-z0-9-]+), .* \| accuracy", MOLECULES, re.M))
def test_tables_of_molecules_are_those_of_their_rows(name: str) -> None:
    """Of the splits, and the seeds, that every model has been trained on."""
    path = REPO / "docs" / "tables" / "molecules" / f"{name}.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    models = list(dict.fromkeys(row["model"] for row in rows))
    told = MOLECULES.partition(f"| {name}, ")[2].partition("\n\n")[0].splitlines()
    splits = {row["split"] for row in rows}
    for model in models:
        splits &= {row["split"] for row in rows if row["model"] == model}
    assert told[0].startswith(f"{len(splits)} ")
    assert told[2:] == [
        line_of_graphs(model, [r for r in rows if r["model"] == model and r["split"] in splits])
        for model in models
    ]


def test_what_is_as_published_is_of_its_rows() -> None:
    rows = _rows(TABLES / "molecules" / "as-published.jsonl")
    found = {(row["dataset"], row["model"]): row["test"]["accuracy"] for row in rows}
    assert len(found) == len(rows)
    told = MOLECULES.partition("| as published |")[2].partition("\n\n")[0].splitlines()[2:]
    for line in told:
        dataset, cdat, _, et, _, gin, mlp = (cell.strip() for cell in line.strip("|").split("|"))
        for model, figure in (("cdat", cdat), ("et", et), ("gin", gin), ("mlp", mlp)):
            assert figure == f"{100 * found.pop((dataset, model)):.1f}"
    assert not found


def test_every_cell_about_another_server_names_its_page() -> None:
    text = (REPO / "docs" / "comparison.md").read_text()
    pages = dict(re.findall(r"^\[([\w-]+)\]: (\S+)$", text, re.M))
    rows = [line for line in text.splitlines() if line.startswith("| ") and "|---" not in line]
    header, *rows = (([cell.strip() for cell in row.split("|")[1:-1]]) for row in rows)
    rows = [row for row in rows if row != header]
    assert len(rows) > 25
    for feature, basin, *others in rows:
        assert feature
        assert basin
        assert len(others) == len(header) - 2
        for cell in others:
            assert all(
                pages[page].startswith("https://") for page in re.findall(r"\]\[(.+?)\]", cell)
            )
            assert re.search(r"\]\[.+?\]", cell), (feature, cell)
