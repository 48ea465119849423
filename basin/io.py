"""Read and write the files of the command line: tables, lists of molecules, images."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pandas as pd

IMAGE_SUFFIXES = frozenset((".png", ".jpg", ".jpeg", ".webp"))
TABLE_SUFFIXES = frozenset((".csv", ".tsv", ".parquet", ".json", ".jsonl"))


class FileError(Exception):
    """A file or an argument of the command line cannot be used."""


def read_table(path: Path) -> pd.DataFrame:
    """Read a table in the format of its suffix, or a folder of Parquet files.

    Raises:
        FileError: the suffix is unknown, or the file cannot be read.
    """
    suffix = path.suffix.lower()
    try:
        if suffix == ".parquet" or path.is_dir():
            return pd.read_parquet(path)
        if suffix in (".csv", ".tsv"):
            return pd.read_csv(path, sep="\t" if suffix == ".tsv" else ",")
        if suffix in (".json", ".jsonl"):
            return pd.read_json(path, lines=suffix == ".jsonl")
    except (OSError, ValueError) as error:
        raise FileError(f"{path}: {error}") from error
    raise _unknown_suffix(path)


def require_columns(frame: pd.DataFrame, names: Sequence[str], table: str) -> None:
    """
    Raises:
        FileError: the frame lacks one of the columns.
    """
    if missing := [name for name in names if name not in frame.columns]:
        columns = ", ".join(names)
        raise FileError(f"The {table} have no column {missing[0]}. Required columns: {columns}.")


def write_table(frame: pd.DataFrame, path: Path | None) -> None:
    """Write a table in the format of the suffix, or as CSV to standard output if `path` is None.

    Raises:
        FileError: the suffix is unknown.
    """
    if path is None:
        print(frame.to_csv(index=False), end="")
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    suffix = path.suffix.lower()
    if suffix == ".parquet":
        frame.to_parquet(path, index=False)
    elif suffix in (".csv", ".tsv"):
        frame.to_csv(path, index=False, sep="\t" if suffix == ".tsv" else ",")
    elif suffix in (".json", ".jsonl"):
        frame.to_json(path, orient="records", lines=suffix == ".jsonl")
    else:
        raise _unknown_suffix(path)


def read_smiles(path: Path, column: str | None) -> list[str]:
    """Read SMILES from a column of a table, or from the first word of each line of a text file.

    Raises:
        FileError: the file cannot be read, or has no such column.
    """
    if path.suffix.lower() in TABLE_SUFFIXES:
        frame = read_table(path)
        name = column or next((c for c in frame.columns if c.lower() == "smiles"), None)
        if name not in frame.columns:
            columns = ", ".join(map(str, frame.columns))
            raise FileError(f"{path}: no column of SMILES. Set --column to one of {columns}.")
        return [str(smiles) for smiles in frame[name]]
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise FileError(f"{path}: {error}") from error
    return [line.split()[0] for line in lines if line.strip() and not line.startswith("#")]


def find_images(paths: list[Path]) -> Iterator[Path]:
    """Yield the files among `paths`, and the images in the folders among them.

    Raises:
        FileError: a path does not exist.
    """
    for path in paths:
        if path.is_dir():
            yield from sorted(p for p in path.iterdir() if p.suffix.lower() in IMAGE_SUFFIXES)
        elif path.is_file():
            yield path
        else:
            raise FileError(f"{path}: no such file or folder.")


def _unknown_suffix(path: Path) -> FileError:
    suffixes = ", ".join(sorted(TABLE_SUFFIXES))
    return FileError(f"{path}: not the suffix of a table. Use one of {suffixes}.")
