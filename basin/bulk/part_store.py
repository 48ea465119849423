"""Arrays of a graph in parts, in a folder that all workers share."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import final

import numpy as np
from torch import Tensor


@final
@dataclass(frozen=True)
class PartStore:
    """Arrays with one row per node, the rows of each part in a file of their own.

    A file is either complete or absent, and its content does not depend on who writes it (up to
    rounding if numbers of threads differ). So a part may be computed twice, and by several workers
    at the same time.

    Attributes:
        bounds: the first node of each part, and the number of nodes.
    """

    folder: Path
    bounds: tuple[int, ...]

    @property
    def parts(self) -> range:
        return range(len(self.bounds) - 1)

    def write(self, name: str, part: int, array: np.ndarray | Tensor) -> None:
        path = self._array_path(name, part)
        path.parent.mkdir(parents=True, exist_ok=True)
        # Each worker writes to a file of its own name, which then replaces the array atomically.
        temporary = path.with_suffix(f".{os.uname().nodename}-{os.getpid()}.tmp")
        with temporary.open("wb") as file:
            np.save(file, np.asarray(array), allow_pickle=False)
            file.flush()
            # After a power failure the mark of a stage must not be there without its arrays.
            os.fsync(file.fileno())
        temporary.replace(path)

    def read(self, name: str, part: int) -> np.ndarray:
        """Return the rows of a part, mapped from the file (copy on write)."""
        return np.asarray(np.load(self._array_path(name, part), mmap_mode="c", allow_pickle=False))

    def read_all(self, name: str) -> Iterator[np.ndarray]:
        """Yield the rows of one part after the other, in memory."""
        return (np.array(self.read(name, part)) for part in self.parts)

    def gather(self, name: str, rows: np.ndarray) -> np.ndarray:
        """Return rows of the whole graph; `rows` is ascending."""
        like = self.read(name, 0)
        gathered = np.empty((len(rows), *like.shape[1:]), like.dtype)
        cuts = np.searchsorted(rows, self.bounds)
        for part, (start, stop) in enumerate(pairwise(cuts)):
            if start < stop:
                gathered[start:stop] = self.read(name, part)[rows[start:stop] - self.bounds[part]]
        return gathered

    def mark_done(self, stage: str, part: int | None = None) -> None:
        """Record that a stage is done, for one part or for all."""
        path = self._mark_path(stage, part)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()

    def is_done(self, stage: str, part: int | None = None) -> bool:
        return self._mark_path(stage, part).exists()

    def delete(self, *names: str) -> None:
        """Delete arrays, or files and folders that match glob patterns."""
        for name in names:
            for path in self.folder.glob(name):
                if path.is_dir():
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    path.unlink(missing_ok=True)

    def _array_path(self, name: str, part: int) -> Path:
        return self.folder / name / f"{part}.npy"

    def _mark_path(self, stage: str, part: int | None) -> Path:
        return self.folder / "done" / (stage if part is None else f"{stage}.{part}")
