"""The command line of training: an error is one line, and wrong usage is exit code 2."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from basin_client.command_line import run
from typer.testing import CliRunner

from tests.support.paths import REPO
from training.__main__ import app


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "n.csv").write_text("id,a\nx,1\n")
    (tmp_path / "e.csv").write_text("source,target\nx,x\n")
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["anomaly", "--nodes", "n.csv", "--edges", "none.csv"], "none.csv: no such file."),
        (["anomaly", "--nodes", "n.csv", "--edges", "e.csv"], "no column 'is_fraud'"),
        (["anomaly", "--dataset", "nonsense"], "unknown dataset"),
        (["classify", "--smiles", "n.csv", "--label", "y"], "no column 'smiles'"),
        (["complete", "--images", "."], "0 different images; at least 10 are needed."),
    ],
)
def test_errors(folder: Path, monkeypatch, arguments: list[str], message: str) -> None:
    monkeypatch.chdir(folder)
    error = CliRunner().invoke(app, arguments).exception
    assert isinstance(error, ValueError | OSError)  # of which `run` prints the message alone
    assert message in str(error)
    assert "\n" not in str(error)


def test_an_error_is_one_line_and_exit_code_1(folder: Path) -> None:
    files = ("--nodes", "n.csv", "--edges", "none.csv")
    command = [sys.executable, "-m", "training", "anomaly", *files]
    env = os.environ | {"PYTHONPATH": str(REPO), "NO_COLOR": "1", "COLUMNS": "200"}
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (1, "error none.csv: no such file.\n")


def test_wrong_usage_is_exit_code_2(folder: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(sys, "argv", ["training", "anomaly", "--nodes", "n.csv"])
    with pytest.raises(SystemExit) as ended:
        run(app)
    printed = capsys.readouterr().err
    assert ended.value.code == 2
    assert "--nodes and --edges go together" in printed
    assert "Traceback" not in printed
