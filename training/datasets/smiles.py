"""A table of SMILES with one or more binary or named labels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from models.inputs.molecules import (
    ATOM_COLUMNS,
    BOND_COLUMNS,
    Molecule,
    MoleculeError,
    parse_smiles,
)
from models.tasks.graph_classifier import ClassificationTask
from training.datasets.graphs import GraphDataset

_MOST_LABELS = 50


def load_smiles(
    path: Path, smiles_column: str, labels: Sequence[str], name: str | None = None
) -> GraphDataset:
    """Molecules of a CSV or Parquet table; each column of `labels` is a task, empty means unknown.

    Rows whose SMILES gives no graph are left out. A molecule that comes again, which its canonical
    SMILES tells, is kept once; where its labels contradict each other it has none of that task.
    `note` counts both.

    Raises:
        ValueError: naming the column that is not there, has a single value, or holds numbers to
            predict rather than labels.
    """
    table = pd.read_parquet(path) if path.suffix in (".parquet", ".pq") else pd.read_csv(path)
    if missing := [c for c in (smiles_column, *labels) if c not in table]:
        raise ValueError(f"{path} has no column {missing[0]!r}")
    columns, tasks = [], []
    for label in labels:
        codes, values = pd.factorize(table[label], sort=True)
        if not 2 <= len(values) <= _MOST_LABELS:
            raise ValueError(
                f"{path}: column {label!r} has {len(values)} values; labels are 2 to {_MOST_LABELS}"
            )
        columns.append(codes)  # a missing value is -1
        tasks.append(
            ClassificationTask(name=label, labels=tuple(_plain(value) for value in values))
        )
    labels_NT = np.stack(columns, 1).astype(np.int64)
    found: dict[str, Molecule] = {}
    rows: dict[str, list[int]] = {}
    refused: Counter[str] = Counter()
    for row, text in enumerate(table[smiles_column].fillna("").astype(str)):
        try:
            molecule = parse_smiles(text)
        except MoleculeError as error:
            refused[error.code] += 1
            continue
        found.setdefault(molecule.smiles, molecule)
        rows.setdefault(molecule.smiles, []).append(row)
    known = np.array([_agreed(labels_NT[of_one]) for of_one in rows.values()])
    return GraphDataset(
        name or path.stem.lower(),
        tuple(molecule.graph for molecule in found.values()),
        known,
        tuple(tasks),
        ATOM_COLUMNS,
        BOND_COLUMNS,
        tuple(found),
        _note(refused, list(rows.values()), labels_NT, known),
    )


def _agreed(labels_RT: np.ndarray) -> np.ndarray:
    """The label of each task that the rows of one molecule agree on, or -1."""
    lowest = np.where(labels_RT < 0, np.iinfo(np.int64).max, labels_RT).min(0)
    highest = labels_RT.max(0)
    return np.where(lowest == highest, highest, -1)


def _note(
    refused: Counter[str], rows: list[list[int]], labels_NT: np.ndarray, known: np.ndarray
) -> str:
    parts = [f"{count} {code}" for code, count in sorted(refused.items())]
    if twice := sum(len(of_one) - 1 for of_one in rows):
        parts.append(f"{twice} that came again")
    note = f"Left out: {', '.join(parts)}." if parts else ""
    contradicted = sum(
        int(((labels_NT[of_one].max(0) >= 0) & (agreed < 0)).any())
        for of_one, agreed in zip(rows, known, strict=True)
    )
    if contradicted:
        note += f" {contradicted} had contradicting labels, which do not count."
    return note


def _plain(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
