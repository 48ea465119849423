"""Where things lie beside the tests."""

import os
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
CHECKPOINTS = REPO / "checkpoints"
DATA = Path(os.environ.get("BASIN_DATA", REPO.parent / "shared" / "data"))
"""Datasets; tests that need them skip where this folder is absent."""
