"""The split of a table of transactions, and what is suspicious about it."""

from __future__ import annotations

import numpy as np
import pandas as pd
from basin_client.tables import Table
from sklearn.metrics import roc_auc_score

from training.datasets.nodes import Split
from training.datasets.splits import choose_split, read_part_column, split_by_time
from training.datasets.transactions import DescribedTransactions, TransactionData

_NEARLY_ALL = 0.95


def choose_transaction_split(data: TransactionData, table: Table, split: str) -> Split:
    """Return the split by the option --split, `time` or as of `training.datasets.splits`.

    Args:
        table: that `data` was read from.

    Raises:
        InputError, ValueError: see there.
    """
    if split == "time":
        return split_by_time(data.labels, data.rows.time)
    columns = data.columns
    roles = {"source": columns.source, "target": columns.target}

    def read_column(name: str) -> np.ndarray:
        return read_part_column(table, roles.get(name, name))[data.table_rows]

    def show_row(row: int) -> str:
        return f"row {data.table_rows[row] + 1}"

    return choose_split(data.labels, data.ids, split, read_column, show_row)


def find_leaks(described: DescribedTransactions) -> list[str]:
    """Return warnings of what makes figures better than they will be, one line each."""
    rows, targets, split = described.data.rows, described.targets, described.split
    labels = targets.labels
    warnings = list[str]()
    train = described.measured["train"]
    x, y = described.describe(train), labels[train]
    if 0 < y.sum() < len(y):
        for name, values in zip(described.recipe.features, x.T, strict=True):
            auc = float(roc_auc_score(y, values))
            marked = values == 1
            is_flag = ((values == 0) | marked).all() and marked.sum() >= 20
            if max(auc, 1 - auc) > 0.99 or (is_flag and y[marked].mean() > _NEARLY_ALL):
                warnings.append(
                    f"The feature {name!r} alone tells the labels of the training part (ROC-AUC "
                    f"{max(auc, 1 - auc):.3f}, or nearly all that have it are fraud): is it known "
                    "when a score is asked for?"
                )
    ordered = labels[labels >= 0]
    if (np.diff(ordered) >= 0).all() or (np.diff(ordered) <= 0).all():
        warnings.append("Labels are in order of time: all of one kind come first.")
    if (earlier := int((split.test < split.train[-1]).sum())) > 0:
        warnings.append(
            f"{earlier} of {len(split.test)} rows of the test part are earlier than the last one "
            "to train on: the figures do not say how good the model is on the time that follows."
        )
    if targets.accounts is not None:
        if _know_accounts(described, targets.accounts):
            warnings.append(
                "An account's label in the training part tells that in the validation part. "
                "Figures on accounts that are not known yet need labels by account (--accounts)."
            )
        return warnings
    for side, accounts in (("source", rows.source), ("target", rows.target)):
        if auc := _know_accounts(described, accounts):
            warnings.append(
                "An account's labels in the training part tell those of its rows in the validation "
                f"part (ROC-AUC {auc:.3f} by {side}): labels belong to accounts. Figures on "
                f"accounts that are not known yet need --split group:{side}."
            )
    return warnings


def describe_overlap(described: DescribedTransactions) -> str:
    """Return a sentence about the accounts that are in the training and the test part."""
    rows, split, accounts = described.data.rows, described.split, described.targets.accounts
    sides = (rows.source, rows.target) if accounts is None else (accounts,)
    shares = [
        100 * np.isin(codes[split.test], codes[split.train]).mean()
        for codes, _ in map(pd.factorize, sides)
    ]
    if accounts is not None:
        return f"Of the accounts of the test part, {shares[0]:.0f} % are in the training part too."
    return (
        f"Of the rows of the test part, {shares[0]:.0f} % have a payer and {shares[1]:.0f} % a "
        "payee that is in the training part too."
    )


def _know_accounts(described: DescribedTransactions, accounts: np.ndarray) -> float | None:
    """Return the ROC-AUC by which an account's share of fraud in training tells its labels in
    validation, if it is suspicious.

    Args:
        accounts: (T,) that of each target.
    """
    split, labels = described.split, described.targets.labels
    codes, names = pd.factorize(accounts)
    count = np.bincount(codes[split.train], minlength=len(names))
    frauds = np.bincount(codes[split.train], labels[split.train], len(names))
    share = np.divide(frauds, count, out=np.full(len(names), np.nan), where=count > 0)
    val = split.val[~np.isnan(share[codes[split.val]])]
    if len(val) < len(split.val) / 2 or not 0 < labels[val].sum() < len(val):
        return None
    auc = float(roc_auc_score(labels[val], share[codes[val]]))
    return None if auc < _NEARLY_ALL else auc
