"""Results as JSON lines: one appended as soon as it is there, none computed twice."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from lightning_fabric import Fabric
from torch import Tensor

from training.common.hardware import PLAIN, made, precision_of


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
class ResultsLog:
    """The results in a file, by model, split, the mark of the recipe they stand for, and precision.

    Args:
        fabric: what trains; None where nothing is trained.

    Raises:
        ValueError: there are several processes, each of which would write.
    """

    def __init__(self, path: Path, fabric: Fabric | None = None) -> None:
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            raise ValueError("tables are made by one process: leave torchrun to the checkpoints")
        self.path = path
        self._device = torch.device("cpu") if fabric is None else fabric.device
        self._precision = PLAIN if fabric is None else precision_of(fabric)
        self._rows: dict[tuple[str, ...], dict[str, Any]] = {}
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_file():
            for line in path.read_text().splitlines():
                self._keep(json.loads(line))

    def _keep(self, row: dict[str, Any]) -> None:
        precision = row.get("precision", PLAIN)
        self._rows[row["model"], row["split"], row.get("recipe", ""), precision] = row

    def row(self, key: tuple[str, str, str], make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """The result of (model, split, mark). Where there is none `make` is called and its answer
        kept, in the file too, with the machine and the seconds that took, unless it tells them."""
        place = (*key, self._precision)
        if place not in self._rows:
            start = time.perf_counter()
            answer = make()
            model, split, recipe = key
            named = {"model": model, "split": split, "recipe": recipe}
            row = named | made(self._device, self._precision, start) | answer
            self._keep(row)
            with self.path.open("a") as file:
                file.write(json.dumps(row) + "\n")
        return self._rows[place]
