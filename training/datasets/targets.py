"""What of a table of transactions is scored, with its labels: the transactions, or accounts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, get_args

import numpy as np
import pandas as pd
from basin_client.columns import read_labels, to_ids
from basin_client.errors import InputError
from basin_client.tables import Table, list_names

from models.inputs.transactions import Transactions
from training.datasets.nodes import Split

Side = Literal["source", "target", "both"]
SIDES: tuple[Side, ...] = get_args(Side)


@dataclass(frozen=True)
class AccountLabels:
    """Which accounts are fraud.

    Attributes:
        side: without a table, those that have a row labelled so on this side of it.
        table: labels by account, 1 or 0; accounts that are not in it are not labelled.
    """

    side: Side = "source"
    table: Mapping[str, int] | None = None


@dataclass(frozen=True)
class Targets:
    """T targets in order of time.

    Attributes:
        numbers: int64 (T,) that `TransactionHistory.build_graph` takes.
        labels: int64 (T,): 1 fraud, 0 none, -1 not labelled.
        times: float64 (T,) as of which each is described.
        accounts: text (T,), dtype object; None where targets are transactions.
    """

    numbers: np.ndarray
    labels: np.ndarray
    times: np.ndarray
    accounts: np.ndarray | None = None

    @property
    def unit(self) -> str:
        return "transactions" if self.accounts is None else "accounts"


def choose_account_sides(
    rows: Transactions, labels: AccountLabels
) -> tuple[Literal["source", "target"], ...]:
    """Return the sides whose accounts are scored: both, unless accounts of `rows` are on one side
    only and those of the other one have no labels."""
    is_one_kind = not set(rows.source).isdisjoint(rows.target)
    if labels.table is not None or labels.side == "both" or is_one_kind:
        return ("source", "target")
    return (labels.side,)


def find_accounts(
    rows: Transactions,
    row_labels: np.ndarray,
    split: Split,
    labels: AccountLabels,
    sides: tuple[Literal["source", "target"], ...],
) -> tuple[Targets, Split, np.ndarray]:
    """Return the accounts of each part of a table as of their last row in it.

    An account has the label of its rows of the part. With a table of labels an account is only in
    the part of its first row.

    Args:
        rows: N of them, in order of time.
        row_labels: (N,).
        split: of the labelled rows; a part lasts until the first row of the next one, and rows of
            that time that are in no part have no label.
        sides: those whose accounts are scored.

    Returns:
        The accounts, their split, and (T,) the part of each, also of those that are not labelled.

    Raises:
        ValueError: the parts do not follow each other in time, or a part has no labelled account.
    """
    if split.train[-1] > split.val[0] or split.val[-1] > split.test[0]:
        raise ValueError(
            f"--split {split.name}: the parts do not follow each other in time, so that accounts of"
            " one part would be described by rows of another. Use --split time, or a column or "
            "file of parts that do."
        )
    codes, names = pd.factorize(np.concatenate([rows.source, rows.target]))
    ends = {"source": codes[: len(rows)], "target": codes[len(rows) :]}
    used = np.full(len(rows), -1)
    for places in split.parts().values():
        used[places] = row_labels[places]
    labelled_sides = sides if labels.side == "both" else (labels.side,)
    of_table = None
    if labels.table is not None:
        of_table = np.array([labels.table.get(name, -1) for name in names])
    is_known, is_scored = np.zeros(len(names), bool), np.zeros(len(names), bool)
    numbers, truth, accounts, parts = [], [], [], []
    bounds = [0, int(split.val[0]), int(split.test[0]), len(rows)]
    for part, (begin, end) in enumerate(pairwise(bounds)):
        last, label = np.full(len(names), -1), np.full(len(names), -1)
        for number, side in enumerate(("source", "target")):
            of_part = ends[side][begin:end]
            np.maximum.at(last, of_part, 2 * np.arange(begin, end) + number)
            is_scored[of_part] |= side in sides
            if side in labelled_sides:
                np.maximum.at(label, of_part, used[begin:end])
        chosen = np.flatnonzero((last >= 0) & is_scored)
        if of_table is not None:
            label, new = of_table, chosen[~is_known[chosen]]
            is_known[chosen] = True
            chosen = new
        chosen = chosen[np.argsort(last[chosen])]
        numbers.append(last[chosen])
        truth.append(label[chosen])
        accounts.append(names[chosen])
        parts.append(np.full(len(chosen), part))
    targets = Targets(
        np.concatenate(numbers),
        np.concatenate(truth),
        rows.time[np.concatenate(numbers) // 2],
        np.concatenate(accounts),
    )
    part_T = np.concatenate(parts)
    own = (np.flatnonzero((part_T == part) & (targets.labels >= 0)) for part in range(3))
    own_split = Split(split.name, *own)
    for name, chosen in own_split.parts().items():
        if not len(chosen):
            raise ValueError(
                f"No account of the part `{name}` is labelled. Label more rows or accounts, or "
                "choose another --account-side."
            )
    return targets, own_split, part_T


def read_account_labels(
    table: Table, id_column: str, label_column: str, drop: tuple[str, ...]
) -> dict[str, int]:
    """Return the label of each account of a table that is labelled.

    Raises:
        InputError: there is no such column, another one, or an account twice.
    """
    table.require_columns({id_column: "--account-id", label_column: "--account-label"})
    extra = [
        name for name in map(str, table.frame.columns) if name not in (id_column, label_column)
    ]
    if "*" not in drop and (extra := [name for name in extra if name not in drop]):
        raise InputError(
            f"{table.name}: column {extra[0]!r} is not read: a table of accounts has ids and "
            "labels, features of accounts come from their transactions alone. Leave it out with "
            f"--drop (`*` is all of them: {list_names(extra)})."
        )
    ids = to_ids(table.column(id_column), table.name, id_column)
    if (again := ids.duplicated().to_numpy()).any():
        raise InputError(
            f"{table.name}: row {int(again.argmax()) + 1}, column {id_column!r}: the account has "
            f"occurred before ({again.sum()} such rows). Give each account once."
        )
    labels = read_labels(table, label_column)
    return {id: int(label) for id, label in zip(ids, labels, strict=True) if label >= 0}
