"""From a table of transactions to a checkpoint, and what is decided on the way."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd
import pytest
import torch
from basin_client.errors import InputError
from basin_client.tables import Table
from basin_client.transaction_tables import TransactionColumns, read_transactions
from typer.testing import CliRunner

from models.checkpoint import load_checkpoint
from models.manifest import Decision
from models.registry import find_architectures
from models.tasks.node_scorer import NodeScorer
from tests.support.few_references import few_references
from training.__main__ import app
from training.cli_options import create_fabric
from training.datasets import transactions as transactions_module
from training.datasets.nodes import Split
from training.datasets.payments import TYPOLOGIES, simulate_payments
from training.datasets.splits import split_by_time, write_split
from training.datasets.transaction_splits import choose_transaction_split, find_leaks
from training.datasets.transactions import TransactionData, describe
from training.tasks.anomaly.decisions import DecisionRule, Population, Rule, choose_threshold
from training.tasks.anomaly.transactions import task as task_module
from training.tasks.anomaly.transactions.task import TransactionTrainingTask
from training.tasks.anomaly.transactions.train import transaction_train_config

COLUMNS = TransactionColumns(
    category=("type",), shared=("device",), label="is_fraud", id="id", drop=("typology",)
)


def load(frame: pd.DataFrame, columns: TransactionColumns = COLUMNS) -> TransactionData:
    return TransactionData.from_table(read_transactions(Table(frame, "p.csv"), columns), columns)


def by_time(data: TransactionData) -> Split:
    return split_by_time(data.labels, data.rows.time)


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
    split = by_time(data)
    times = data.rows.time
    assert times[split.train].max() < times[split.val].min()
    assert times[split.val].max() < times[split.test].min()
    assert sum(map(len, split.parts().values())) == len(data)


def test_rows_in_another_order_are_the_same_data(payments: pd.DataFrame) -> None:
    ordered, shuffled = load(payments), load(payments.sample(frac=1, random_state=0))
    assert ordered.fingerprint(by_time(ordered)) == shuffled.fingerprint(by_time(shuffled))
    assert "were not in order of time" in shuffled.note


def test_encoders_see_the_training_part_alone(payments: pd.DataFrame) -> None:
    data = load(payments)
    split = by_time(data)
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
        describe(data, by_time(data))


def test_a_feature_that_knows_the_label_raises_a_warning(payments: pd.DataFrame) -> None:
    data = load(payments)
    assert not find_leaks(describe(data, by_time(data)))
    columns = TransactionColumns(
        category=("type", "typology"), label="is_fraud", drop=("device", "id")
    )
    leaking = load(payments.assign(typology=payments["is_fraud"].map({0: "a", 1: "b"})), columns)
    [first, *_] = find_leaks(describe(leaking, by_time(leaking)))
    assert "'typology=" in first


def test_thresholds_follow_their_rules() -> None:
    rng = np.random.default_rng(0)
    labels = (rng.random(1000) < 0.1).astype(int)
    probabilities = np.clip(0.6 * labels + 0.4 * rng.random(1000), 0, 1)
    population = rng.random(4000)

    def choose(
        rule: Rule, value: float, others: np.ndarray = population, daily: float | None = None
    ) -> Decision:
        everyone = Population(others, daily)
        return choose_threshold(DecisionRule(rule, value), probabilities, labels, everyone)

    assert choose("budget", 0.05).alert_share == pytest.approx(0.05)
    goal = choose("precision", 0.9)
    assert goal.precision is not None
    assert goal.precision >= 0.9
    assert goal.recall == 1  # every fraud is above every other: the lowest threshold is there
    cost = choose("cost", 0.02)
    assert cost.threshold == 0.02
    alerts = probabilities >= 0.02
    missed = int(labels[~alerts].sum())
    assert cost.loss == pytest.approx(0.02 * alerts.sum() + missed)
    near = np.array([0.1, 0.1, 0.1, np.nextafter(0.1, 1)])
    assert choose("budget", 0.25, near).alert_share == 0.25
    for share, all_of in ((0.05, np.ones(100)), (1e-4, population[:100])):
        with pytest.raises(ValueError, match="Choose a larger --budget"):
            choose("budget", share, all_of)
    with pytest.raises(ValueError, match="No threshold has a precision"):
        choose_threshold(
            DecisionRule("precision", 0.9), np.full(10, 0.5), np.eye(10)[0], Population(labels)
        )


def test_a_daily_budget_is_a_number_of_alerts_a_day() -> None:
    rng = np.random.default_rng(0)
    labels, population = np.arange(100) % 2, rng.random(4000)
    everyone = Population(population, daily=20_000)  # of which 4,000 were drawn from some days
    rule = DecisionRule("daily_budget", 50)
    decision = choose_threshold(rule, rng.random(100), labels, everyone)
    assert decision.daily is not None
    assert 20_000 * decision.alert_share == 50
    # A request asks the same of what is in the manifest.
    threshold = decision.daily.find_threshold(50)
    assert 20_000 * (population >= threshold).mean() == pytest.approx(50, rel=0.1)
    assert decision.daily.find_threshold(1e9) == population.min()
    # All or none of equal ones alert, and nothing where the first are too many.
    tied = np.concatenate([np.full(300, 0.9), rng.random(9700) * 0.8])
    daily = choose_threshold(rule, rng.random(100), labels, Population(tied, 1000)).daily
    assert daily is not None
    for alerts in (1, 10, 29.9, 30, 31, 200, 1000):
        reached = (tied >= daily.find_threshold(alerts)).mean() * 1000
        assert reached <= alerts * 1.05
        assert reached > 0 or alerts < 30
    with pytest.raises(ValueError, match="needs timestamps"):
        choose_threshold(rule, rng.random(100), labels, Population(population))


def test_a_split_is_by_group_by_column_or_by_a_file_that_was_written(
    payments: pd.DataFrame, tmp_path: Path
) -> None:
    data = load(payments)
    table = Table(payments, "p.csv")
    groups = choose_transaction_split(data, table, "group:source")
    by_part = [set(data.rows.source[rows]) for rows in groups.parts().values()]
    assert not by_part[0] & by_part[1]
    assert not (by_part[0] | by_part[1]) & by_part[2]
    assert sum(map(len, groups.parts().values())) == len(data)
    described = describe(data, groups)
    write_split(tmp_path / "split.csv", data.ids, groups)
    again = choose_transaction_split(data, table, str(tmp_path / "split.csv"))
    for part, rows in groups.parts().items():
        assert np.array_equal(again.parts()[part], rows)
    # What the rows of the other parts hold does not show in the recipe.
    assert not np.isin(described.fitted, np.concatenate([groups.val, groups.test])).any()
    parts = np.array(["train", "Validation", "test", ""])[np.arange(len(payments)) % 4]
    marked = payments.assign(part=parts)
    shuffled = marked.sample(frac=1, random_state=0)
    columns = replace(COLUMNS, drop=("typology", "part"))
    column = choose_transaction_split(
        load(shuffled, columns), Table(shuffled, "p.csv"), "column:part"
    )
    assert np.array_equal(column.train % 4, np.zeros(len(column.train)))
    assert sum(map(len, column.parts().values())) == (parts != "").sum()


def test_a_day_has_as_many_transactions_whatever_the_split(payments: pd.DataFrame) -> None:
    """A part of the accounts is not a part of the days; rows that are not labelled count too."""
    some = payments.assign(is_fraud=payments["is_fraud"].where(np.arange(len(payments)) % 2 == 0))
    data = load(some)
    by_group = describe(data, choose_transaction_split(data, Table(some, "p.csv"), "group:source"))
    split = by_group.split
    in_time = describe(data, by_time(data)).daily_targets
    assert in_time is not None
    assert by_group.daily_targets == pytest.approx(in_time, rel=0.2)
    labelled = data.labels[by_group.population] >= 0
    assert np.array_equal(by_group.population[labelled], split.val)
    assert 0.4 < labelled.mean() < 0.6


def test_a_split_that_cannot_be_made_says_why(payments: pd.DataFrame, tmp_path: Path) -> None:
    data = load(payments)
    wrong = payments.assign(part=["train"] * (len(payments) - 1) + ["hold-out"], team="all")
    with pytest.raises(ValueError, match=r"row 2500: .hold-out. is no part"):
        choose_transaction_split(data, Table(wrong, "p.csv"), "column:part")
    with pytest.raises(ValueError, match="part `val` of the split group:team is empty"):
        choose_transaction_split(data, Table(wrong, "p.csv"), "group:team")
    with pytest.raises(InputError, match="no column 'place'"):
        choose_transaction_split(data, Table(wrong, "p.csv"), "column:place")
    (tmp_path / "split.csv").write_text("id,part\np1,train\nq,val\n")
    with pytest.raises(ValueError, match="1 ids are not in the table, the first is 'q'"):
        choose_transaction_split(data, Table(wrong, "p.csv"), str(tmp_path / "split.csv"))


def test_splits_that_know_too_much_raise_a_warning(payments: pd.DataFrame) -> None:
    data = load(payments)
    mixed = describe(data, choose_transaction_split(data, Table(payments, "p.csv"), "group:source"))
    [warning] = find_leaks(mixed)
    assert "earlier than the last one to train on" in warning
    # Fraud is a matter of the account: its rows of the training part tell the others.
    known = payments["source"].str.slice(1).astype(int) % 3 == 0
    owned = load(payments.assign(is_fraud=known.astype(int)))
    warnings = find_leaks(describe(owned, by_time(owned)))
    assert any("labels belong to accounts" in warning for warning in warnings)


def test_an_epoch_of_many_rows_has_the_frauds_and_other_rows_at_random(
    payments: pd.DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_module, "_EPOCH_ROWS", 300)
    monkeypatch.setattr(transactions_module, "MAX_MEASURED", 200)
    data = load(payments)
    described = describe(data, by_time(data))
    assert {len(rows) for rows in described.measured.values()} == {200}
    assert len(described.population) == 200
    config = transaction_train_config("cdat", len(described.split.train), smoke=True)
    kind = find_architectures()["cdat"]
    config = replace(config, batch_nodes=100)
    values = {"features": described.recipe.features} | config.config
    network = cast(NodeScorer, kind(cast(Any, kind.config_type.model_validate(values))))
    task = TransactionTrainingTask(described, network, config, torch.device("cpu"))
    cpu = create_fabric("cpu", "32-true")
    epochs = [np.concatenate([step[3] for step in task.batches(seed, cpu)]) for seed in (0, 1)]
    frauds = int((data.labels[described.split.train] == 1).sum())
    assert frauds < 150
    for rows in epochs:
        assert len(set(rows)) == 300
        assert (data.labels[rows] == 1).sum() == frauds
        assert np.isin(rows, described.split.train).all()
    assert set(epochs[0]) != set(epochs[1])
    assert float(task.weight) == pytest.approx((300 - frauds) / frauds)
    # Where there are fewer others than half of an epoch, there are more frauds.
    mostly = replace(described.targets, labels=1 - data.labels)
    task = TransactionTrainingTask(
        replace(described, targets=mostly), network, config, torch.device("cpu")
    )
    rows = np.concatenate([step[3] for step in task.batches(0, cpu)])
    assert np.bincount(mostly.labels[rows]).tolist() == [frauds, 300 - frauds]


def test_one_command_makes_a_checkpoint_that_reads_rows(
    payments: pd.DataFrame, tmp_path: Path
) -> None:
    table = tmp_path / "payments.csv"
    payments.to_csv(table, index=False)
    command = [
        *("transactions", str(table), "--label", "is_fraud", "--id", "id", "--category", "type"),
        *("--shared", "device", "--drop", "typology", "--budget", "0.05", "--smoke"),
        *("--device", "cpu", "--out", str(tmp_path / "out"), "--run-folder", str(tmp_path / "run")),
        *("--split-out", str(tmp_path / "split.csv"), "--split", "group:source"),
    ]
    with few_references():
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


def test_labels_are_features_once_they_are_known(payments: pd.DataFrame) -> None:
    data = load(payments)
    split = by_time(data)
    day = 86_400.0
    described = describe(data, split, known_after=day)
    recipe = described.recipe
    assert (recipe.label, recipe.known_after) == ("is_fraud", day)
    place = recipe.features.index("source_sent_known_labels")
    assert described.history.x_NF[split.train, place].max() > 0
    # What a row of the test part turns out to be is known to none of the day that follows.
    row = int(split.test[0])
    other = payments.copy()
    other.loc[data.table_rows[row], "is_fraud"] = 1 - data.labels[row]
    changed = describe(load(other), split, known_after=day).history.x_NF
    differ = (changed != described.history.x_NF).any(1)
    assert not differ[data.rows.time < data.rows.time[row] + day].any()
    assert differ.any()
    shuffled = np.random.default_rng(0).permutation(len(data))
    parts = np.sort(shuffled[:1500]), np.sort(shuffled[1500:2000]), np.sort(shuffled[2000:])
    with pytest.raises(ValueError, match="parts that follow each other in time"):
        describe(data, Split("random", *parts), known_after=day)
