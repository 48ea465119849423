"""Which features a transaction has, as fitted to the transactions of the training."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Literal, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

from models.inputs.transactions import account_features
from models.inputs.transactions.rows import Transactions

_MAX_VALUES = 32  # of a category that have a feature of their own
_MIN_ROWS = 20  # of the training, with such a value
_CALENDAR_WINDOWS = (3600.0, 86_400.0, 604_800.0, 2_592_000.0)
_UNITS = (("d", 86_400.0), ("h", 3600.0), ("m", 60.0))
OTHER = "other"
KNOWN_FEATURES = ("known_frauds", "known_labels", "known_fraud_share")


class TransactionRecipe(BaseModel):
    """Columns of a table of transactions, and the features made of them.

    A feature of a transaction depends on its own row and on the rows before it alone.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    time: str = Field(description="column of the time")
    source: str = Field(description="column of who pays")
    target: str = Field(description="column of who is paid")
    amount: str = Field(description="column of the amount")
    categories: dict[str, tuple[str, ...]] = Field(
        default={},
        description="columns of categories, each with the values that have a feature of their own; "
        "all others, unknown and missing ones too, share the feature `other`",
    )
    shared: tuple[str, ...] = Field(
        default=(), description="columns whose value links transactions, as a device or a place"
    )
    numbers: tuple[str, ...] = Field(default=(), description="columns of other numbers")
    medians: dict[str, float] = Field(
        default={}, description="of amount and numbers in training; stands in for missing values"
    )
    with_missing: tuple[str, ...] = Field(
        default=(),
        description="columns that had missing values in training; others must not have any",
    )
    calendar: bool = Field(description="times are timestamps, not numbers")
    windows: tuple[float, ...] = Field(
        description="lengths of the windows: seconds, or the unit of the time where it is a number"
    )
    accounts_pay_and_are_paid: bool = Field(
        description="sources and targets are accounts of one kind, seen on either side"
    )
    label: str | None = Field(
        default=None,
        description="column of labels, of which those of earlier rows count once they are known; "
        "null where the model reads none",
    )
    known_after: float = Field(
        default=0.0,
        ge=0,
        description="how much later than its row a label is known: seconds, or the unit of the "
        "time",
    )
    scores: Literal["transactions", "accounts"] = Field(
        default="transactions", description="what `POST /anomaly/score` has a result for"
    )
    account_sides: tuple[Literal["source", "target"], ...] = Field(
        default=("source", "target"),
        description="where `scores` is accounts: those that occur on one of these sides",
    )
    neighbors: int = Field(
        default=3, ge=1, le=16, description="earlier transactions of each kind that are linked"
    )
    hops: int = Field(default=1, ge=0, le=2)
    max_nodes: int = Field(default=256, ge=1, le=4096, description="of one neighbourhood")
    version: Literal[1] = Field(default=1, description="of the features; others mean other scores")

    @model_validator(mode="after")
    def _has_distinct_names(self) -> Self:
        columns = [self.time, self.source, self.target, *self.number_columns, *self.text_columns]
        if self.label is not None:
            columns.append(self.label)
        if "id" in columns:
            raise ValueError("A column called `id` can only be the id of the rows. Rename it.")
        if list(self.windows) != sorted({*self.windows}) or self.windows[0] <= 0:
            raise ValueError("Windows must be distinct positive numbers, in order.")
        if self.known_after >= self.memory:
            raise ValueError(
                f"Labels are known after {self.known_after:g}, and nothing older than the longest "
                f"window, {self.memory:g}, counts. Give a longer window, or a shorter delay."
            )
        if self.scores == "accounts" and not self.accounts_pay_and_are_paid:
            raise ValueError("A model of accounts has accounts on both sides.")
        for names in (columns, list(self.features)):
            if len({*names}) < len(names):
                again = next(name for name in names if names.count(name) > 1)
                raise ValueError(f"Two columns or features are called {again!r}. Rename one.")
        return self

    @property
    def memory(self) -> float:
        """How far back features and links reach: the longest window."""
        return self.windows[-1]

    @property
    def reach(self) -> float:
        """How far back rows change a score: features of linked transactions reach further back."""
        return self.memory * (2 if self.hops or self.scores == "accounts" else 1)

    @property
    def text_columns(self) -> tuple[str, ...]:
        """Categories and shared attributes, each once."""
        return tuple(dict.fromkeys((*self.categories, *self.shared)))

    @property
    def number_columns(self) -> tuple[str, ...]:
        return (self.amount, *self.numbers)

    @property
    def views(self) -> tuple[str, ...]:
        """The series of earlier transactions that a transaction is compared with."""
        both = ("source_received", "target_sent") if self.accounts_pay_and_are_paid else ()
        return ("source_sent", "target_received", "pair", *both, *self.shared)

    @property
    def view_features(self) -> tuple[str, ...]:
        """Features of one series; see `models.kernels.transactions.update`."""
        spans = [self._format_window(window) for window in self.windows]
        per_window = [f"{what}_{span}" for span in spans for what in ("count", "sum")]
        known = KNOWN_FEATURES if self.label is not None else ()
        return ("gap", "amount_ratio", *per_window, *known)

    @property
    def row_features(self) -> tuple[str, ...]:
        """Features of the row itself."""
        names = []
        for column in self.number_columns:
            names.append(column)
            if column in self.with_missing:
                names.append(f"{column}_missing")
        for column, values in self.categories.items():
            names += [f"{column}={value}" for value in (*values, OTHER)]
        if self.calendar:
            names += ["hour_sin", "hour_cos", "weekday_sin", "weekday_cos"]
        return tuple(names)

    @property
    def features(self) -> tuple[str, ...]:
        """Names of all features of a node, in order."""
        if self.scores == "transactions":
            return self.transaction_features
        return (*account_features.KINDS, *self.transaction_features, *self.account_features)

    @property
    def account_features(self) -> tuple[str, ...]:
        """Features of an account, where accounts are scored."""
        return account_features.list_features(map(self._format_window, self.windows))

    @property
    def own_features(self) -> range:
        """Places in `features` of those that tell one target from another."""
        end = len(self.features)
        return range(end - len(self.account_features) if self.scores == "accounts" else 0, end)

    @property
    def transaction_features(self) -> tuple[str, ...]:
        """Names of all features of a transaction, in order."""
        series = [f"{view}_{name}" for view in self.views for name in self.view_features]
        return (*self.row_features, "source_targets", "target_sources", *series)

    def describe_rows(self, rows: Transactions) -> np.ndarray:
        """Return the features of the rows themselves, float32 (n, `row_features`)."""
        columns = list[np.ndarray]()
        values = {self.amount: rows.amount, **rows.numbers}
        for column in self.number_columns:
            missing = np.isnan(values[column])
            filled = np.where(missing, self.medians[column], values[column])
            columns.append(np.sign(filled) * np.log1p(np.abs(filled)))
            if column in self.with_missing:
                columns.append(missing)
        for column, known in self.categories.items():
            places = {value: place for place, value in enumerate(known)}
            code = np.array([places.get(v, len(known)) for v in rows.categories[column]], int)
            columns += [code == place for place in range(len(known) + 1)]
        if self.calendar:
            for period in (86_400, 604_800):
                angle = 2 * np.pi * (rows.time % period) / period
                columns += [np.sin(angle), np.cos(angle)]
        return np.stack(columns, 1).astype(np.float32)

    def _format_window(self, window: float) -> str:
        if self.calendar:
            for unit, seconds in _UNITS:
                if window % seconds == 0:
                    return f"{window / seconds:g}{unit}"
            return f"{window:g}s"
        return f"{window:g}"


