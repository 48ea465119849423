"""Which rows of a table train, validate and test, by the option --split."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
from basin_client.tables import Table, read_table

from training.datasets.nodes import Split

OPTION_HELP = (
    "column:NAME, whose values are train, val and test; group:NAME, rows of one value in one part; "
    "or a CSV with columns id and part, as --split-out writes it"
)
_SHARES = (0.6, 0.8)  # where the validation and the test part begin
_PARTS = {"train": 0, "val": 1, "validation": 1, "test": 2, "": -1}


def choose_split(
    labels: np.ndarray,
    ids: np.ndarray,
    split: str,
    read_column: Callable[[str], np.ndarray],
    show_row: Callable[[int], str],
) -> Split:
    """Return the split of an option, other than by time.

    Args:
        labels: (N,) 1, 0, or -1 for rows that are not labelled and so in no part.
        ids: (N,).
        split: `column:NAME`, `group:NAME`, or the path of a CSV with columns `id` and `part`.
        read_column: returns a column as text (N,), blank where a value is missing.
        show_row: names a row in messages.

    Raises:
        InputError: there is no such column, or the file cannot be read.
        ValueError: there is no such file, a part would be empty, or the column or file does not
            say what is in which.
    """
    kind, _, name = split.partition(":")
    if kind == "column" and name:
        return _split_by_parts(labels, read_column(name), split, show_row)
    if kind == "group" and name:
        return _split_by_group(labels, read_column(name), split, show_row)
    path = Path(split)
    if not path.exists():
        raise ValueError(f"--split {split}: there is no such file. Use {OPTION_HELP}.")
    return _split_by_file(labels, ids, path)


def split_by_time(labels: np.ndarray, times: np.ndarray, name: str = "time") -> Split:
    """Split the labelled rows at two times: 60 % to train on, 20 % to validate, the rest to test.

    Rows of equal time are in one part.

    Args:
        labels: (N,).
        times: (N,) in any order.

    Raises:
        ValueError: a part would be empty.
    """
    labelled = np.flatnonzero(labels >= 0)
    ordered = np.sort(times[labelled])
    ends = np.array(_SHARES) * len(ordered)
    cuts = [ordered[min(int(end), len(ordered) - 1)] if len(ordered) else 0.0 for end in ends]
    part = np.searchsorted(cuts, times[labelled], side="right")
    reason = f"{len(labelled)} rows are labelled, of which many have one time. Label more rows."
    return _to_split(name, labelled, part, reason)


def read_part_column(table: Table, name: str) -> np.ndarray:
    """Return a column as text (N,), blank where a value is missing.

    Raises:
        InputError: there is no such column.
    """
    table.require_columns({name: "--split"})
    column = table.column(name)
    return column.astype(str).str.strip().where(~column.isna(), "").to_numpy(object)


def write_split(path: Path, ids: np.ndarray, split: Split) -> None:
    """Write the id and the part of each labelled row, as CSV."""
    parts = [pd.DataFrame({"id": ids[rows], "part": name}) for name, rows in split.parts().items()]
    pd.concat(parts).to_csv(path, index=False)


def _split_by_parts(
    labels: np.ndarray, texts: np.ndarray, name: str, show_row: Callable[[int], str]
) -> Split:
    parts = pd.Series(texts).str.strip().str.lower().map(_PARTS)
    if (unknown := parts.isna().to_numpy()).any():
        row = int(unknown.argmax())
        raise ValueError(
            f"--split {name}: {show_row(row)}: {texts[row]!r} is no part. Use train, val and test, "
            "and leave blank what is not used."
        )
    labelled = np.flatnonzero(labels >= 0)
    part = parts.to_numpy(int)[labelled]
    return _to_split(name, labelled, part, "no labelled row is in it.")


def _split_by_group(
    labels: np.ndarray, groups: np.ndarray, name: str, show_row: Callable[[int], str]
) -> Split:
    """All labelled rows of a group in one part, drawn at random, always the same: 60 % of the
    groups to train on, 20 % to validate, the rest to test."""
    labelled = np.flatnonzero(labels >= 0)
    if (blank := groups[labelled] == "").any():
        row = int(labelled[blank][0])
        raise ValueError(f"--split {name}: {show_row(row)} has no group. Fill it in.")
    # By name, so that a group's part does not depend on the order of the rows.
    codes, names = pd.factorize(groups[labelled], sort=True)
    place = np.random.default_rng(0).permutation(len(names))[codes]
    part = np.searchsorted(np.array(_SHARES) * len(names), place, side="right")
    return _to_split(name, labelled, part, f"there are {len(names)} groups. Use smaller ones.")


def _split_by_file(labels: np.ndarray, ids: np.ndarray, path: Path) -> Split:
    """Rows that the file does not name are not used."""
    table = read_table(path)
    table.require_columns({"id": "the name `id`", "part": "the name `part`"})
    parts = table.frame[["id", "part"]].astype(str).set_index("id")["part"]
    if not parts.index.is_unique:
        raise ValueError(f"{path}: the id {parts.index[parts.index.duplicated()][0]!r} is twice.")
    known = pd.Index(ids.astype(str))
    if len(unknown := parts.index.difference(known)):
        raise ValueError(
            f"{path}: {len(unknown)} ids are not in the table, the first is {unknown[0]!r}."
        )
    texts = parts.reindex(known).fillna("").to_numpy(object)
    return _split_by_parts(labels, texts, path.name, lambda row: f"id {ids[row]}")


def _to_split(name: str, rows: np.ndarray, part: np.ndarray, reason: str) -> Split:
    split = Split(name, *(rows[part == i] for i in range(3)))
    for part_name, chosen in split.parts().items():
        if not len(chosen):
            raise ValueError(f"The part `{part_name}` of the split {name} is empty: {reason}")
    return split
