"""What the detectors say, what they are shown, and the command that compares them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from scipy.spatial.distance import mahalanobis
from scipy.special import softmax
from typer.testing import CliRunner

from models.base import DynamicsParams
from models.checkpoint import load_checkpoint
from training.__main__ import app
from training.studies.ood import results_table
from training.studies.ood.scores import Mahalanobis, auroc, evaluate_rows
from training.studies.ood.sources import load_study_rows


def test_mahalanobis_is_the_distance_to_the_nearest_class() -> None:
    rng = np.random.default_rng(0)
    labels = np.arange(90) % 3
    read = rng.standard_normal((90, 4)) @ rng.standard_normal((4, 4)) + 5 * labels[:, None]
    means = np.stack([read[labels == c].mean(0) for c in range(3)])
    inverse = np.linalg.inv(np.cov((read - means[labels]).T, bias=True))
    rows = rng.standard_normal((7, 4))
    expected = [min(mahalanobis(row, mean, inverse) ** 2 for mean in means) for row in rows]
    np.testing.assert_allclose(Mahalanobis(read, labels)(rows), expected)
    # A unit that never fires changes nothing.
    dead = np.c_[read, np.zeros(90)], np.c_[rows, np.zeros(7)]
    np.testing.assert_allclose(Mahalanobis(dead[0], labels)(dead[1]), expected)


def test_auroc_counts_ties_half() -> None:
    assert auroc(np.array([1.0, 2.0]), np.array([3.0, 4.0])) == 1
    assert auroc(np.array([1.0, 2.0]), np.array([0.0])) == 0
    assert auroc(np.array([1.0, 1.0]), np.array([1.0])) == 0.5


@pytest.mark.parametrize("name", ["cdat-tiny", "et-tolokers"])
def test_rows_are_seen_as_each_is_served(trained: Path, name: str) -> None:
    checkpoint = load_checkpoint(trained / "checkpoints" / name)
    network, manifest = cast(Any, checkpoint.network), checkpoint.manifest
    source = load_study_rows(checkpoint, trained, max_rows=16, max_train_rows=16)
    seen = evaluate_rows(checkpoint, source.own["test"])
    [(batch, sizes, at)] = source.own["test"].batches()
    output = network.infer(batch, [DynamicsParams()] * len(sizes))
    energies = sum(s.trace[-1].energy_R for s in output.solutions) / sizes
    degrees = batch.log_degree_R if manifest.task == "anomaly" else [None] * len(sizes)
    percentiles = list(map(manifest.energy.percentile, energies, degrees))
    np.testing.assert_allclose(seen.percentile_R, percentiles)
    head = (network.networks[0] if manifest.task == "anomaly" else network).head
    logits = head.mlp(torch.from_numpy(seen.head_input_RK).float()).double().numpy()
    if manifest.task == "anomaly":
        p = manifest.calibration(logits[:, 0])
        expected = np.maximum(p, 1 - p)
    else:
        expected = softmax(logits / manifest.temperatures[0], -1).max(-1)
    np.testing.assert_allclose(seen.probability_R, expected, rtol=1e-5)
    assert len(seen.head_input_RK) == len(sizes) == len(at) <= 16


def test_others_are_not_of_the_models_own_table(trained: Path) -> None:
    source = load_study_rows(
        load_checkpoint(trained / "checkpoints" / "cdat-tiny"),
        trained,
        max_rows=16,
        max_train_rows=16,
    )
    assert list(source.others) == ["AMES", "BBBP", "HIV", "ESOL", "features of other atoms"]
    few = load_study_rows(
        load_checkpoint(trained / "checkpoints" / "cdat-tiny"),
        trained,
        max_rows=99,
        max_train_rows=16,
    )
    sizes = [len(sizes) for _, sizes, _ in few.others["HIV"].batches()]
    assert sum(sizes) < 20  # of twenty the model's own are left out, and what is no molecule


def test_a_changed_dataset_is_refused(trained: Path, tmp_path: Path) -> None:
    (tmp_path / "molecules").mkdir()
    text = (trained / "molecules" / "tiny.csv").read_text()
    (tmp_path / "molecules" / "tiny.csv").write_text(text + "CCCCCCCCCCCCCC,0\n")
    with pytest.raises(ValueError, match="not what it was trained on"):
        load_study_rows(load_checkpoint(trained / "checkpoints" / "cdat-tiny"), tmp_path)


def test_the_command_prints_its_rows_and_resumes(
    trained: Path, tmp_path: Path, monkeypatch
) -> None:
    out = tmp_path / "rows.jsonl"
    asked = ["out-of-distribution", "--smoke", "--folder", f"{trained}/checkpoints"]
    asked += ["--data", str(trained), "--out", str(out)]
    first = CliRunner().invoke(app, asked, catch_exceptions=False)
    assert first.exit_code == 0
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["model"] for row in rows] == ["cdat-tiny", "et-tolokers"]
    lines = first.stdout.splitlines()
    for row in rows:
        assert results_table.format_own_line(row) in lines
        for name, other in row["others"].items():
            assert results_table.format_line(row, name) in lines
            assert all(0 <= other[detector] <= 1 for detector in results_table.DETECTORS)
    monkeypatch.setattr(results_table, "_row", pytest.fail)  # nothing is measured again
    again = CliRunner().invoke(app, asked, catch_exceptions=False)
    assert again.stdout == first.stdout
    wrong = CliRunner().invoke(app, [*asked, "--only", "nobody"])
    assert wrong.exit_code == 2
