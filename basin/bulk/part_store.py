"""Arrays of a graph in parts, in a folder that all who work on it share."""

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
    """Each array has a row for each node, those of a part in a file of its own.

    A file is there whole or not at all, and holds the same whoever writes it (up to rounding where
    threads are not as many): parts may be done twice, and by several at once.

    Attributes:
        bounds: the first node of each part, and the end.
    """

    folder: Path
    bounds: tuple[int, ...]

    @property
    def parts(self) -> range:
        return range(len(self.bounds) - 1)

    def put(self, name: str, part: int, array: np.ndarray | Tensor) -> None:
        path = self._path(name, part)
        path.parent.mkdir(parents=True, exist_ok=True)
        own = path.with_suffix(f".{os.uname().nodename}-{os.getpid()}.tmp")
        with own.open("wb") as file:
            np.save(file, np.asarray(array), allow_pickle=False)
            file.flush()
            os.fsync(file.fileno())  # a mark must not outlive it
        own.replace(path)

    def get(self, name: str, part: int) -> np.ndarray:
        """The rows of a part; they stay on the disk until they are looked at."""
        return np.asarray(np.load(self._path(name, part), mmap_mode="c", allow_pickle=False))

    def gather(self, name: str, rows: np.ndarray) -> np.ndarray:
        """Some rows of the whole graph, which ascend."""
        cuts = np.searchsorted(rows, self.bounds)
        found: np.ndarray | None = None
        for part, (start, stop) in enumerate(pairwise(cuts)):
            if start < stop:
                there = self.get(name, part)
                if found is None:
                    found = np.empty((len(rows), *there.shape[1:]), there.dtype)
                found[start:stop] = there[rows[start:stop] - self.bounds[part]]
        if found is None:
            like = self.get(name, 0)
            found = np.empty((0, *like.shape[1:]), like.dtype)
        return found

    def every(self, name: str) -> Iterator[np.ndarray]:
        """Part after part, in memory."""
        return (np.array(self.get(name, part)) for part in self.parts)

    def mark(self, name: str, part: int | None = None) -> None:
        """A pass is done, of a part or of all."""
        path = self._mark(name, part)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()

    def marked(self, name: str, part: int | None = None) -> bool:
        return self._mark(name, part).exists()

    def drop(self, *names: str) -> None:
        """Nobody needs them any more; names may be patterns."""
        for name in names:
            for path in self.folder.glob(name):
                if path.is_dir():
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    path.unlink(missing_ok=True)

    def _path(self, name: str, part: int) -> Path:
        return self.folder / name / f"{part}.npy"

    def _mark(self, name: str, part: int | None) -> Path:
        return self.folder / "done" / (name if part is None else f"{name}.{part}")
