"""From a table of transactions to a checkpoint, and what is decided on the way."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from basin_client.tables import Table
from basin_client.transaction_tables import TransactionColumns, read_transactions
from typer.testing import CliRunner

from models.checkpoint import load_checkpoint
from training.__main__ import app
from training.datasets.payments import TYPOLOGIES, simulate_payments
from training.datasets.transactions import TransactionData, describe, find_leaks, split_by_time
from training.tasks.anomaly.decisions import DecisionRule, choose_threshold

COLUMNS = TransactionColumns(
    category=("type",), shared=("device",), label="is_fraud", id="id", drop=("typology",)
)


def load(frame: pd.DataFrame, columns: TransactionColumns = COLUMNS) -> TransactionData:
    return TransactionData.from_table(read_transactions(Table(frame, "p.csv"), columns), columns)


@pytest.fixture(scope="module")
def payments() -> pd.DataFrame:
    return simulate_payments(2500, fraud_share=0.08, seed=1)


def test_payments_are_reproducible_and_have_every_typology(payments: pd.DataFrame) -> None:
    assert payments.equals(simulate_payments(2500, fraud_share=0.08, seed=1))
    assert not payments.equals(simulate_payments(2500, fraud_share=0.08, seed=2))
    assert set(payments["typology"]) == {"", *TYPOLOGIES}
    assert (payments["is_fraud"] == (payments["typology"] != "")).all()
    assert payments["time"].is_monotonic_increasing
    assert 0.06 < payments["is_fraud"].mean() < 0.1
    assert (payments["source"] != payments["target"]).all()
    assert (payments["amount"] > 0).all()


def test_the_split_by_time_has_equal_times_in_one_part(payments: pd.DataFrame) -> None:
    days = payments.assign(time=payments["time"].str.slice(0, 10))
    data = load(days)
    split = split_by_time(data)
    times = data.rows.time
    assert times[split.train].max() < times[split.val].min()
    assert times[split.val].max() < times[split.test].min()
    assert sum(map(len, split.parts().values())) == len(data)


def test_rows_in_another_order_are_the_same_data(payments: pd.DataFrame) -> None:
    ordered, shuffled = load(payments), load(payments.sample(frac=1, random_state=0))
    assert ordered.fingerprint(split_by_time(ordered)) == shuffled.fingerprint(
        split_by_time(shuffled)
    )
    assert "were not in order of time" in shuffled.note


def test_encoders_see_the_training_part_alone(payments: pd.DataFrame) -> None:
    data = load(payments)
    split = split_by_time(data)
    later = payments.copy()
    after = np.arange(len(later)) > split.train[-1]
    later.loc[after, "type"] = "new"
    later.loc[after, "amount"] *= 1000
    assert describe(load(later), split).recipe == describe(data, split).recipe


def test_missing_values_that_training_did_not_have_are_refused(payments: pd.DataFrame) -> None:
    gap = payments.copy()
    gap.loc[len(gap) - 1, "amount"] = np.nan
    data = load(gap)
    with pytest.raises(ValueError, match="training had no row without it"):
        describe(data, split_by_time(data))


def test_a_feature_that_knows_the_label_raises_a_warning(payments: pd.DataFrame) -> None:
    data = load(payments)
    assert not find_leaks(describe(data, split_by_time(data)))
    columns = TransactionColumns(
        category=("type", "typology"), label="is_fraud", drop=("device", "id")
    )
    leaking = load(payments.assign(typology=payments["is_fraud"].map({0: "a", 1: "b"})), columns)
    [first, *_] = find_leaks(describe(leaking, split_by_time(leaking)))
    assert "'typology=" in first


def test_thresholds_follow_their_rules() -> None:
    rng = np.random.default_rng(0)
    labels = (rng.random(1000) < 0.1).astype(int)
    probabilities = np.clip(0.6 * labels + 0.4 * rng.random(1000), 0, 1)
    population = rng.random(4000)
    budget = choose_threshold(DecisionRule("budget", 0.05), probabilities, labels, population)
    assert budget.alert_share == pytest.approx(0.05)
    goal = choose_threshold(DecisionRule("precision", 0.9), probabilities, labels, population)
    assert goal.precision is not None
    assert goal.precision >= 0.9
    assert goal.recall == 1  # every fraud is above every other: the lowest threshold is there
    cost = choose_threshold(DecisionRule("cost", 0.02), probabilities, labels, population)
    assert cost.threshold == 0.02
    near = np.array([0.1, 0.1, 0.1, np.nextafter(0.1, 1)])
    quarter = choose_threshold(DecisionRule("budget", 0.25), probabilities, labels, near)
    assert quarter.alert_share == 0.25
    for share, all_of in ((0.05, np.ones(100)), (1e-4, population[:100])):
        with pytest.raises(ValueError, match="Choose a larger --budget"):
            choose_threshold(DecisionRule("budget", share), probabilities, labels, all_of)
    with pytest.raises(ValueError, match="No threshold has a precision"):
        choose_threshold(DecisionRule("precision", 0.9), np.full(10, 0.5), np.eye(10)[0], labels)


def test_one_command_makes_a_checkpoint_that_reads_rows(
    payments: pd.DataFrame, tmp_path: Path
) -> None:
    table = tmp_path / "payments.csv"
    payments.to_csv(table, index=False)
    command = [
        *("transactions", str(table), "--label", "is_fraud", "--id", "id", "--category", "type"),
        *("--shared", "device", "--drop", "typology", "--budget", "0.05", "--smoke"),
        *("--device", "cpu", "--out", str(tmp_path / "out"), "--run-folder", str(tmp_path / "run")),
        *("--split-out", str(tmp_path / "split.csv")),
    ]
    result = CliRunner().invoke(app, command, catch_exceptions=False)
    assert result.exit_code == 0
    manifest = load_checkpoint(tmp_path / "out").manifest
    assert manifest.transactions is not None
    assert manifest.transactions.categories["type"]
    assert manifest.decision is not None
    assert manifest.decision.alert_share == pytest.approx(0.05, abs=0.01)
    assert tuple(f.name for f in manifest.features) == manifest.transactions.features
    parts = pd.read_csv(tmp_path / "split.csv")["part"].value_counts()
    assert parts["train"] == manifest.training["train_transactions"]


def test_the_table_compares_every_model(payments: pd.DataFrame, tmp_path: Path) -> None:
    table = tmp_path / "payments.csv"
    payments.to_csv(table, index=False)
    command = [
        *("transactions-table", str(table), "--label", "is_fraud", "--drop", "*", "--smoke"),
        *("--seeds", "1", "--device", "cpu", "--out", str(tmp_path / "rows.jsonl")),
    ]
    result = CliRunner().invoke(app, command, catch_exceptions=False)
    assert result.exit_code == 0
    for model in ("cdat", "et", "gcn", "graph_transformer", "gradient_boosting", "random_forest"):
        assert f"| {model} |" in result.output
