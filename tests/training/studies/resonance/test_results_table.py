"""The error of a difference of two ROC-AUCs, and the command that prints the table."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score
from typer.testing import CliRunner

from models.checkpoint import load_checkpoint
from models.resonance import Resonance
from training.__main__ import app
from training.studies.resonance import results_table, study


def test_delong_is_its_definition() -> None:
    rng = np.random.default_rng(0)
    labels = (np.arange(30) < 12).astype(int)
    a, b = rng.integers(0, 8, (2, 30)) + 2.0 * labels  # with ties
    above = {}
    for name, scores in (("a", a), ("b", b)):
        apart = scores[labels == 1][:, None] - scores[labels == 0]
        above[name] = (apart > 0) + 0.5 * (apart == 0)
        placed = study._placements(scores, labels)
        np.testing.assert_allclose(placed[0], above[name].mean(1))
        np.testing.assert_allclose(placed[1], above[name].mean(0))
        assert placed[0].mean() == pytest.approx(roc_auc_score(labels, scores))
    apart = above["a"] - above["b"]
    variance = apart.mean(1).var(ddof=1) / 12 + apart.mean(0).var(ddof=1) / 18
    assert study.delong_standard_error(a, b, labels) == pytest.approx(variance**0.5)
    assert study.delong_standard_error(a, a, labels) == 0


@pytest.mark.parametrize("name", ["cdat-tiny", "et-tolokers"])
def test_strength_0_is_the_figure_of_the_checkpoint(trained: Path, name: str) -> None:
    checkpoint = load_checkpoint(trained / "checkpoints" / name)
    one = study.load_study(checkpoint, trained)
    none = one.compute_scores(None)
    told = checkpoint.manifest.metrics["test"]
    told = told["aromatic"] if name == "cdat-tiny" else told  # type: ignore[index, call-overload]
    assert one.compute_metric(none) == pytest.approx(told["roc_auc"])  # type: ignore[index, call-overload]
    np.testing.assert_array_equal(one.compute_scores(Resonance(strength=0)), none)
    assert not np.array_equal(one.compute_scores(Resonance(strength=0.4)), none)


def test_the_command_prints_its_rows_and_resumes(
    trained: Path, tmp_path: Path, monkeypatch
) -> None:
    out = tmp_path / "rows.jsonl"
    asked = ["resonance-table", "--dataset", "tolokers", "--smoke", "--retrain", "--seeds", "2"]
    asked += ["--folder", f"{trained}/checkpoints", "--data", str(trained), "--device", "cpu"]
    asked += ["--epochs", "1"]
    first = CliRunner().invoke(app, [*asked, "--out", str(out)], catch_exceptions=False)
    assert first.exit_code == 0
    assert "cdat-tolokers is not in" in first.stderr
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    found = [(row["strength"], row["vigilance"], row["seed"]) for row in rows]
    none, some = (0.0, None), (0.1, 0.4)
    assert found == [(*cell, seed) for seed in (None, 0, 1) for cell in (none, some)]
    lines = [line for line in first.stdout.splitlines() if line.startswith("| `")]
    assert lines == results_table.format_lines(rows)
    assert [line.split(" | ")[1] for line in lines] == [
        *(2 * ["as they are"]),
        *(2 * ["new, 2 seeds of 1 epoch"]),
    ]
    monkeypatch.setattr(study._Nodes, "retrain", pytest.fail)
    monkeypatch.setattr(study._Nodes, "compute_scores", pytest.fail)
    again = CliRunner().invoke(app, [*asked, "--out", str(out)], catch_exceptions=False)
    assert [line for line in again.stdout.splitlines() if line.startswith("| `")] == lines


def test_what_does_not_ship_is_said_and_left_out(trained: Path, tmp_path: Path) -> None:
    asked = ["resonance-table", "--dataset", "photos", "--models", "et"]
    asked += ["--folder", f"{trained}/checkpoints", "--out", str(tmp_path / "rows.jsonl")]
    result = CliRunner().invoke(app, asked, catch_exceptions=False)
    assert result.exit_code == 0
    assert "et-photos is not in" in result.stderr.replace("\n", " ")
    assert result.stdout == ""


def test_a_difference_is_within_its_seed() -> None:
    def row(strength: float, seed: int, value: float) -> dict:
        told = {"model": "m", "retrained": True, "figure": "psnr", "seed": seed, "value": value}
        return told | {"strength": strength, "vigilance": 0.4 if strength else None}

    rows = [row(0, 0, 20), row(0, 1, 30), row(0.1, 0, 21), row(0.1, 1, 33)]
    assert results_table.format_lines(rows) == [
        "| `m` | new, 2 seeds | 0 | 25.00 |",
        "| `m` | new, 2 seeds | 0.1 | +2.00 ± 1.00 |",
    ]
