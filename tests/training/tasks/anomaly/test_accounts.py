"""Accounts of a table of transactions: their labels, their split, and what is made of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from basin_client.errors import InputError
from basin_client.tables import Table
from basin_client.transaction_tables import TransactionColumns, read_transactions
from typer.testing import CliRunner

from models.checkpoint import load_checkpoint
from tests.support.accounts import COLUMNS, train_accounts
from training.__main__ import app
from training.datasets.nodes import Split
from training.datasets.payments import simulate_payments
from training.datasets.splits import split_by_time
from training.datasets.targets import AccountLabels, Side, read_account_labels
from training.datasets.transaction_splits import (
    choose_transaction_split,
    describe_overlap,
    find_leaks,
)
from training.datasets.transactions import DescribedTransactions, TransactionData, describe

WINDOWS = (5.0, 50.0)
ROWS = pd.DataFrame(
    [
        *((1, "A", "B", 1), (2, "B", "C", 0), (3, "C", "A", 0), (4, "A", "C", None)),
        *((5, "A", "B", 0), (6, "D", "A", 1), (7, "D", "B", 0)),
        *((8, "B", "D", 0), (9, "A", "B", 1), (10, "E", "A", 0)),
    ],
    columns=["time", "source", "target", "fraud"],
).assign(amount=1.0)
SPLIT = Split("time", np.array([0, 1, 2]), np.array([4, 5, 6]), np.array([7, 8, 9]))


def load(frame: pd.DataFrame, label: str | None = "fraud") -> TransactionData:
    columns = TransactionColumns(label=label, drop=() if label else ("fraud",))
    return TransactionData.from_table(read_transactions(Table(frame, "t.csv"), columns), columns)


def describe_rows(labels: AccountLabels, split: Split = SPLIT) -> DescribedTransactions:
    data = load(ROWS, None if labels.table else "fraud")
    return describe(data, split, windows=WINDOWS, accounts=labels)


def list_examples(described: DescribedTransactions) -> dict[str, dict[str, tuple[int, int]]]:
    """Of each part its labelled accounts, each with its last row from 1 and its label."""
    targets = described.targets
    assert targets.accounts is not None
    return {
        part: {
            targets.accounts[place]: (
                int(targets.numbers[place]) // 2 + 1,
                int(targets.labels[place]),
            )
            for place in places
        }
        for part, places in described.split.parts().items()
    }


@pytest.mark.parametrize(
    ("side", "expected"),
    [
        (
            "source",
            {
                "train": {"B": (2, 0), "C": (4, 0), "A": (4, 1)},
                "val": {"A": (6, 0), "D": (7, 1)},
                "test": {"B": (9, 0), "A": (10, 1), "E": (10, 0)},
            },
        ),
        (
            "target",
            {
                "train": {"B": (2, 1), "C": (4, 0), "A": (4, 0)},
                "val": {"A": (6, 1), "B": (7, 0)},
                "test": {"D": (8, 0), "B": (9, 1), "A": (10, 0)},
            },
        ),
        (
            "both",
            {
                "train": {"B": (2, 1), "C": (4, 0), "A": (4, 1)},
                "val": {"A": (6, 1), "B": (7, 0), "D": (7, 1)},
                "test": {"D": (8, 0), "B": (9, 1), "A": (10, 1), "E": (10, 0)},
            },
        ),
    ],
)
def test_an_account_has_the_labels_of_its_rows_once_in_each_part(side: Side, expected) -> None:
    described = describe_rows(AccountLabels(side))
    assert list_examples(described) == expected
    # Those of its time that are not labelled count for decisions.
    targets = described.targets
    assert targets.accounts is not None
    assert set(targets.accounts[described.population]) == {"A", "B", "D"}
    assert (np.diff(targets.times) >= 0).all()


def test_with_labels_by_account_each_is_in_the_part_of_its_first_row() -> None:
    described = describe_rows(AccountLabels(table={"A": 1, "C": 0, "D": 0, "E": 1, "X": 1}))
    assert list_examples(described) == {
        "train": {"C": (4, 0), "A": (4, 1)},
        "val": {"D": (7, 0)},
        "test": {"E": (10, 1)},
    }


def test_labels_of_rows_that_are_not_used_do_not_count() -> None:
    described = describe_rows(AccountLabels(), replace(SPLIT, val=np.array([4, 6])))
    assert list_examples(described)["val"] == {"A": (6, 0), "D": (7, 0)}


def test_parts_follow_each_other_in_time() -> None:
    mixed = Split("group:source", np.array([0, 5]), np.array([1, 6]), np.array([2, 9]))
    with pytest.raises(ValueError, match="do not follow each other in time"):
        describe_rows(AccountLabels(), mixed)
    with pytest.raises(ValueError, match="No account of the part `val` is labelled"):
        describe_rows(AccountLabels(table={"A": 1, "E": 0}))


def test_payers_that_are_never_paid_are_scored_alone() -> None:
    cards = ROWS.assign(target="shop " + ROWS["target"])
    described = describe(load(cards), SPLIT, windows=WINDOWS, accounts=AccountLabels())
    assert described.recipe.account_sides == ("source",)
    accounts = described.targets.accounts
    assert accounts is not None
    assert not any(account.startswith("shop") for account in accounts)
    both = describe(load(cards), SPLIT, windows=WINDOWS, accounts=AccountLabels("both"))
    assert both.recipe.account_sides == ("source", "target")


def test_labels_of_accounts_are_read_from_a_table_of_their_own() -> None:
    frame = pd.DataFrame({"id": [7, 8, 9], "label": ["1", "no", ""], "since": [1, 2, 3]})
    with pytest.raises(InputError, match="column 'since' is not read: a table of accounts has ids"):
        read_account_labels(Table(frame, "a.csv"), "id", "label", ())
    labels = read_account_labels(Table(frame, "a.csv"), "id", "label", ("since",))
    assert labels == {"7": 1, "8": 0}
    with pytest.raises(InputError, match="no column 'account'"):
        read_account_labels(Table(frame, "a.csv"), "account", "label", ("*",))
    again = pd.concat([frame, frame])
    with pytest.raises(InputError, match="row 4, column 'id': the account has occurred before"):
        read_account_labels(Table(again, "a.csv"), "id", "label", ("*",))


@pytest.fixture(scope="module")
def payments() -> pd.DataFrame:
    return simulate_payments(2500, fraud_share=0.08, seed=1)


def test_what_is_suspicious_is_told_of_accounts(payments: pd.DataFrame) -> None:
    columns = TransactionColumns(label="is_fraud", drop=("*",))

    def read(frame: pd.DataFrame) -> DescribedTransactions:
        table = read_transactions(Table(frame, "p.csv"), columns)
        data = TransactionData.from_table(table, columns)
        split = choose_transaction_split(data, Table(frame, "p.csv"), "time")
        return describe(data, split, accounts=AccountLabels())

    described = read(payments)
    assert not find_leaks(described)
    assert describe_overlap(described).startswith("Of the accounts of the test part, ")
    known = payments["source"].str.slice(1).astype(int) % 3 == 0
    [warning] = find_leaks(read(payments.assign(is_fraud=known.astype(int))))
    assert "An account's label in the training part tells" in warning


def test_a_day_has_the_accounts_of_the_part_each_once(payments: pd.DataFrame) -> None:
    columns = TransactionColumns(label="is_fraud", drop=("*",))
    data = TransactionData.from_table(read_transactions(Table(payments, "p.csv"), columns), columns)
    split = split_by_time(data.labels, data.rows.time)
    described = describe(data, split, accounts=AccountLabels("both"))
    part = data.rows.take(split.val)
    accounts = set(part.source) | set(part.target)
    assert len(described.population) == len(accounts)
    days = (part.time[-1] - part.time[0]) / 86_400
    assert described.daily_targets == pytest.approx(len(accounts) / days)


def test_one_command_makes_a_checkpoint_that_scores_accounts(
    payments: pd.DataFrame, tmp_path: Path
) -> None:
    split = tmp_path / "split.csv"
    printed = train_accounts(
        payments, tmp_path, "--label", "is_fraud", "--account-side", "both", "--budget", "0.05",
        "--split-out", str(split),
    )  # fmt: skip
    assert "of the accounts of the validation part" in " ".join(printed.split())
    manifest = load_checkpoint(tmp_path / "accounts").manifest
    recipe, decision = manifest.transactions, manifest.decision
    assert recipe is not None
    assert decision is not None
    assert recipe.scores == "accounts"
    assert decision.alert_share == pytest.approx(0.05, abs=0.01)
    assert tuple(feature.name for feature in manifest.features) == recipe.features
    is_account = manifest.features[0]
    assert (is_account.minimum, is_account.maximum, is_account.mean) == (0, 1, 0.5)
    assert manifest.training["train_accounts"] > manifest.training["test_accounts"]
    card = (tmp_path / "accounts" / "README.md").read_text()
    assert "scores accounts for fraud" in card
    # The split that is written is of rows, and gives the same accounts again.
    columns = TransactionColumns(label="is_fraud", id="id", drop=("*",))
    data = TransactionData.from_table(read_transactions(Table(payments, "p.csv"), columns), columns)
    again = choose_transaction_split(data, Table(payments, "p.csv"), str(split))
    assert len(again.train) == (pd.read_csv(split)["part"] == "train").sum()


def test_the_table_compares_every_model_on_accounts(payments: pd.DataFrame, tmp_path: Path) -> None:
    table, accounts = tmp_path / "payments.csv", tmp_path / "accounts.csv"
    payments.to_csv(table, index=False)
    fraud = payments[payments["is_fraud"] == 1]
    names = pd.unique(payments[["source", "target"]].to_numpy().ravel())
    labels = np.isin(names, fraud[["source", "target"]].to_numpy())
    late = payments.assign(  # so that each part has new accounts
        source=payments["source"] + "-" + (payments.index // 300).astype(str),
        target=payments["target"] + "-" + (payments.index // 300).astype(str),
    )
    late.to_csv(table, index=False)
    numbered = [f"{name}-{part}" for part in range(9) for name in names]
    frame = pd.DataFrame({"account": numbered, "is_mule": np.tile(labels, 9).astype(int)})
    frame.assign(country="x").to_csv(accounts, index=False)
    command = [
        *("transactions-table", str(table), "--score", "accounts", "--accounts", str(accounts)),
        *("--account-id", "account", "--account-label", "is_mule", "--drop", "country"),
        *("--drop", "is_fraud", *COLUMNS, "--hops", "0", "--seeds", "1", "--device", "cpu"),
        *("--smoke", "--out", str(tmp_path / "rows.jsonl")),
    ]
    result = CliRunner().invoke(app, command, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert "| payments, accounts, split time |" in result.output
    for model in ("cdat", "et", "gcn", "graph_transformer", "gradient_boosting", "random_forest"):
        assert f"| {model} |" in result.output


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--label", "is_fraud", "--accounts", "a.csv"], "go with --score accounts"),
        (["--label", "is_fraud", "--account-side", "both"], "go with --score accounts"),
        ([], "Name their column with --label"),
        (["--score", "accounts"], "Name their column with --label"),
        (
            ["--score", "accounts", "--label", "is_fraud", "--accounts", "a.csv"],
            "leave out --label and --account-side",
        ),
        (
            ["--score", "accounts", "--label", "is_fraud", "--split", "group:source"],
            "do not follow each other in time",
        ),
    ],
)
def test_options_that_do_not_go_together_are_refused(
    options: list[str], words: str, payments: pd.DataFrame, tmp_path: Path
) -> None:
    table = tmp_path / "payments.csv"
    payments.to_csv(table, index=False)
    drop = [] if "is_fraud" in options else ["--drop", "is_fraud"]
    result = CliRunner().invoke(
        app, ["transactions", str(table), *COLUMNS, *drop, *options, "--device", "cpu"]
    )
    assert result.exit_code != 0
    told = " ".join((result.output + str(result.exception)).replace("│", " ").split())
    assert words in told


def test_the_side_of_labels_changes_what_a_result_depends_on() -> None:
    prints = {describe_rows(AccountLabels(side)).fingerprint for side in ("source", "both")}
    data = load(ROWS)
    plain = describe(data, SPLIT, windows=WINDOWS)
    assert plain.fingerprint == data.fingerprint(SPLIT)
    assert len(prints | {plain.fingerprint}) == 3
    other = replace(SPLIT, val=np.array([4, 5]))
    assert describe(data, other, windows=WINDOWS).fingerprint != plain.fingerprint
