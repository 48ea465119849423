"""How the labelled rows of a table of transactions are split, and what is suspicious about it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
from basin_client.tables import Table, read_table
from sklearn.metrics import roc_auc_score

from training.datasets.nodes import Split
from training.datasets.transactions import DescribedTransactions, TransactionData

_SHARES = (0.6, 0.8)  # where the validation and the test part begin
_PARTS = {"train": 0, "val": 1, "validation": 1, "test": 2, "": -1}
_NEARLY_ALL = 0.95


def choose_split(data: TransactionData, table: Table, split: str) -> Split:
    """Return the split by the option --split.

    Args:
        table: that `data` was read from.
        split: `time`, `column:NAME`, `group:NAME`, or the path of a CSV with columns `id` and
            `part`, as `write_split` makes it.

    Raises:
        ValueError: a part would be empty, or the column or file does not say what is in which.
    """
    kind, _, name = split.partition(":")
    if split == "time":
        return split_by_time(data)
    if kind == "column" and name:
        texts = _read_column(data, table, name)
        return _split_by_parts(data, texts, split, lambda row: f"row {data.table_rows[row] + 1}")
    if kind == "group" and name:
        return split_by_group(data, _read_column(data, table, name), split)
    return split_by_file(data, Path(split))


def split_by_time(data: TransactionData) -> Split:
    """Split the labelled rows at two times: 60 % to train on, 20 % to validate, the rest to test.

    Rows of equal time are in one part.

    Raises:
        ValueError: a part would be empty.
    """
    labelled = np.flatnonzero(data.labels >= 0)
    times = data.rows.time[labelled]
    ends = np.array(_SHARES) * len(labelled)
    cuts = [times[min(int(end), len(times) - 1)] if len(times) else 0.0 for end in ends]
    part = np.searchsorted(cuts, times, side="right")
    reason = f"{len(labelled)} rows are labelled, of which many have one time. Label more rows."
    return _to_split("time", labelled, part, reason)


def split_by_group(data: TransactionData, groups: np.ndarray, name: str) -> Split:
    """Split so that all labelled rows of a group are in one part, drawn at random, always the same:
    60 % of the groups to train on, 20 % to validate, the rest to test.

    Args:
        groups: text (N,) of each row.

    Raises:
        ValueError: a group is blank, or a part would be empty.
    """
    labelled = np.flatnonzero(data.labels >= 0)
    if (blank := groups[labelled] == "").any():
        row = int(data.table_rows[labelled[blank][0]]) + 1
        raise ValueError(f"--split {name}: row {row} has no group. Fill it in.")
    # By name, so that a group's part does not depend on the order of the rows.
    codes, names = pd.factorize(groups[labelled], sort=True)
    place = np.random.default_rng(0).permutation(len(names))[codes]
    part = np.searchsorted(np.array(_SHARES) * len(names), place, side="right")
    return _to_split(name, labelled, part, f"there are {len(names)} groups. Use smaller ones.")


def split_by_file(data: TransactionData, path: Path) -> Split:
    """Split by a table with columns `id` and `part`; rows that it does not name are not used.

    Raises:
        InputError: the file cannot be read.
        ValueError: the file names another part, or ids that are not in the data or twice.
    """
    table = read_table(path)
    table.require_columns({"id": "the name `id`", "part": "the name `part`"})
    parts = table.frame[["id", "part"]].astype(str).set_index("id")["part"]
    if not parts.index.is_unique:
        raise ValueError(f"{path}: the id {parts.index[parts.index.duplicated()][0]!r} is twice.")
    ids = pd.Index(data.ids.astype(str))
    if len(unknown := parts.index.difference(ids)):
        raise ValueError(
            f"{path}: {len(unknown)} ids are not in {data.name}, the first is {unknown[0]!r}. "
            "Ids are those of --id, or row numbers from 1."
        )
    texts = parts.reindex(ids).fillna("").to_numpy(object)
    return _split_by_parts(data, texts, path.name, lambda row: f"id {data.ids[row]!r}")


def find_leaks(described: DescribedTransactions) -> list[str]:
    """Return warnings of what makes figures better than they will be, one line each."""
    data, split, labels = described.data, described.split, described.data.labels
    warnings = list[str]()
    train = described.measured["train"]
    x, y = described.history.x_NF[train], labels[train]
    if 0 < y.sum() < len(y):
        for name, values in zip(described.recipe.features, x.T, strict=True):
            auc = float(roc_auc_score(y, values))
            marked = values == 1
            is_flag = ((values == 0) | marked).all() and marked.sum() >= 20
            if max(auc, 1 - auc) > 0.99 or (is_flag and y[marked].mean() > _NEARLY_ALL):
                warnings.append(
                    f"The feature {name!r} alone tells the labels of the training part (ROC-AUC "
                    f"{max(auc, 1 - auc):.3f}, or nearly all that have it are fraud): is it known "
                    "when a transaction is scored?"
                )
    ordered = labels[labels >= 0]
    if (np.diff(ordered) >= 0).all() or (np.diff(ordered) <= 0).all():
        warnings.append("Labels are in order of time: all of one kind come first.")
    if (earlier := int((split.test < split.train[-1]).sum())) > 0:
        warnings.append(
            f"{earlier} of {len(split.test)} rows of the test part are earlier than the last one "
            "to train on: the figures do not say how good the model is on the time that follows."
        )
    for side, accounts in (("source", data.rows.source), ("target", data.rows.target)):
        warnings += _find_known_accounts(described, side, accounts)
    return warnings


def describe_overlap(described: DescribedTransactions) -> str:
    """Return a sentence about the accounts that are in the training and the test part."""
    rows, split = described.data.rows, described.split
    shares = [
        100 * np.isin(codes[split.test], codes[split.train]).mean()
        for codes, _ in (pd.factorize(rows.source), pd.factorize(rows.target))
    ]
    return (
        f"Of the rows of the test part, {shares[0]:.0f} % have a payer and {shares[1]:.0f} % a "
        "payee that is in the training part too."
    )


def write_split(path: Path, described: DescribedTransactions) -> None:
    """Write the id and the part of each labelled row, as CSV."""
    parts = [
        pd.DataFrame({"id": described.data.ids[rows], "part": name})
        for name, rows in described.split.parts().items()
    ]
    pd.concat(parts).to_csv(path, index=False)


def _find_known_accounts(
    described: DescribedTransactions, side: str, accounts: np.ndarray
) -> list[str]:
    """Warn where an account's share of fraud in training tells its labels in validation."""
    split, labels = described.split, described.data.labels
    codes, names = pd.factorize(accounts)
    count = np.bincount(codes[split.train], minlength=len(names))
    frauds = np.bincount(codes[split.train], labels[split.train], len(names))
    share = np.divide(frauds, count, out=np.full(len(names), np.nan), where=count > 0)
    val = split.val[~np.isnan(share[codes[split.val]])]
    if len(val) < len(split.val) / 2 or not 0 < labels[val].sum() < len(val):
        return []
    auc = float(roc_auc_score(labels[val], share[codes[val]]))
    if auc < _NEARLY_ALL:
        return []
    return [
        f"An account's labels in the training part tell those of its rows in the validation part "
        f"(ROC-AUC {auc:.3f} by {side}): labels belong to accounts. Figures on accounts that are "
        f"not known yet need --split group:{side}."
    ]


