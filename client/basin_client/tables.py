"""Read tables from files: the one reader of training, the command line and the client.

Text is kept exactly as written: `007`, `NA` and 2^64 stay what they are. Which columns are numbers
is decided by who reads them, see `basin_client.graph_tables`. Needs pandas and pyarrow.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import json
import os
import re
import sys
import zipfile
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pandas as pd
import pyarrow as pa
from pyarrow import csv as arrow_csv
from pyarrow import parquet

from basin_client.errors import InputError, one_line

TABLE_SUFFIXES = (".csv", ".tsv", ".parquet", ".pq", ".json", ".jsonl")
"""Each of the text formats also with `.gz` behind it, or as the only file in a `.zip`."""
_UNREADABLE = OSError, EOFError, zipfile.BadZipFile, zlib.error
_SEPARATORS = ",;\t|"
_HEAD_BYTES = 1 << 20  # the header has to end within these
_BOMS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


@dataclass(frozen=True)
class Table:
    """A table and the name by which messages call it."""

    frame: pd.DataFrame
    name: str

    def column(self, name: str) -> pd.Series:
        return cast(pd.Series, self.frame[name])

    def require_columns(self, options: dict[str, str]) -> None:
        """
        Args:
            options: name of each column, and the option that says which column it is.

        Raises:
            InputError: a column is missing; the message lists the columns and the option to pass.
        """
        for column, option in options.items():
            if column not in self.frame.columns:
                columns = self.frame.columns
                separator = ", or the separator with --separator" if len(columns) == 1 else ""
                raise InputError(
                    f"{self.name}: no column {column!r}. Columns: {list_names(columns)}. Name the "
                    f"column with {option}{separator}."
                )


def read_table(
    path: str | os.PathLike[str],
    *,
    separator: str | None = None,
    encoding: str | None = None,
) -> Table:
    """Read a CSV, TSV, Parquet, JSON or JSON Lines file, or a folder of Parquet files.

    Columns of text files are text, those of the others have their types. A column without a name is
    called `Unnamed: N`, N from 0.

    Args:
        path: ends in one of `TABLE_SUFFIXES`, text formats also with `.gz` behind it, or in `.zip`
            with one file of text in it; `-` is CSV from standard input.
        separator: between columns of CSV. If None it is that of `,`, `;`, tab and `|` which is most
            frequent in the header.
        encoding: of text; if None, UTF-8, or UTF-16 where the file begins with a byte-order mark.

    Raises:
        InputError: the file does not exist, or cannot be read as such a table.
    """
    name = "standard input" if str(path) == "-" else str(path)
    path = Path(path)
    if separator is not None and not (len(separator) == 1 and separator.isascii()):
        separator = {"\\t": "\t", "tab": "\t"}.get(separator, separator)
        if len(separator) != 1 or not separator.isascii():
            raise InputError(
                f"The separator {separator!r} must be one ASCII character, such as ; or tab."
            )
    try:
        suffix = _find_suffix(path, name)
        if path.is_dir() or suffix in (".parquet", ".pq"):
            frame = parquet.read_table(path).to_pandas(integer_object_nulls=True)
        elif suffix in (".json", ".jsonl"):
            frame = _read_json(_read_bytes(path), name, suffix, encoding)
        elif suffix in (".csv", ".tsv"):
            sep = separator or ("\t" if suffix == ".tsv" else None)
            frame = _read_delimited(path, name, sep, encoding)
        else:
            raise InputError(
                f"{name}: not the suffix of a table. Use one of {', '.join(TABLE_SUFFIXES)}."
            )
    except FileNotFoundError:
        raise InputError(f"{name}: no such file.") from None
    except pa.ArrowInvalid as error:
        raise InputError(f"{name}: not a readable table: {one_line(error)}") from error
    except _UNREADABLE as error:
        raise InputError(f"{name}: {one_line(error)}") from error
    require_distinct(list(frame.columns), name)
    return Table(frame, name)


def read_text(path: str | os.PathLike[str], encoding: str | None = None) -> str:
    """Read a text file, or its `.gz`, or standard input if `path` is `-`.

    Raises:
        InputError: the file does not exist, or is not in this encoding.
    """
    name = "standard input" if str(path) == "-" else str(path)
    try:
        return _decode(_read_bytes(Path(path)), name, encoding)
    except FileNotFoundError:
        raise InputError(f"{name}: no such file.") from None
    except _UNREADABLE as error:
        raise InputError(f"{name}: {one_line(error)}") from error


def require_distinct(columns: Sequence[Any], name: str) -> None:
    """
    Raises:
        InputError: two columns have one name.
    """
    index = pd.Index(columns)
    if not index.is_unique:
        again = index[index.duplicated()][0]
        raise InputError(f"{name}: two columns are called {again!r}. Rename or remove one.")


def list_names(names: Iterable[object], most: int = 20) -> str:
    """Join names for a message; of many, the first."""
    items = [str(name) for name in names]
    more = f" and {len(items) - most} more" if len(items) > most else ""
    return ", ".join(items[:most]) + more


def split_lines(text: str) -> list[str]:
    """Split at line ends alone; `str.splitlines` also splits at U+2028 and others within values."""
    return re.split(r"\r\n|\n|\r", text)


def _find_suffix(path: Path, name: str) -> str:
    """Return the suffix of a table, in lower case, without or within what compresses it."""
    if str(path) == "-":
        return ".csv"
    suffix = path.suffix.lower()
    if suffix == ".gz":
        return path.with_suffix("").suffix.lower()
    if suffix != ".zip" or path.is_dir():
        return suffix
    within = Path(_only_member(path)).suffix.lower()
    if within in (".parquet", ".pq"):
        raise InputError(f"{name}: Parquet in a zip file is not read. Unpack it first.")
    return within


def _only_member(path: Path) -> str:
    with zipfile.ZipFile(path) as archive:
        names = [m.filename for m in archive.infolist() if not m.is_dir()]
    names = [  # without what a file manager adds
        member
        for member in names
        if not member.startswith("__MACOSX/") and not Path(member).name.startswith(".")
    ]
    if len(names) != 1:
        raise InputError(
            f"{path}: has {len(names)} files ({list_names(names)}). A zip file must have one table "
            "in it: unpack it, and name the file."
        )
    return names[0]


def _open(path: Path) -> Any:
    if str(path) == "-":
        return io.BytesIO(sys.stdin.buffer.read())
    if path.suffix.lower() == ".zip":
        try:
            return zipfile.ZipFile(path).open(_only_member(path))
        except (RuntimeError, NotImplementedError) as error:  # a password, another compression
            raise InputError(f"{path}: {one_line(error)}. Unpack it first.") from error
    return gzip.open(path) if path.suffix.lower() == ".gz" else path.open("rb")


def _read_bytes(path: Path) -> bytes:
    with _open(path) as file:
        return file.read()


def _detect_encoding(head: bytes) -> str:
    return next((name for bom, name in _BOMS if head.startswith(bom)), "utf-8")


def _with_bom(encoding: str) -> str:
    """Return the variant of UTF-8 that drops a byte-order mark.

    Raises:
        LookupError: unknown encoding.
    """
    return "utf-8-sig" if codecs.lookup(encoding).name == "utf-8" else encoding


def _decode(content: bytes, name: str, encoding: str | None) -> str:
    try:
        return content.decode(_with_bom(encoding or _detect_encoding(content)))
    except LookupError:
        raise _unknown_encoding(encoding) from None
    except UnicodeError as error:
        raise _not_text(name, encoding) from error


def _not_text(name: str, encoding: str | None) -> InputError:
    assumed = (encoding or "utf-8").removesuffix("-sig")
    return InputError(
        f"{name}: the text is not {assumed}. Name its encoding with --encoding, for example cp1252 "
        "(Windows) or utf-16."
    )


def _unknown_encoding(encoding: str | None) -> InputError:
    return InputError(f"Unknown encoding {encoding!r}: use for example utf-8, cp1252 or utf-16.")


def _detect_separator(head: str, name: str) -> str:
    """Return the separator that is most frequent in the header, outside of quotes."""
    # Every second part between quotes is quoted; the header ends at the first line end outside.
    parts = head.split('"')
    unquoted = "".join(parts[::2])
    header = next((line for line in split_lines(unquoted) if line.strip()), "")
    counts = {separator: header.count(separator) for separator in _SEPARATORS}
    best = max(counts, key=lambda separator: counts[separator])
    if counts[best] == 0:
        return ","
    if sum(count == counts[best] for count in counts.values()) > 1:
        raise InputError(
            f"{name}: several separators are equally frequent in the header. Name it with "
            "--separator."
        )
    return best


def _read_delimited(
    path: Path, name: str, separator: str | None, encoding: str | None
) -> pd.DataFrame:
    """Read all columns of a CSV as text, nothing of which is taken for a missing value."""
    stream = _open(path)
    with stream:
        head = stream.read(_HEAD_BYTES)
        stream.seek(0)
        try:
            encoding = _with_bom(encoding or _detect_encoding(head))
            text = codecs.getincrementaldecoder(encoding)().decode(head)
        except LookupError:
            raise _unknown_encoding(encoding) from None
        except UnicodeError as error:
            raise _not_text(name, encoding) from error
        if not text.strip():
            raise InputError(
                f"{name}: the file is empty. A table needs a header with column names."
            )
        separator = separator or _detect_separator(text, name)
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator)
        try:
            header = next(row for row in reader if row)
        except csv.Error as error:
            raise InputError(f"{name}: the header cannot be read: {one_line(error)}.") from error
        _require_closed_quotes(stream, encoding, name)
        names = [column or f"Unnamed: {i}" for i, column in enumerate(header)]
        require_distinct(names, name)
        faults: list[tuple[int | None, int]] = []

        def note_fault(row: Any) -> str:
            faults.append((row.number, row.actual_columns))
            return "error"

        try:
            table = arrow_csv.read_csv(
                stream,
                # Without threads, so that a fault knows its row. With `utf-8-sig` Arrow would
                # transcode what it can read as it is, and it skips the byte-order mark.
                arrow_csv.ReadOptions(
                    use_threads=False,
                    column_names=names,
                    skip_rows=reader.line_num,
                    encoding="utf8" if encoding.startswith("utf-8") else encoding,
                ),
                arrow_csv.ParseOptions(
                    delimiter=separator,
                    newlines_in_values=True,
                    # In one column an empty line is an empty value.
                    ignore_empty_lines=len(names) > 1,
                    invalid_row_handler=note_fault,
                ),
                arrow_csv.ConvertOptions(
                    column_types=dict.fromkeys(names, pa.string()), strings_can_be_null=False
                ),
            )
        except UnicodeError as error:
            raise _not_text(name, encoding) from error
        except pa.ArrowInvalid as error:
            if faults:
                row, num_columns = faults[0]
                # Arrow counts the lines that were skipped.
                at = "a row" if row is None else f"row {row - reader.line_num}"
                raise InputError(
                    f"{name}: {at} has {num_columns} columns, the header has {len(names)}. Quote "
                    "values that contain the separator."
                ) from None
            if "UTF8" in str(error):
                raise _not_text(name, None) from error
            if "Empty CSV" in str(error):  # a header alone
                return pd.DataFrame({column: pd.Series([], dtype=str) for column in names})
            raise
    return table.to_pandas()


def _require_closed_quotes(stream: Any, encoding: str, name: str) -> None:
    """Arrow takes all that follows an unclosed quote for one value.

    Raises:
        InputError: the number of quotes is odd.
    """
    decoder = codecs.getincrementaldecoder(encoding)(errors="replace")
    is_bytes = encoding.startswith("utf-8")  # no part of another character is the byte of a quote
    count = 0
    while chunk := stream.read(_HEAD_BYTES):
        count += chunk.count(b'"') if is_bytes else decoder.decode(chunk).count('"')
    stream.seek(0)
    if count % 2:
        raise InputError(
            f"{name}: a quote is opened and not closed. Close it, or write a quote within a value "
            'as "" inside quotes.'
        )


def _read_json(content: bytes, name: str, suffix: str, encoding: str | None) -> pd.DataFrame:
    """Read a list of objects, or one object per line; whole numbers keep every digit."""
    text = _decode(content, name, encoding)
    try:
        if suffix == ".jsonl":
            rows = [json.loads(line) for line in split_lines(text) if line.strip()]
        else:
            rows = json.loads(text)
    except ValueError as error:
        raise InputError(f"{name}: not valid JSON: {one_line(error)}") from error
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise InputError(f"{name}: a table in JSON is a list of objects, one per row.")
    return pd.DataFrame(rows, dtype=object)
