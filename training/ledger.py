"""Results as JSON lines: one appended as soon as it is there, none computed twice."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, final

import numpy as np
from torch import Tensor


def mark(recipe: Any) -> str:
    """A short name for everything that JSON says of a recipe."""
    return hashlib.sha256(json.dumps(recipe).encode()).hexdigest()[:12]


def fingerprint(*arrays: Tensor | np.ndarray) -> str:
    """SHA-256 of the contents and shapes of arrays."""
    digest = hashlib.sha256()
    for array in arrays:
        plain = np.ascontiguousarray(array.cpu() if isinstance(array, Tensor) else array)
        digest.update(f"{plain.dtype}{plain.shape}".encode())
        digest.update(plain.data)
    return digest.hexdigest()


@final
class Ledger:
    """The results in a file, by model, split and the mark of the recipe they stand for."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._rows: dict[tuple[str, str, str], dict[str, Any]] = {}
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_file():
            for line in path.read_text().splitlines():
                self._keep(json.loads(line))

    def _keep(self, row: dict[str, Any]) -> None:
        self._rows[row["model"], row["split"], row.get("recipe", "")] = row

    def __contains__(self, key: tuple[str, str, str]) -> bool:
        return key in self._rows

    def __getitem__(self, key: tuple[str, str, str]) -> dict[str, Any]:
        return self._rows[key]

    def add(self, row: dict[str, Any]) -> None:
        """Keep a result, in the file too."""
        self._keep(row)
        with self.path.open("a") as file:
            file.write(json.dumps(row) + "\n")
