"""The reproduction: its tables, its measures, and the memories that ship."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from models.memories import MEMORY_FILE_SUFFIX, load_memory, read_card
from tests.support.paths import REPO
from training.__main__ import app
from training.datasets.memories import load_digits, load_returns, load_rrm_alignment
from training.datasets.sources import data_folder
from training.studies.reproduce import finance, images, proteins, synthetic
from training.studies.reproduce.stochastic_attention import reproduce
from training.studies.reproduce.tables import Table

SHIPPED = sorted((REPO / "memories").glob(f"*{MEMORY_FILE_SUFFIX}"))
has_data = pytest.mark.skipif(
    not (data_folder() / "images" / "mnist").is_dir(), reason="the data is not here; set BASIN_DATA"
)


def test_tables() -> None:
    table = Table("T", ("a", "b"), "A note.")
    table.add_row("x", 1.23456)
    table.add_row("y", None)
    assert (
        table.to_markdown() == "### T\n\n| a | b |\n|---|---|\n| x | 1.235 |\n| y |  |\n\nA note."
    )
    with pytest.raises(ValueError, match="per column"):
        table.add_row("z")


def test_unknown_parts_and_papers() -> None:
    with pytest.raises(ValueError, match="synthetic, images"):
        list(reproduce(None, 0, "nothing"))
    assert CliRunner().invoke(app, ["reproduce", "another"]).exit_code == 2


def test_the_synthetic_spectrum_turns_where_the_paper_says() -> None:
    table = synthetic._spectrum(3, {0.01: None, 10: None, 1000: None})
    cosine = {str(row[0]): row[1] for row in table.rows}
    entropy = {str(row[0]): row[2] for row in table.rows}
    for beta, paper in (("0.01", 0.219), ("10", 0.373), ("1000", 0.969)):
        assert cosine[beta] == pytest.approx(paper, abs=0.03)
    assert entropy["0.01"] == pytest.approx(np.log(16), abs=0.02)
    assert entropy["1000"] == pytest.approx(0, abs=1e-6)


def test_measures_of_sequences() -> None:
    stored = np.array([[0, 1, 2, 20], [3, 4, 5, 6]], np.uint8)
    identity, apart = proteins._fidelity(np.array([[0, 1, 9, 9], [3, 4, 5, 6]]), stored)
    assert identity == pytest.approx((2 / 3 + 1) / 2)
    assert apart > 0
    assert proteins._fidelity(stored[1:], stored[1:]) == (1.0, 0.0)


def test_measures_of_series() -> None:
    walk = np.cumsum(np.random.default_rng(0).standard_normal((4000, 3)), 0)
    white = np.diff(walk, axis=0)
    assert finance._lags(walk)[0] > 0.9
    assert np.abs(finance._lags(white)).max() < 0.05
    assert finance._apart(white, white) == 0
    assert (finance._p_values(white, white) == 1).all()


def test_the_baselines() -> None:
    x = torch.nn.functional.normalize(torch.rand(60, 80), dim=1)
    found = dict(images._baselines(x, 0))
    assert list(found) == ["bootstrap", "Gaussian perturbation", "convex combination", "GMM-PCA"]
    assert all(samples.shape == (150, 80) for samples in found.values())
    assert torch.cdist(found["bootstrap"], x).amin(1).max() < 1e-3
    assert torch.allclose(found["GMM-PCA"].norm(dim=1), torch.ones(150))


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_shipped_memories_are_whole_and_their_terms_are_told(path: Path) -> None:
    card, memory = load_memory(path.read_bytes())
    assert card == read_card(path.read_bytes())
    assert memory.num_patterns == card.patterns
    row = next(
        line
        for line in (REPO / "memories" / "README.md").read_text().splitlines()
        if line.startswith(f"| `{path.stem}` |")
    )
    assert row.endswith(f"| {card.licence} |")


@has_data
def test_the_memories_that_ship_are_what_the_command_makes(tmp_path: Path) -> None:
    made = CliRunner().invoke(app, ["memories", "--folder", str(tmp_path)])
    assert made.exit_code == 0, made.output
    assert {p.name for p in tmp_path.iterdir()} == {p.name for p in SHIPPED}
    for path in SHIPPED:
        assert (tmp_path / path.name).read_bytes() == path.read_bytes()


@has_data
def test_the_data_is_the_papers() -> None:
    letters = load_rrm_alignment()
    assert letters.shape == (68, 71)
    assert load_digits(8, 3).shape == (3, 28, 28)
    growth, tickers = load_returns()
    assert growth.shape == (1254, len(tickers)) == (1254, 100)


@has_data
def test_proteins_agree_with_the_paper() -> None:
    """Novelty and identity of the published rows, with norms lost as there, and restored."""
    (table,) = proteins.make_tables(None, 0)
    rows = {(row[0], row[1]): row for row in table.rows}
    for key, novelty, identity in (
        (("bootstrap", "77"), 0.0, 0.644),
        (("ULA", "77"), 0.243, 0.616),
        (("ULA", "8"), 0.623, 0.538),
    ):
        assert rows[key][2] == pytest.approx(novelty, abs=0.02)
        assert rows[key][8] == pytest.approx(identity, abs=0.03)
    assert rows["bootstrap", "77"][6] == 1.0
    assert "beta* 4.60 by eq. 12, 3.848 by the log-beta rule" in table.note


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    for of in (load_rrm_alignment, load_returns, lambda folder: load_digits(3, 1, folder)):
        with pytest.raises(FileNotFoundError, match="BASIN_DATA"):
            of(tmp_path)
