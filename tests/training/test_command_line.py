"""The command line of training: an error is one line, and wrong usage is exit code 2."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import REPO


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["anomaly", "--nodes", "n.csv", "--edges", "none.csv"], 1, "none.csv: no such file."),
        (["anomaly", "--nodes", "n.csv", "--edges", "e.csv"], 1, "no column 'is_fraud'"),
        (["anomaly", "--nodes", "n.csv"], 2, "--nodes and --edges go together"),
        (["anomaly", "--dataset", "nonsense"], 1, "unknown dataset"),
        (["classify", "--smiles", "n.csv", "--label", "y"], 1, "no column 'smiles'"),
        (["complete", "--images", "."], 1, "0 different images; at least 10 are needed."),
    ],
)
def test_errors(tmp_path: Path, arguments: list[str], code: int, message: str) -> None:
    (tmp_path / "n.csv").write_text("id,a\nx,1\n")
    (tmp_path / "e.csv").write_text("source,target\nx,x\n")
    command = [sys.executable, "-m", "training", *arguments]
    env = os.environ | {"PYTHONPATH": str(REPO), "NO_COLOR": "1", "COLUMNS": "200"}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert (done.returncode, message in done.stderr) == (code, True), done.stderr
    assert "Traceback" not in done.stderr
    if code == 1:
        assert done.stderr.startswith("error ")
        assert done.stderr.count("\n") == 1
