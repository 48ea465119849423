"""What each kind of checkpoint is shown, by its task."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from models.checkpoint import Checkpoint
from training.studies.ood.graphs import load_graph_rows, load_node_rows
from training.studies.ood.pictures import load_completion_rows, load_labeled_image_rows
from training.studies.ood.rows import MAX_ROWS, MAX_TRAIN_ROWS, StudyRows

_SOURCES: dict[str, Callable[[Checkpoint, Path | None, int, int], StudyRows]] = {
    "anomaly": load_node_rows,
    "classification": load_graph_rows,
    "completion": load_completion_rows,
    "images": load_labeled_image_rows,
}


def load_study_rows(
    checkpoint: Checkpoint,
    folder: Path | None = None,
    max_rows: int = MAX_ROWS,
    max_train_rows: int = MAX_TRAIN_ROWS,
) -> StudyRows:
    """The rows to tell apart, no more than `most` of a kind and `fitted` to train on.

    Raises:
        FileNotFoundError: saying which data are not here.
        ValueError: the data are not those of the checkpoint, or it has no other datasets.
    """
    return _SOURCES[checkpoint.manifest.task](checkpoint, folder, max_rows, max_train_rows)
