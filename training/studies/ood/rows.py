"""Rows as a client poses them, a network's own and other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

MAX_ROWS = 400  # rows of one kind
MAX_TRAIN_ROWS = 1500  # training rows
SAME_ROWS = "the same"  # rows of its own, asked for otherwise than in the reference

RowBatches = Iterator[tuple[Any, np.ndarray, np.ndarray]]
"""Batches, with the nodes, tokens or patches of each row and the place of what stands for it in
the output and in what the head reads."""


@dataclass(frozen=True)
class RowSet:
    """Rows of one kind: what is posed anew each time it is asked for, and labels where known."""

    batches: Callable[[], RowBatches]
    labels: np.ndarray | None = None


@dataclass(frozen=True)
class StudyRows:
    """A checkpoint's own rows by part, `train`, `val` and `test`, and others by what they are."""

    own: Mapping[str, RowSet]
    others: Mapping[str, RowSet]
