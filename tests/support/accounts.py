"""A checkpoint that scores accounts, trained for a moment on simulated payments."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from typer.testing import CliRunner

from training.__main__ import app

COLUMNS = ("--category", "type", "--shared", "device", "--id", "id", "--drop", "typology")


def train_accounts(frame: pd.DataFrame, folder: Path, *options: str) -> str:
    """Train on a table of payments, write the checkpoint to `folder / "accounts"`, and return what
    was printed."""
    table = folder / "payments.csv"
    frame.to_csv(table, index=False)
    command = [
        *("transactions", str(table), *COLUMNS, "--score", "accounts", *options, "--smoke"),
        *("--name", "accounts", "--device", "cpu", "--out", str(folder / "accounts")),
        *("--run-folder", str(folder / "run")),
    ]
    result = CliRunner().invoke(app, command, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output
