"""Read molecules as SMILES from tables, from lines of text, or from Python objects.

In a file of lines (`.smi`, `.smiles`, `.txt`, each also with `.gz`) the first word of a line is the
SMILES and the rest is the name. A first line whose first word is `smiles` is a header; lines that
begin with # are comments. An extension of CXSMILES (`|...|` after the SMILES) is not read.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from basin_client.errors import InputError, require_extra

if TYPE_CHECKING:
    import pandas as pd

LINE_SUFFIXES = (".smi", ".smiles", ".txt")


@dataclass(frozen=True)
class SmilesTable:
    """Molecules of a file.

    Attributes:
        smiles: one text per molecule; blank where the file has none.
        columns: the other columns of the file, one row per molecule.
        notes: what was left out, one line each, to be told to the user.
    """

    smiles: list[str]
    columns: pd.DataFrame
    notes: list[str] = field(default_factory=list)


def read_smiles(
    path: str | os.PathLike[str],
    column: str | None = None,
    *,
    separator: str | None = None,
    encoding: str | None = None,
) -> SmilesTable:
    """Read the molecules of a file; `-` is lines from standard input.

    Args:
        column: of the SMILES, in a table; the one that is called `smiles` in any case if None.

    Raises:
        InputError: the file cannot be read, or has no such column.
        MissingLibraryError: pandas or pyarrow is not installed.
    """
    with require_extra("pandas"):
        import pandas as pd

        from basin_client.tables import read_table, read_text, split_lines

    if not is_line_file(path):
        table = read_table(path, separator=separator, encoding=encoding)
        return _from_frame(table.frame, column, table.name)
    name = "standard input" if str(path) == "-" else str(path)
    text = read_text(path, encoding)
    lines = [line for line in split_lines(text) if line.strip() and line.strip()[0] != "#"]
    if lines and (column is not None or _has_header(lines[0], separator)):
        return _from_frame(_split_rows(lines, separator, name), column, name)
    notes = list[str]()
    words = [line.split(maxsplit=1) for line in lines]
    if words and words[0][0].lower() == "smiles":
        notes.append(f"{name}: the first line is a header.")
        words = words[1:]
    names, num_extensions = list[str](), 0
    for _, *rest in words:
        rest_text = rest[0].strip() if rest else ""
        if rest_text.startswith("|") and "|" in rest_text[1:]:
            num_extensions += 1
            rest_text = rest_text[1:].partition("|")[2].strip()
        names.append(rest_text)
    if num_extensions:
        notes.append(f"{name}: the CXSMILES extensions of {num_extensions} molecules are not read.")
    columns = pd.DataFrame({"name": names}) if any(names) else pd.DataFrame(index=range(len(names)))
    return SmilesTable([word[0] for word in words], columns, notes)


def is_line_file(path: str | os.PathLike[str]) -> bool:
    """Whether a file has one SMILES per line, by its name."""
    name = str(path).lower()
    return name == "-" or name.removesuffix(".gz").endswith(LINE_SUFFIXES)


def looks_like_file(text: str) -> bool:
    """Whether an argument is meant as a file rather than as SMILES: by its suffix, which no SMILES
    has, or because there is such a file."""
    with require_extra("pandas"):
        from basin_client.tables import TABLE_SUFFIXES

    suffixes = (*LINE_SUFFIXES, *TABLE_SUFFIXES, ".gz", ".sdf", ".mol", ".xlsx")
    if text == "-" or text.lower().endswith(suffixes):
        return True
    try:
        return Path(text).is_file()
    except (OSError, ValueError):  # a long SMILES is no name of a file
        return False


def find_smiles_column(columns: Iterable[object], column: str | None, name: str) -> str:
    """Return the column of the SMILES: the one of this name, or else of this name in any case.

    Raises:
        InputError: there is none, or several.
    """
    names = [str(item) for item in columns]
    wanted = column or "smiles"
    if wanted in names:
        return wanted
    matches = [item for item in names if item.strip().lower() == wanted.lower()]
    if len(matches) == 1:
        return matches[0]
    raise InputError(
        f"{name}: no column {wanted!r}. Columns: {', '.join(names[:20])}. Name the column of the "
        "SMILES with --column (--smiles-column in training), or the separator with --separator."
    )


def to_smiles_list(items: Sequence[Any]) -> list[str] | None:
    """Return SMILES of texts and RDKit molecules, blank for None and NaN; None if other objects
    are among them."""
    texts = list[str]()
    for item in items:
        if isinstance(item, str):
            texts.append(str(item))
        elif item is None or (isinstance(item, float) and item != item) or str(item) == "<NA>":
            texts.append("")
        elif hasattr(item, "GetAtoms"):
            with require_extra("rdkit"):
                from rdkit import Chem

            # Not canonical: explanations number the atoms as the molecule does.
            texts.append(Chem.MolToSmiles(item, canonical=False))
        else:
            return None
    return texts


def _has_header(line: str, separator: str | None) -> bool:
    """Whether a line names several columns, SMILES among them."""
    cells = [cell.strip().strip('"').lower() for cell in line.split(_separator(line, separator))]
    return len(cells) > 1 and "smiles" in cells


def _separator(header: str, separator: str | None) -> str:
    return separator or max(",;\t", key=header.count)


def _split_rows(lines: Sequence[str], separator: str | None, name: str) -> pd.DataFrame:
    """Read lines that have a header, as CSV with quotes."""
    import csv

    import pandas as pd

    from basin_client.tables import require_distinct

    header, *rows = csv.reader(lines, delimiter=_separator(lines[0], separator))
    header = [cell.strip() for cell in header]
    require_distinct(header, name)
    for i, row in enumerate(rows):
        if len(row) != len(header):
            raise InputError(
                f"{name}: row {i + 1} has {len(row)} columns, the header has {len(header)}."
            )
    return pd.DataFrame(rows, columns=pd.Index(header), dtype=str)


def _from_frame(frame: pd.DataFrame, column: str | None, name: str) -> SmilesTable:
    name_of_smiles = find_smiles_column(frame.columns, column, name)
    smiles = to_smiles_list(list(frame[name_of_smiles]))
    if smiles is None:
        raise InputError(f"{name}: column {name_of_smiles!r} holds {frame[name_of_smiles].dtype}.")
    return SmilesTable(smiles, frame.drop(columns=name_of_smiles))