def _read_column(data: TransactionData, table: Table, name: str) -> np.ndarray:
    """Return a column of the table as text, blank where missing, in the order of `data`."""
    columns = data.columns
    name = {"source": columns.source, "target": columns.target}.get(name, name)
    table.require_columns({name: "--split"})
    column = table.column(name)
    texts = column.astype(str).str.strip().where(~column.isna(), "")
    return texts.to_numpy(object)[data.table_rows]


def _split_by_parts(
    data: TransactionData, texts: np.ndarray, name: str, show: Callable[[int], str]
) -> Split:
    parts = pd.Series(texts).str.lower().map(_PARTS)
    if (unknown := parts.isna().to_numpy()).any():
        row = int(unknown.argmax())
        raise ValueError(
            f"--split {name}: {show(row)}: {texts[row]!r} is no part. Use train, val and test, and "
            "leave blank what is not used."
        )
    labelled = np.flatnonzero(data.labels >= 0)
    part = parts.to_numpy(int)[labelled]
    return _to_split(name, labelled, part, "no labelled row is in it.")


def _to_split(name: str, rows: np.ndarray, part: np.ndarray, reason: str) -> Split:
    split = Split(name, *(rows[part == i] for i in range(3)))
    for part_name, chosen in split.parts().items():
        if not len(chosen):
            raise ValueError(f"The part `{part_name}` of the split {name} is empty: {reason}")
    return split
