"""Write the outputs of the command line, and find images."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pandas as pd
from basin_client import InputError

IMAGE_SUFFIXES = frozenset((".png", ".jpg", ".jpeg", ".webp"))
OTHER_IMAGE_SUFFIXES = frozenset(
    (".avif", ".bmp", ".gif", ".heic", ".heif", ".jp2", ".jxl", ".tif", ".tiff")
)
"""Formats that the server refuses, with a message that says how to convert."""
_OUTPUT_SUFFIXES = (".csv", ".tsv", ".parquet", ".json", ".jsonl")


def write_table(frame: pd.DataFrame, path: Path | None, *, as_json: bool = False) -> None:
    """Write a table in the format of the suffix; to standard output if `path` is None.

    Args:
        as_json: write JSON to standard output, and not CSV.

    Raises:
        InputError: the suffix is unknown.
    """
    if path is None:
        print(_to_json(frame) if as_json else frame.to_csv(index=False), end="")
        return
    require_table_suffix(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    suffix = path.suffix.lower()
    if suffix == ".parquet":
        frame.to_parquet(path, index=False)
    elif suffix in (".csv", ".tsv"):
        frame.to_csv(path, index=False, sep="\t" if suffix == ".tsv" else ",")
    elif suffix == ".json":
        path.write_text(_to_json(frame), encoding="utf-8")
    else:
        frame.to_json(path, orient="records", lines=True, double_precision=15)


def require_table_suffix(path: Path | None) -> None:
    """
    Raises:
        InputError: a table cannot be written to a file of this name.
    """
    if path is not None and path.suffix.lower() not in _OUTPUT_SUFFIXES:
        raise InputError(
            f"--out {path}: not the suffix of a table. Use one of {', '.join(_OUTPUT_SUFFIXES)}."
        )


def add_columns(results: pd.DataFrame, inputs: pd.DataFrame) -> pd.DataFrame:
    """Append the columns of the inputs, row by row; one that has the name of a result is called
    `input.` and its name."""
    names = {name: f"input.{name}" for name in inputs.columns if name in results.columns}
    inputs = inputs.rename(columns=names)
    return pd.concat([results.reset_index(drop=True), inputs.reset_index(drop=True)], axis=1)


def find_images(paths: list[Path], tell: Callable[[str], None]) -> Iterator[Path]:
    """Yield the files among `paths`, and the images in the folders among them.

    Args:
        tell: called with a line about files in folders that are no images.
    """
    for path in paths:
        if not path.is_dir():
            yield path
            continue
        files = sorted(file for file in path.iterdir() if file.is_file())
        images = [f for f in files if f.suffix.lower() in IMAGE_SUFFIXES | OTHER_IMAGE_SUFFIXES]
        if others := [file.name for file in files if file not in images]:
            tell(f"{path}: left out, for they are no images: {', '.join(others[:5])}.")
        yield from images


def _to_json(frame: pd.DataFrame) -> str:
    rows = json.loads(frame.to_json(orient="records", double_precision=15) or "[]")
    return json.dumps(rows, indent=1, ensure_ascii=False) + "\n"
