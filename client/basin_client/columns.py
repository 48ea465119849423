"""What the values of a column mean: ids, numbers and labels. Needs pandas and pyarrow."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from pyarrow import compute

from basin_client.errors import InputError
from basin_client.tables import Table

pc: Any = compute  # its functions are made at import, so that no type checker knows them
_MISSING = pa.array(["", "NA", "N/A", "NaN", "nan", "NULL", "null", "None", "none"])
_LABELS = {"1": 1, "1.0": 1, "true": 1, "yes": 1, "0": 0, "0.0": 0, "false": 0, "no": 0}
_MAX_EXACT_FLOAT = 2.0**53


def to_ids(column: pd.Series, name: str, label: object) -> pd.Series:
    """Return a column of ids as text.

    Raises:
        InputError: an id is blank, or a number that has lost its digits.
    """
    if pd.api.types.is_bool_dtype(column):
        raise InputError(f"{name}: column {label!r} holds true and false, which are no ids.")
    column = _without_categories(column)
    blank = column.isna().to_numpy()
    if pd.api.types.is_integer_dtype(column) and not blank.any():
        return column.astype(str)
    if not blank.any() and pd.api.types.is_string_dtype(column):
        text = column
    else:
        text = pd.Series(
            [
                "" if missing else _to_id(value, name, label, row)
                for row, (value, missing) in enumerate(zip(column, blank, strict=True))
            ],
            dtype=str,
        )
    blank = (text.str.strip() == "").to_numpy(bool)
    if blank.any():
        raise InputError(
            f"{name}: row {blank.argmax() + 1}, column {label!r}: the value is blank "
            f"({blank.sum()} in all). Fill it in, or remove the row."
        )
    return text


def read_numbers(
    column: pd.Series, name: str, decimal: str = ".", label: object = None
) -> np.ndarray:
    """Return a column as float64, NaN where a value is missing; true is 1 and false is 0.

    Raises:
        InputError: a value is no number.
    """
    label = column.name if label is None else label
    column = _without_categories(column)
    if pd.api.types.is_numeric_dtype(column):  # bool too
        return column.to_numpy(np.float64, na_value=np.nan)
    if not pd.api.types.is_string_dtype(column):
        if column.dtype != object:
            raise InputError(
                f"{name}: column {label!r} holds {column.dtype}, not numbers. Convert or drop it."
            )
        column = column.map(_to_text, na_action="ignore")
    texts = pa.array(column.to_numpy(object, na_value=None), pa.string(), from_pandas=True)
    texts = pc.utf8_trim_whitespace(texts)
    missing = pc.is_in(texts, _MISSING)
    texts = pc.if_else(missing, None, texts)
    if decimal != ".":
        if len(decimal) != 1 or decimal.isalnum():
            raise InputError(f"The decimal point {decimal!r} must be one character, `.` or `,`.")
        has_point = pc.fill_null(pc.match_substring(texts, "."), False).to_numpy(False)
        if has_point.any():
            raise InputError(
                f"{name}: row {has_point.argmax() + 1}, column {label!r}: a number with a point, "
                f"where --decimal is {decimal!r}. Remove thousands separators."
            )
        texts = pc.replace_substring(texts, decimal, ".")
    try:
        return texts.cast(pa.float64()).to_numpy(zero_copy_only=False)
    except pa.ArrowInvalid:  # true and false, or what Python reads and Arrow does not
        pass
    values: list[str | None] = texts.to_pylist()
    booleans = {"true": 1.0, "false": 0.0, None: math.nan}
    lowered = [text and text.lower() for text in values]
    if set(lowered) <= booleans.keys():
        return np.array([booleans[text] for text in lowered])
    return np.array([_to_number(text, name, row, label) for row, text in enumerate(values)])


def read_labels(table: Table, label: str) -> np.ndarray:
    """Return a column of binary labels as 1, 0, or -1 where it is blank.

    Raises:
        InputError: a label is something else.
    """
    column = table.column(label)
    texts = [
        "" if missing else _to_text(value).strip()
        for value, missing in zip(column, column.isna(), strict=True)
    ]
    values = {text: _LABELS.get(text.lower()) for text in set(texts)}
    values |= dict.fromkeys(values.keys() & set(_MISSING.to_pylist()), -1)
    for row, text in enumerate(texts):
        if values[text] is None:
            raise InputError(
                f"{table.name}: row {row + 1}, column {label!r}: not a label. Use 1, true or yes "
                "for fraud, 0, false or no for none, and leave unknown ones blank."
            )
    return np.array([values[text] for text in texts], np.int64)


def _without_categories(column: pd.Series) -> pd.Series:
    if not isinstance(column.dtype, pd.CategoricalDtype):
        return column
    if column.isna().any():  # integers have no missing value
        return column.astype(object)
    return column.astype(column.cat.categories.dtype)


def _to_text(value: Any) -> str:
    return value if isinstance(value, str) else str(value)


def _to_id(value: Any, name: str, label: object, row: int) -> str:
    where = f"{name}: row {row + 1}, column {label!r}"
    if isinstance(value, str):
        return value
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            raise InputError(f"{where}: the id is bytes that are not UTF-8.") from None
    if isinstance(value, bool | np.bool_):
        raise InputError(f"{where}: the id is true or false.")
    if isinstance(value, int | np.integer):
        return str(value)
    if isinstance(value, Decimal) and value == value.to_integral_value():
        return str(int(value))
    if isinstance(value, float | np.floating):
        if abs(value) < _MAX_EXACT_FLOAT and float(value).is_integer():
            return str(int(value))
        raise InputError(
            f"{where}: the id {value} is a number with decimals or beyond 2^53, so digits may be "
            "lost. Store ids as text or integers."
        )
    return str(value)


def _to_number(text: str | None, name: str, row: int, label: object) -> float:
    if text is None:
        return math.nan
    try:
        if "_" not in text:  # Python reads 1_000 as a number
            return float(text)
    except ValueError:
        pass
    hint = (
        "Remove thousands separators, or pass --decimal , for a decimal comma"
        if "," in text
        else "Correct it, encode the column as numbers, or --drop it"
    )
    raise InputError(f"{name}: row {row + 1}, column {label!r}: not a number. {hint}.")
