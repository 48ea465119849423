"""A table of transactions in order of time, and how it is split."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd
from basin_client.transaction_tables import TransactionColumns, TransactionTable
from sklearn.metrics import roc_auc_score

from models.inputs.transactions import (
    TransactionError,
    TransactionHistory,
    TransactionRecipe,
    Transactions,
    fit_recipe,
)
from training.common.results_log import hash_arrays
from training.datasets.nodes import Split


@dataclass(frozen=True)
class TransactionData:
    """N transactions in order of time, ties in the order of the table.

    Attributes:
        ids: (N,) of the rows.
        labels: int64 (N,): 1 fraud, 0 none, -1 not labelled.
    """

    name: str
    rows: Transactions
    ids: np.ndarray
    labels: np.ndarray
    calendar: bool
    columns: TransactionColumns
    note: str = ""

    @classmethod
    def from_table(cls, table: TransactionTable, columns: TransactionColumns) -> TransactionData:
        """Order the rows by time.

        Raises:
            ValueError: the table has no labels.
        """
        if table.labels is None:
            raise ValueError("Training needs labels. Name their column with --label.")
        rows = Transactions(
            table.time, table.source, table.target, table.amount, table.text, table.numbers
        )
        order = np.argsort(table.time, kind="stable")
        notes = list(table.notes)
        if (moved := int((order != np.arange(len(order))).sum())) > 0:
            notes.append(f"{table.name}: {moved} rows were not in order of time and were sorted.")
        name = table.name.replace("\\", "/").rpartition("/")[2].partition(".")[0]
        return cls(
            name,
            rows.take(order),
            table.ids[order],
            table.labels[order],
            table.calendar,
            columns,
            " ".join(notes),
        )

    def __len__(self) -> int:
        return len(self.rows)

    @cached_property
    def digest(self) -> str:
        rows = self.rows
        text = [rows.source, rows.target, *rows.categories.values()]
        numbers = [rows.time, rows.amount, *rows.numbers.values(), self.labels]
        codes = [np.array("\n".join(values).encode()) for values in text]
        return hash_arrays(*numbers, *(np.frombuffer(code.tobytes(), np.uint8) for code in codes))

    def fingerprint(self, split: Split) -> str:
        """SHA-256 of all that a result depends on beside its recipe."""
        return hash_arrays(np.frombuffer(self.digest.encode(), np.uint8), *split.parts().values())


@dataclass(frozen=True)
class DescribedTransactions:
    """Transactions with their split and their features, by a recipe fitted to the training part.

    Attributes:
        population: all transactions of the time of the validation part, labelled or not.
    """

    data: TransactionData
    split: Split
    population: np.ndarray
    recipe: TransactionRecipe
    history: TransactionHistory


def split_by_time(data: TransactionData) -> Split:
    """Split the labelled rows at two times: 60 % to train on, 20 % to validate, the rest to test.

    Rows of equal time are in one part.

    Raises:
        ValueError: a part would be empty.
    """
    labelled = np.flatnonzero(data.labels >= 0)
    times = data.rows.time[labelled]
    ends = np.array([0.6, 0.8]) * len(labelled)
    cuts = [times[min(int(end), len(times) - 1)] if len(times) else 0.0 for end in ends]
    part = np.searchsorted(cuts, times, side="right")
    split = Split("time", *(labelled[part == i] for i in range(3)))
    for name, rows in split.parts().items():
        if not len(rows):
            raise ValueError(
                f"The part `{name}` of the split by time is empty: {len(labelled)} rows are "
                "labelled, of which many have one time. Label more rows."
            )
    return split


def describe(
    data: TransactionData,
    split: Split,
    *,
    windows: tuple[float, ...] | None = None,
    neighbors: int = 3,
    hops: int = 1,
) -> DescribedTransactions:
    """Fit the recipe to the rows up to the last one to train on, labelled or not, and describe all
    rows by it.

    Raises:
        ValueError: a column has no value in the training part, or one is missing later alone, or a
            value is too large.
    """
    columns = data.columns
    recipe = fit_recipe(
        data.rows.take(np.arange(split.train[-1] + 1)),
        time=columns.time,
        source=columns.source,
        target=columns.target,
        amount=columns.amount,
        categories=columns.category,
        shared=columns.shared,
        calendar=data.calendar,
        windows=windows,
        neighbors=neighbors,
        hops=hops,
    )
    history = TransactionHistory(recipe)
    try:
        history.append(data.rows)
    except TransactionError as error:
        raise ValueError(
            f"Transaction {data.ids[error.row]}, column {error.column!r}: {error.rule}"
        ) from None
    population = np.arange(split.val[0], split.val[-1] + 1)
    return DescribedTransactions(data, split, population, recipe, history)


def find_leaks(described: DescribedTransactions) -> list[str]:
    """Return warnings of what makes figures better than they will be, one line each."""
    warnings = list[str]()
    split, labels = described.split, described.data.labels
    x, y = described.history.x_NF[split.train], labels[split.train]
    if 0 < y.sum() < len(y):
        for name, values in zip(described.recipe.features, x.T, strict=True):
            auc = float(roc_auc_score(y, values))
            marked = values == 1
            is_flag = ((values == 0) | marked).all() and marked.sum() >= 20
            if max(auc, 1 - auc) > 0.99 or (is_flag and y[marked].mean() > 0.95):
                warnings.append(
                    f"The feature {name!r} alone tells the labels of the training part (ROC-AUC "
                    f"{max(auc, 1 - auc):.3f}, or nearly all that have it are fraud): is it known "
                    "when a transaction is scored?"
                )
    ordered = labels[labels >= 0]
    if (np.diff(ordered) >= 0).all() or (np.diff(ordered) <= 0).all():
        warnings.append("Labels are in order of time: all of one kind come first.")
    return warnings


def write_split(path: Path, described: DescribedTransactions) -> None:
    """Write the id and the part of each labelled row, as CSV."""
    parts = [
        pd.DataFrame({"id": described.data.ids[rows], "part": name})
        for name, rows in described.split.parts().items()
    ]
    pd.concat(parts).to_csv(path, index=False)
