"""A table of transactions in order of time, described by a recipe."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from basin_client.transaction_tables import TransactionColumns, TransactionTable

from models.inputs.graph import Graph
from models.inputs.transactions import (
    TransactionError,
    TransactionHistory,
    TransactionRecipe,
    Transactions,
    find_history_kind,
    fit_recipe,
)
from training.common.results_log import hash_arrays
from training.datasets.nodes import Split, draw_sample
from training.datasets.targets import (
    AccountLabels,
    Targets,
    choose_account_sides,
    find_accounts,
)

_DAY = 86_400.0
MAX_MEASURED = 200_000  # an error of 0.1 % where a share is 1 %: not what limits a figure


@dataclass(frozen=True)
class TransactionData:
    """N transactions in order of time, ties in the order of the table.

    Attributes:
        ids: (N,) of the rows.
        labels: int64 (N,): 1 fraud, 0 none, -1 not labelled; 0 where accounts have labels alone.
        table_rows: (N,) place of each in the table.
    """

    name: str
    rows: Transactions
    ids: np.ndarray
    labels: np.ndarray
    calendar: bool
    columns: TransactionColumns
    table_rows: np.ndarray
    note: str = ""

    @classmethod
    def from_table(cls, table: TransactionTable, columns: TransactionColumns) -> TransactionData:
        """Order the rows by time."""
        labels = None if table.labels is None else table.labels.astype(np.int8)
        columns_read = table.time, table.source, table.target, table.amount, table.text
        rows = Transactions(*columns_read, table.numbers, labels)
        order = np.argsort(table.time, kind="stable")
        notes = list(table.notes)
        if (moved := int((order != np.arange(len(order))).sum())) > 0:
            notes.append(f"{table.name}: {moved} rows were not in order of time and were sorted.")
        name = table.name.replace("\\", "/").rpartition("/")[2].partition(".")[0]
        return cls(
            name,
            rows.take(order),
            table.ids[order],
            np.zeros(len(order), np.int64) if table.labels is None else table.labels[order],
            table.calendar,
            columns,
            order,
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
        """SHA-256 of the data and a split of its rows."""
        return hash_arrays(np.frombuffer(self.digest.encode(), np.uint8), *split.parts().values())


@dataclass(frozen=True)
class DescribedTransactions:
    """Targets of a table of transactions with their split and their features, by a recipe fitted to
    the training part.

    Attributes:
        row_split: of the rows.
        split: of `targets`, by place, as are `fitted` and `population`.
        fitted: those that encoders are fitted to.
        population: targets of the time of the validation part, labelled or not, as decisions have
            them: of the labelled ones those of the part, and as large a share of the others; no
            more than `MAX_MEASURED`, drawn at random.
        daily_targets: how many there are a day in that time, whatever part they are of; None where
            times are no timestamps.
    """

    data: TransactionData
    row_split: Split
    targets: Targets
    split: Split
    fitted: np.ndarray
    population: np.ndarray
    daily_targets: float | None
    recipe: TransactionRecipe
    history: TransactionHistory

    @cached_property
    def measured(self) -> dict[str, np.ndarray]:
        """Labelled targets of each part that figures are of: all, or, of more than `MAX_MEASURED`,
        as many drawn at random, always the same."""
        return {part: _draw(places) for part, places in self.split.parts().items()}

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of all that a result depends on beside its recipe."""
        data = self.data.fingerprint(self.row_split)
        if self.targets.accounts is None:
            return data
        return hash_arrays(
            np.frombuffer(data.encode(), np.uint8), self.targets.numbers, self.targets.labels
        )

    def build_graph(self, places: np.ndarray) -> tuple[Graph, np.ndarray]:
        """Return the neighbourhoods of targets, and the nodes that these are."""
        graph, _, own = self.history.build_graph(self.targets.numbers[places])
        return graph, own

    def describe(self, places: np.ndarray) -> np.ndarray:
        """Return the features of targets, float32 (n, `recipe.features`)."""
        return self.history.describe(self.targets.numbers[places])


