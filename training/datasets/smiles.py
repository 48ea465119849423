"""A table of SMILES with one or more binary or named labels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from basin_client.columns import read_numbers
from basin_client.errors import InputError
from basin_client.smiles import find_smiles_column, to_smiles_list
from basin_client.tables import Table, read_table

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
    path: Path,
    smiles_column: str,
    labels: Sequence[str],
    name: str | None = None,
    *,
    separator: str | None = None,
    encoding: str | None = None,
) -> GraphDataset:
    """Read the molecules of a table; each column of `labels` is a task, blank means unknown.

    Rows whose SMILES gives no graph are left out. A molecule that occurs again, by its canonical
    SMILES, is kept once; where its labels contradict each other it has none of that task. `note`
    counts both.

    Raises:
        InputError: a column is missing, has a single value, or holds numbers to predict rather than
            labels; or no molecule can be read.
    """
    table = read_table(path, separator=separator, encoding=encoding)
    smiles_column = find_smiles_column(table.frame.columns, smiles_column, table.name)
    table.require_columns(dict.fromkeys(labels, "--label"))
    columns, tasks = [], []
    for label in labels:
        codes, values = _read_classes(table, label)
        columns.append(codes)
        tasks.append(ClassificationTask(name=label, labels=values))
    labels_NT = np.stack(columns, 1).astype(np.int64)
    texts = to_smiles_list(list(table.frame[smiles_column]))
    if texts is None:
        raise InputError(f"{table.name}: column {smiles_column!r} does not hold text.")
    found: dict[str, Molecule] = {}
    rows: dict[str, list[int]] = {}
    refused: Counter[str] = Counter()
    for row, text in enumerate(texts):
        try:
            molecule = parse_smiles(text)
        except MoleculeError as error:
            refused[error.code] += 1
            continue
        found.setdefault(molecule.smiles, molecule)
        rows.setdefault(molecule.smiles, []).append(row)
    if not found:
        raise InputError(
            f"{table.name}: none of {len(texts)} rows of column {smiles_column!r} can be read as "
            f"SMILES ({', '.join(f'{count} {code}' for code, count in sorted(refused.items()))})."
        )
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


def _read_classes(table: Table, label: str) -> tuple[np.ndarray, tuple[str, ...]]:
    """Return the class of each row, -1 where it is blank, and the names of the classes in order.

    Raises:
        InputError: there are too few or too many classes, their names differ only in case or
            blanks, or they are numbers with decimals.
    """
    where = f"{table.name}: column {label!r}"
    column = table.column(label)
    texts = ["" if blank else str(v) for v, blank in zip(column, column.isna(), strict=True)]
    try:
        numbers_N = read_numbers(column, table.name)
    except InputError:  # names
        numbers_N = None
    if numbers_N is not None and not pd.api.types.is_bool_dtype(column):
        if (numbers_N[np.isfinite(numbers_N)] % 1).any():
            raise InputError(
                f"{where} holds numbers with decimals, which are no classes. Make labels of them, "
                "for example by a threshold."
            )
        if {text.lower() for text in texts} - {"", "true", "false"}:
            texts = ["" if np.isnan(number) else f"{number:.0f}" for number in numbers_N]
    codes, names = pd.factorize(np.array(texts, object), sort=False)
    values = [str(name) for name in names if str(name).strip()]
    merged = {value.strip().lower() for value in values}
    if len(merged) < len(values):
        alike = next(v for v in values if [w.strip().lower() for w in values].count(v.lower()) > 1)
        raise InputError(
            f"{where}: some labels differ from {alike!r} only in case or blanks. Write them alike."
        )
    if not 2 <= len(values) <= _MOST_LABELS:
        raise InputError(f"{where} has {len(values)} values; labels are 2 to {_MOST_LABELS}.")
    values.sort(key=(lambda v: (float(v), v)) if all(map(_is_number, values)) else None)
    places = np.array([values.index(str(n)) if str(n).strip() else -1 for n in names], np.int64)
    return places[codes], tuple(values)


def _is_number(text: str) -> bool:
    return text.lstrip("-").isdecimal()