def fit_recipe(
    rows: Transactions,
    *,
    time: str,
    source: str,
    target: str,
    amount: str,
    categories: Sequence[str] = (),
    shared: Sequence[str] = (),
    calendar: bool,
    label: str | None = None,
    known_after: float = 0.0,
    windows: Sequence[float] | None = None,
    neighbors: int = 3,
    hops: int = 1,
) -> TransactionRecipe:
    """Return the recipe of a table, fitted to `rows`, those of the training, in order of time.

    Windows are an hour, a day, a week and 30 days of timestamps; where times are numbers, their
    range, and a tenth, a hundredth and a thousandth of it.

    Raises:
        ValueError: a column has no value at all, the times do not differ, or labels are known only
            after the longest window.
    """
    columns = {amount: rows.amount, **rows.numbers}
    for column, values in columns.items():
        if np.isnan(values).all():
            raise ValueError(
                f"Column {column!r} has no value in the training part. Leave it out, or train on "
                "more rows."
            )
    if windows is None:
        span = float(rows.time[-1] - rows.time[0])
        if span <= 0:
            raise ValueError("All times of the training part are equal. Give rows of other times.")
        windows = _CALENDAR_WINDOWS if calendar else [span / d for d in (1000, 100, 10, 1)]
    return TransactionRecipe(
        time=time,
        source=source,
        target=target,
        amount=amount,
        categories={name: _frequent_values(rows.categories[name]) for name in categories},
        shared=tuple(shared),
        numbers=tuple(rows.numbers),
        medians={name: float(np.nanmedian(values)) for name, values in columns.items()},
        with_missing=tuple(name for name, values in columns.items() if np.isnan(values).any()),
        calendar=calendar,
        windows=tuple(windows),
        accounts_pay_and_are_paid=not set(rows.source).isdisjoint(rows.target),
        label=label,
        known_after=known_after,
        neighbors=neighbors,
        hops=hops,
    )


def _frequent_values(values: np.ndarray) -> tuple[str, ...]:
    """Return the most frequent values, ties in order of the text."""
    counts = Counter(value for value in values if value not in ("", OTHER))
    ordered = sorted(counts, key=lambda value: (-counts[value], value))
    return tuple(value for value in ordered[:_MAX_VALUES] if counts[value] >= _MIN_ROWS)
