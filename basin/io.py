"""Tables, lists of molecules and pictures as they lie on a disk."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pandas as pd

PICTURES = frozenset((".png", ".jpg", ".jpeg", ".webp"))
TABLES = frozenset((".csv", ".tsv", ".parquet", ".json", ".jsonl"))


class FileError(Exception):
    """A file that is not what was asked for, with the reason."""


def read_table(path: Path) -> pd.DataFrame:
    """
    Raises:
        FileError: it is no table that is known here.
    """
    kind = path.suffix.lower()
    try:
        if kind == ".parquet" or path.is_dir():
            return pd.read_parquet(path)
        if kind in (".csv", ".tsv"):
            return pd.read_csv(path, sep="\t" if kind == ".tsv" else ",")
        if kind in (".json", ".jsonl"):
            return pd.read_json(path, lines=kind == ".jsonl")
    except (OSError, ValueError) as error:
        raise FileError(f"{path}: {error}") from error
    raise FileError(f"{path}: a table ends in {', '.join(sorted(TABLES))}")


def write_table(frame: pd.DataFrame, path: Path | None) -> None:
    """To a file by its ending, or as CSV to standard output.

    Raises:
        FileError: the ending is that of no table.
    """
    if path is None:
        print(frame.to_csv(index=False), end="")
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    kind = path.suffix.lower()
    if kind == ".parquet":
        frame.to_parquet(path, index=False)
    elif kind in (".csv", ".tsv"):
        frame.to_csv(path, index=False, sep="\t" if kind == ".tsv" else ",")
    elif kind in (".json", ".jsonl"):
        frame.to_json(path, orient="records", lines=kind == ".jsonl")
    else:
        raise FileError(f"{path}: a table ends in {', '.join(sorted(TABLES))}")


def read_smiles(path: Path, column: str | None) -> list[str]:
    """The molecules of a table, or of a file with one in the first word of each line.

    Raises:
        FileError: there is no such column.
    """
    if path.suffix.lower() in TABLES:
        frame = read_table(path)
        name = column or next((c for c in frame.columns if c.lower() == "smiles"), None)
        if name not in frame.columns:
            there = ", ".join(map(str, frame.columns))
            raise FileError(f"{path}: name the column of SMILES with --column; there are {there}")
        return [str(text) for text in frame[name]]
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise FileError(f"{path}: {error}") from error
    return [line.split()[0] for line in lines if line.strip() and not line.startswith("#")]


def pictures(paths: list[Path]) -> Iterator[Path]:
    """Those named, and those in folders that are named.

    Raises:
        FileError: there is no such file.
    """
    for path in paths:
        if path.is_dir():
            yield from sorted(p for p in path.iterdir() if p.suffix.lower() in PICTURES)
        elif path.is_file():
            yield path
        else:
            raise FileError(f"{path}: there is no such file")
