"""A table of SMILES with one or more binary or named labels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from models.graph_classifier import Task
from models.molecules import ATOM_COLUMNS, BOND_COLUMNS, Molecule, MoleculeError, parse
from training.datasets.graphs import GraphDataset


def load_smiles(
    path: Path, smiles_column: str, labels: Sequence[str], name: str | None = None
) -> GraphDataset:
    """Molecules of a CSV or Parquet table; each column of `labels` is a task, empty means unknown.

    Rows whose SMILES gives no graph are left out; `note` counts them by cause.

    Raises:
        ValueError: naming the column that is not there or has a single value.
    """
    table = pd.read_parquet(path) if path.suffix in (".parquet", ".pq") else pd.read_csv(path)
    if missing := [c for c in (smiles_column, *labels) if c not in table]:
        raise ValueError(f"{path} has no column {missing[0]!r}")
    molecules: list[Molecule] = []
    kept: list[int] = []
    refused: Counter[str] = Counter()
    for row, text in enumerate(table[smiles_column].fillna("").astype(str)):
        try:
            molecules.append(parse(text))
            kept.append(row)
        except MoleculeError as error:
            refused[error.code] += 1
    columns, tasks = [], []
    for label in labels:
        codes, values = pd.factorize(table[label], sort=True)
        if len(values) < 2:
            raise ValueError(f"{path}: column {label!r} has fewer than two values")
        columns.append(codes[kept])  # a missing value is -1
        tasks.append(Task(name=label, labels=tuple(_plain(value) for value in values)))
    left_out = ", ".join(f"{count} {code}" for code, count in sorted(refused.items()))
    return GraphDataset(
        name or path.stem.lower(),
        tuple(molecule.graph for molecule in molecules),
        np.stack(columns, 1).astype(np.int64),
        tuple(tasks),
        ATOM_COLUMNS,
        BOND_COLUMNS,
        tuple(molecule.smiles for molecule in molecules),
        f"Left out: {left_out}." if left_out else "",
    )


def _plain(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
