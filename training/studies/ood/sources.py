"""What each kind of checkpoint is shown, by its task."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from models.checkpoint import Checkpoint
from training.studies.ood.graphs import rows_of_graphs, rows_of_nodes
from training.studies.ood.pictures import rows_of_images, rows_of_pictures
from training.studies.ood.rows import FITTED, MOST, Source

_SOURCES: dict[str, Callable[[Checkpoint, Path | None, int, int], Source]] = {
    "anomaly": rows_of_nodes,
    "classification": rows_of_graphs,
    "completion": rows_of_images,
    "images": rows_of_pictures,
}


def source_of(
    checkpoint: Checkpoint, folder: Path | None = None, most: int = MOST, fitted: int = FITTED
) -> Source:
    """The rows to tell apart, no more than `most` of a kind and `fitted` to train on.

    Raises:
        FileNotFoundError: saying which data are not here.
        ValueError: the data are not those of the checkpoint, or nobody has said what else it may
            meet.
    """
    return _SOURCES[checkpoint.manifest.task](checkpoint, folder, most, fitted)
