"""A JSON lines file of results: each is appended when it is computed, and never computed twice."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, final

import numpy as np
import torch
from lightning_fabric import Fabric
from rich.progress import Progress
from torch import Tensor

from training.common.hardware import FULL_PRECISION, describe_run, precision_name

ResultRow = dict[str, Any]


class ResultKey(NamedTuple):
    """What identifies a result, beside the precision it was computed in.

    `config_hash` is stored as "recipe" in the file.
    """

    model: str
    split: str
    config_hash: str


def config_hash(config: Any) -> str:
    """Return 12 hex digits that identify `config`, a value that JSON can hold."""
    return hashlib.sha256(json.dumps(config).encode()).hexdigest()[:12]


def hash_arrays(*arrays: Tensor | np.ndarray) -> str:
    """Return the SHA-256 of the contents, types and shapes of arrays."""
    digest = hashlib.sha256()
    for array in arrays:
        contiguous = np.ascontiguousarray(array.cpu() if isinstance(array, Tensor) else array)
        digest.update(f"{contiguous.dtype}{contiguous.shape}".encode())
        digest.update(contiguous.data)
    return digest.hexdigest()


@final
class ResultsLog:
    """The results in one file, by model, split, config hash and precision.

    Args:
        path: the JSON lines file; it is created when the first result is added.
        fabric: the devices that results are computed on; None where nothing is trained.

    Raises:
        ValueError: there are several processes, and each of them would write.
    """

    def __init__(self, path: Path, fabric: Fabric | None = None) -> None:
        if (processes := int(os.environ.get("WORLD_SIZE", "1"))) > 1:
            raise ValueError(
                f"A results table must be made by one process, not {processes} (WORLD_SIZE). "
                "Start the command without torchrun."
            )
        self.path = path
        self._device = torch.device("cpu") if fabric is None else fabric.device
        self._precision = FULL_PRECISION if fabric is None else precision_name(fabric)
        self._rows: dict[tuple[str, ...], ResultRow] = {}
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_file():
            for line in path.read_text().splitlines():
                self._add(json.loads(line))

    def _add(self, row: ResultRow) -> None:
        # The first logs had neither a config hash nor a precision.
        precision = row.get("precision", FULL_PRECISION)
        self._rows[row["model"], row["split"], row.get("recipe", ""), precision] = row

    def get_or_compute(
        self, key: tuple[str, str, str], compute: Callable[[], ResultRow]
    ) -> ResultRow:
        """Return the result of (model, split, config hash); compute and append it if it is new.

        The machine and the seconds it took are added, unless `compute` returns them itself.
        """
        full_key = (*key, self._precision)
        if full_key not in self._rows:
            start = time.perf_counter()
            result = compute()
            model, split, recipe = key
            identity = {"model": model, "split": split, "recipe": recipe}
            row = identity | describe_run(self._device, self._precision, start) | result
            self._add(row)
            with self.path.open("a") as file:
                file.write(json.dumps(row) + "\n")
        return self._rows[full_key]

    def get_or_compute_all(
        self,
        jobs: Sequence[tuple[ResultKey, Callable[[], ResultRow]]],
        progress: Progress,
        title: str,
    ) -> dict[str, list[ResultRow]]:
        """Return the rows of all `jobs`, by model, and show `title` as the name of the progress."""
        rows: dict[str, list[ResultRow]] = {key.model: [] for key, _ in jobs}
        progress_id = progress.add_task(title, total=len(jobs))
        for key, compute in jobs:
            rows[key.model].append(self.get_or_compute(key, compute))
            progress.advance(progress_id)
        return rows
