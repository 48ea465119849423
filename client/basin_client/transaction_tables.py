"""A table of transactions, whose columns are named: for training, the command line and the client.

Ids, numbers and labels mean what they mean in tables of graphs, see `basin_client.columns`. A time
is a timestamp (ISO 8601 as text, or the type of a table format), where none of the column is a
number, and a number otherwise. Needs pandas and pyarrow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import pandas as pd

from basin_client.columns import read_labels, read_numbers, to_ids
from basin_client.errors import InputError
from basin_client.tables import Table, list_names, require_distinct


@dataclass(frozen=True)
class TransactionColumns:
    """Which column is what; the names of the options that say so are those of the fields.

    Attributes:
        category: columns of categories.
        shared: columns whose value links transactions.
        number: columns of other numbers.
        label: column of the label, 1 for fraud; None where there is none.
        unlabelled: a value of `label` that says that a row is not labelled, as a blank does.
        id: column of the id; without one, rows go by their number from 1.
        drop: columns to leave out; `*` is every column that is nothing else.
        is_of_model: the names are those of a model that was trained, and cannot be chosen.
    """

    time: str = "time"
    source: str = "source"
    target: str = "target"
    amount: str = "amount"
    category: Sequence[str] = ()
    shared: Sequence[str] = ()
    number: Sequence[str] = ()
    label: str | None = None
    unlabelled: str | None = None
    id: str | None = None
    drop: Sequence[str] = ()
    decimal: str = "."
    is_of_model: bool = False

    @classmethod
    def from_recipe(
        cls,
        recipe: Mapping[str, Any],
        *,
        id: str | None = None,
        drop: Sequence[str] = (),
        decimal: str = ".",
        unlabelled: str | None = None,
    ) -> TransactionColumns:
        """Return the columns that a model reads: `transactions` of `GET /models/{name}`."""
        return cls(
            *(recipe[name] for name in ("time", "source", "target", "amount")),
            category=tuple(recipe["categories"]),
            shared=tuple(recipe["shared"]),
            number=tuple(recipe["numbers"]),
            label=recipe.get("label"),
            unlabelled=unlabelled,
            id=id,
            drop=drop,
            decimal=decimal,
            is_of_model=True,
        )

    def options(self) -> dict[str, str]:
        """Return the option that names each column."""
        named = {self.time: "--time", self.source: "--source", self.target: "--target"}
        named |= {self.amount: "--amount"}
        for option, names in (
            ("--category", self.category),
            ("--shared", self.shared),
            ("--number", self.number),
            ("--label", [self.label] if self.label else []),
            ("--id", [self.id] if self.id else []),
        ):
            named |= dict.fromkeys(names, option)
        return named


@dataclass(frozen=True)
class TransactionTable:
    """n transactions in the order of the table.

    Attributes:
        ids: (n,) text, or numbers from 1.
        time: float64 (n,): seconds since 1970 where `calendar`, else the numbers of the table.
        source, target: (n,) text, dtype object.
        amount: float64 (n,), NaN where missing.
        text: of each category and shared attribute, (n,) dtype object; blank where missing.
        numbers: of each other number, float64 (n,).
        labels: int64 (n,): 1, 0, or -1 where not labelled; None without a label.
        notes: what was left out or assumed, a line each, for the user.
    """

    name: str
    ids: np.ndarray
    time: np.ndarray
    calendar: bool
    source: np.ndarray
    target: np.ndarray
    amount: np.ndarray
    text: dict[str, np.ndarray]
    numbers: dict[str, np.ndarray]
    labels: np.ndarray | None
    notes: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.time)


def read_transactions(
    table: Table, columns: TransactionColumns, *, is_part: bool = False
) -> TransactionTable:
    """Read the columns of a table of transactions.

    Args:
        is_part: the rows are a part of a table, which need not have every value.

    Raises:
        InputError: naming the table, the row and the column.
    """
    options = columns.options()
    notes = _require_columns(table, columns, options)
    if not len(table.frame):
        raise InputError(f"{table.name}: no rows. Give at least one transaction.")
    time, calendar, zone_note = read_times(table, columns.time, columns.decimal)
    text = {}
    for name in dict.fromkeys((*columns.category, *columns.shared)):
        text[name] = _read_text(table, name)
    numbers = {name: _read_finite(table, name, columns.decimal) for name in columns.number}
    labels = None
    if columns.label is not None:
        labels = read_known_labels(table, columns.label, columns.unlabelled, is_part=is_part)
    ids = np.arange(1, len(table.frame) + 1).astype(object)
    if columns.id is not None:
        ids = to_ids(table.column(columns.id), table.name, columns.id).to_numpy(object)
        if (again := pd.Series(ids).duplicated()).any():
            raise InputError(
                f"{table.name}: row {int(again.argmax()) + 1}, column {columns.id!r}: the id has "
                f"occurred before ({again.sum()} such rows). Ids must be unique."
            )
    return TransactionTable(
        table.name,
        ids,
        time,
        calendar,
        _to_objects(to_ids(table.column(columns.source), table.name, columns.source)),
        _to_objects(to_ids(table.column(columns.target), table.name, columns.target)),
        _read_finite(table, columns.amount, columns.decimal),
        text,
        numbers,
        labels,
        tuple(notes + zone_note),
    )


def require_kind_of_time(table: TransactionTable, recipe: Mapping[str, Any]) -> None:
    """
    Raises:
        InputError: times are timestamps where the model reads numbers, or the reverse.
    """
    if table.calendar != recipe["calendar"]:
        has, reads = ("timestamps", "numbers") if table.calendar else ("numbers", "timestamps")
        raise InputError(
            f"{table.name}: the times in {recipe['time']!r} are {has}; the model was trained on "
            f"{reads}. Convert them as in training."
        )


def to_rows(table: TransactionTable, columns: TransactionColumns) -> list[dict[str, Any]]:
    """Return the rows as a server takes them; missing values are left out."""
    rows: list[dict[str, Any]] = [
        {columns.time: time, columns.source: source, columns.target: target}
        for time, source, target in zip(
            table.time.tolist(), table.source, table.target, strict=True
        )
    ]
    if columns.id is not None:
        for row, id in zip(rows, table.ids, strict=True):
            row["id"] = id
    for name, values in ({columns.amount: table.amount} | table.numbers).items():
        for row, value in zip(rows, values.tolist(), strict=True):
            if value == value:
                row[name] = value
    for name, values in table.text.items():
        for row, value in zip(rows, values, strict=True):
            if value:
                row[name] = value
    if table.labels is not None:
        for row, label in zip(rows, table.labels.tolist(), strict=True):
            if label >= 0:
                row[str(columns.label)] = label
    return rows


def _require_columns(
    table: Table, columns: TransactionColumns, options: dict[str, str]
) -> list[str]:
    """Check that every column of the table is named once, and return notes of those left out."""
    require_distinct(list(table.frame.columns), table.name)
    missing = [name for name in options if name not in table.frame.columns and name != columns.id]
    if columns.is_of_model and missing:
        raise InputError(
            f"{table.name}: no column {list_names(missing)}, which the model reads. Columns: "
            f"{list_names(list(table.frame.columns))}. Rename the columns of the table, or in "
            "`basin score-transactions` name them with --time, --source, --target and --amount."
        )
    table.require_columns(options)
    names = [columns.time, columns.source, columns.target, columns.amount, *columns.number]
    names += [name for name in (columns.label, columns.id) if name]
    names += [*dict.fromkeys((*columns.category, *columns.shared))]
    if again := [name for name in names if names.count(name) > 1]:
        raise InputError(
            f"{table.name}: column {again[0]!r} is named for two things. A column may be a category"
            " and shared; otherwise name it once."
        )
    if "id" in names and columns.id != "id":
        raise InputError(
            f"{table.name}: the column 'id' can only be the id of the rows (--id). Rename it."
        )
    present = [str(name) for name in table.frame.columns]
    if strange := [name for name in columns.drop if name not in (*present, "*")]:
        raise InputError(
            f"--drop {strange[0]}: {table.name} does not have this column. Columns: "
            f"{list_names(present)}."
        )
    extra = [name for name in present if name not in (*names, *columns.drop)]
    if extra and "*" not in columns.drop and columns.is_of_model:
        raise InputError(
            f"{table.name}: the model does not read {list_names(extra)}. Leave such columns out "
            "with --drop NAME (drop= in Python), `*` for all of them; --id (id=) names the id."
        )
    if extra and "*" not in columns.drop:
        raise InputError(
            f"{table.name}: column {extra[0]!r} has no meaning yet. Name it with --category, "
            "--shared or --number, or leave it out with --drop (`*` is all of them: "
            f"{list_names(extra)})."
        )
    return [f"{table.name}: not read: {list_names(extra)}."] if extra else []


def read_times(table: Table, name: str, decimal: str = ".") -> tuple[np.ndarray, bool, list[str]]:
    """Return a column of times (n,), whether they are timestamps, and notes.

    Raises:
        InputError: naming the table, the row and the column.
    """
    column = table.column(name)
    naive_note = [f"{table.name}: times in {name!r} without a zone are read as UTC."]
    is_typed = pd.api.types.is_datetime64_any_dtype(column)
    if not is_typed:
        try:
            times = read_numbers(column, table.name, decimal)
        except InputError:
            times = None
        if times is not None:
            _require_present(np.isnan(times), table.name, name, "a time")
            return _read_finite(table, name, decimal), False, []
    try:
        stamps = pd.to_datetime(column, format=None if is_typed else "ISO8601", utc=True)
    except (ValueError, TypeError):
        parsed = pd.to_datetime(column, format="ISO8601", utc=True, errors="coerce")
        row = int(parsed.isna().to_numpy().argmax())
        raise InputError(
            f"{table.name}: row {row + 1}, column {name!r}: neither a number nor a timestamp. "
            "Write times as in 2026-01-31T23:59:59+01:00, or all as numbers."
        ) from None
    stamps = cast(pd.Series, stamps)
    _require_present(stamps.isna().to_numpy(), table.name, name, "a time")
    seconds = (stamps - pd.Timestamp(0, tz="UTC")) / pd.Timedelta(seconds=1)
    return seconds.to_numpy(np.float64), True, naive_note if _has_naive(column, is_typed) else []


def _has_naive(column: pd.Series, is_typed: bool) -> bool:
    if is_typed:
        return getattr(column.dt, "tz", None) is None
    return not column.astype(str).str.contains(r"(?:Z|[+-]\d\d:?\d\d)\s*$").all()


def _read_text(table: Table, name: str) -> np.ndarray:
    """Return a column of text, blank where it is missing."""
    column = table.column(name)
    missing = (column.isna() | (column.astype(str).str.strip() == "")).to_numpy(bool)
    values = np.full(len(column), "", object)
    if not missing.all():
        present = cast(pd.Series, column[~missing]).reset_index(drop=True)
        values[~missing] = _to_objects(to_ids(present, table.name, name))
    return values


def _to_objects(column: pd.Series) -> np.ndarray:
    """Return text (n,), equal values as one object: a table of millions has few accounts."""
    places, values = pd.factorize(column.to_numpy(object))
    return values[places]


def _read_finite(table: Table, name: str, decimal: str) -> np.ndarray:
    values = read_numbers(table.column(name), table.name, decimal)
    if (wrong := np.isinf(values)).any():
        raise InputError(
            f"{table.name}: row {int(wrong.argmax()) + 1}, column {name!r}: the value is infinite. "
            "Change it, or remove the row."
        )
    return values


def read_known_labels(
    table: Table, label: str, unlabelled: str | None, *, is_part: bool = False
) -> np.ndarray:
    """Return labels, int64 (n,): 1, 0, or -1 where the value is blank or `unlabelled`.

    Raises:
        InputError: a value is something else, or none is `unlabelled`, unless it `is_part` of a
            table.
    """
    if unlabelled is None:
        return read_labels(table, label)
    column = table.column(label)
    # A typed column with blanks holds floats: 2.0 is 2.
    texts = [str(value).strip().removesuffix(".0") for value in column]
    is_unlabelled = np.array(texts) == unlabelled.removesuffix(".0")
    if not is_part and not is_unlabelled.any():
        raise InputError(f"{table.name}: no row has {unlabelled!r} in {label!r} (--unlabelled).")
    masked = pd.DataFrame({label: column.astype(object).mask(is_unlabelled, None)})
    return read_labels(Table(masked, table.name), label)


def _require_present(missing: np.ndarray, table: str, name: str, what: str) -> None:
    if missing.any():
        raise InputError(
            f"{table}: row {int(missing.argmax()) + 1}, column {name!r}: {what} is missing "
            f"({missing.sum()} in all). Fill it in, or remove the row."
        )