def describe(
    data: TransactionData,
    split: Split,
    *,
    windows: tuple[float, ...] | None = None,
    neighbors: int = 3,
    hops: int = 1,
    known_after: float | None = None,
    accounts: AccountLabels | None = None,
) -> DescribedTransactions:
    """Fit the recipe to the rows up to the last one to train on, labelled or not, without those of
    the other parts, and describe all rows by it.

    Args:
        split: of the rows.
        known_after: how much later than its row a label is known, and counts for the rows that
            follow, whatever part it is of; None where the model shall read no labels.
        accounts: their labels, if they are the targets, and not the transactions.

    Raises:
        ValueError: a column has no value in the training part, or one is missing later alone, or a
            value is too large, or accounts cannot be split so; or the model shall read labels, and
            scores accounts or the parts do not follow each other in time.
    """
    columns = data.columns
    if known_after is not None and accounts is not None:
        raise ValueError(
            "Known labels (--known-after) would tell what an account is labelled by. Score "
            "transactions with them, or accounts without."
        )
    is_ordered = split.train[-1] < split.val[0] and split.val[-1] < split.test[0]
    if known_after is not None and not is_ordered:
        raise ValueError(
            "A model that reads known labels (--known-after) needs parts that follow each other in "
            "time: otherwise labels of the test part are features of the training part. Split by "
            "time, or train without --known-after."
        )
    is_used = np.zeros(len(data), bool)
    is_used[np.concatenate([split.val, split.test])] = True
    fitted = np.flatnonzero(~is_used[: split.train[-1] + 1])
    recipe = fit_recipe(
        data.rows.take(fitted),
        time=columns.time,
        source=columns.source,
        target=columns.target,
        amount=columns.amount,
        categories=columns.category,
        shared=columns.shared,
        calendar=data.calendar,
        label=None if known_after is None else columns.label,
        known_after=known_after or 0.0,
        windows=windows,
        neighbors=neighbors,
        hops=hops,
    )
    if accounts is not None:
        sides = choose_account_sides(data.rows.take(fitted), accounts)
        of_accounts = {"scores": "accounts", "accounts_pay_and_are_paid": True}
        recipe = TransactionRecipe.model_validate(
            recipe.model_dump() | of_accounts | {"account_sides": sides}
        )
    history = find_history_kind(recipe)(recipe)
    try:
        history.append(data.rows)
    except TransactionError as error:
        raise ValueError(
            f"Transaction {data.ids[error.row]}, column {error.column!r}: {error.rule}"
        ) from None
    if accounts is None:
        targets = Targets(np.arange(len(data)), data.labels, data.rows.time)
        own_split, population = split, _choose_population(data.labels, split)
        num_targets = split.val[-1] - split.val[0] + 1
    else:
        targets, own_split, part = find_accounts(
            data.rows, data.labels, split, accounts, recipe.account_sides
        )
        fitted, population = np.flatnonzero(part == 0), np.flatnonzero(part == 1)
        num_targets = len(population)
    times = data.rows.time[split.val]
    daily = None
    if data.calendar and times[-1] > times[0]:
        daily = num_targets * _DAY / float(times[-1] - times[0])
    return DescribedTransactions(
        data, split, targets, own_split, fitted, _draw(population), daily, recipe, history
    )


def _choose_population(labels: np.ndarray, split: Split) -> np.ndarray:
    """Return the validation part and, of the rows of its time that are not labelled, as large a
    share as the part is of those that are, so that the mixture is that of all."""
    span = np.arange(split.val[0], split.val[-1] + 1)
    unlabelled = span[labels[span] < 0]
    share = len(split.val) / (len(span) - len(unlabelled))
    others = np.sort(draw_sample(unlabelled, round(share * len(unlabelled))))
    return np.sort(np.concatenate([split.val, others]))


def _draw(rows: np.ndarray) -> np.ndarray:
    return np.sort(draw_sample(rows, MAX_MEASURED))
