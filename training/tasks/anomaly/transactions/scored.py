"""The options that say what of a table of transactions is scored, and where its labels are."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

import typer
from basin_client.tables import Table, read_table
from basin_client.transaction_tables import TransactionColumns

from training.datasets.targets import AccountLabels, Side, read_account_labels

Scores = Literal["transactions", "accounts"]
Score = Annotated[Scores, typer.Option(help="what gets a score: transactions, or accounts")]
AccountSide = Annotated[
    Side | None,
    typer.Option(help="a row that is fraud makes its source (default), target or both a fraud"),
]
Accounts = Annotated[
    Path | None, typer.Option(help="table of the labels of accounts, in place of --label")
]
AccountId = Annotated[str, typer.Option(help="column of the id in --accounts")]
AccountLabel = Annotated[str, typer.Option(help="column of the label in --accounts")]


@dataclass(frozen=True)
class ScoredOptions:
    """What is scored; `side` and `table` are of accounts."""

    score: Scores
    side: Side | None
    table: Path | None
    id_column: str
    label_column: str

    def read_labels(
        self,
        table: Table,
        columns: TransactionColumns,
        separator: str | None,
        encoding: str | None,
    ) -> tuple[AccountLabels | None, TransactionColumns]:
        """Return how accounts are labelled, None where transactions are scored, and the columns of
        `table`, without what --drop says of the other table.

        Raises:
            BadParameter: options that do not go together.
            InputError: the table of accounts cannot be read.
        """
        if self.score == "transactions" and (self.side or self.table):
            raise typer.BadParameter("--account-side and --accounts go with --score accounts.")
        if self.table is None:
            if columns.label is None:
                raise typer.BadParameter("Training needs labels. Name their column with --label.")
            if self.score == "transactions":
                return None, columns
            return AccountLabels(self.side or "source"), columns
        if columns.label is not None or self.side is not None:
            raise typer.BadParameter(
                "--accounts has the labels: leave out --label and --account-side."
            )
        labelled = read_table(self.table, separator=separator, encoding=encoding)
        labels = read_account_labels(
            labelled, self.id_column, self.label_column, tuple(columns.drop)
        )
        others = {str(name) for name in labelled.frame.columns} - set(map(str, table.frame.columns))
        drop = tuple(name for name in columns.drop if name not in others)
        return AccountLabels(table=labels), replace(columns, drop=drop)
