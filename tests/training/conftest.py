"""Small checkpoints with the data that they were trained on, and data from elsewhere."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import scipy.io
import scipy.sparse
from typer.testing import CliRunner

from training.__main__ import app

MOLECULES = [
    f"{head}{'C' * n}{tail}" for head in ("", "c1ccccc1") for n in range(2, 9) for tail in "CON"
]


@pytest.fixture(scope="session")
def trained(tmp_path_factory) -> Path:
    """A folder with `checkpoints/cdat-tiny` of molecules, `checkpoints/et-tolokers` of a graph that
    goes by this name, and their data."""
    root = tmp_path_factory.mktemp("trained")
    (root / "molecules").mkdir()
    (root / "fraud").mkdir()
    table = {"smiles": MOLECULES, "aromatic": [int("c" in text) for text in MOLECULES]}
    pd.DataFrame(table).to_csv(root / "molecules" / "tiny.csv", index=False)
    others = {"AMES": "CC(=O)O{}", "BBBP": "OCC{}", "HIV": "N{}C", "ESOL_delaney-processed": "F{}"}
    for name, text in others.items():
        known = [MOLECULES[0], "no molecule"]  # neither must be counted
        smiles = known + [text.format("C" * n) for n in range(20)]
        pd.DataFrame({"smiles": smiles}).to_csv(root / "molecules" / f"{name}.csv", index=False)
    _crowd(root / "fraud" / "tolokers.npz")
    _reviews(root / "fraud" / "YelpChi.mat")
    for asked in (
        [
            *("classify", "--model", "cdat", "--smiles", f"{root}/molecules/tiny.csv"),
            *("--label", "aromatic", "--split", "random", "--name", "cdat-tiny"),
        ],
        ["anomaly", "--model", "et", "--dataset", "tolokers", "--name", "et-tolokers"],
    ):
        name = asked[-1]
        rest = ("--smoke", "--device", "cpu", "--epochs", "1", "--run-folder", f"{root}/{name}")
        out = ("--data", str(root), "--out", str(root / "checkpoints" / name))
        result = CliRunner().invoke(app, [*asked, *rest, *out], catch_exceptions=False)
        assert result.exit_code == 0
    return root


def _crowd(path: Path) -> None:
    rng, nodes = np.random.default_rng(0), 120
    labels = (np.arange(nodes) % 4 == 0).astype(np.int64)
    part = rng.integers(0, 3, nodes)
    masks = {f"{name}_masks": (part == i)[None] for i, name in enumerate(("train", "val", "test"))}
    x = rng.random((nodes, 10)) + 0.3 * labels[:, None]
    edges = rng.integers(0, nodes, (500, 2))
    np.savez(path, node_features=x, edges=edges, node_labels=labels, **masks)


def _reviews(path: Path) -> None:
    rng, nodes = np.random.default_rng(1), 60
    network = scipy.sparse.csr_matrix(rng.random((nodes, nodes)) < 0.05, dtype=float)
    of_nodes = {"Attributes": rng.random((nodes, 32)), "Label": (np.arange(nodes) % 9 == 0) * 1}
    scipy.io.savemat(path, {"Network": network, **of_nodes})
