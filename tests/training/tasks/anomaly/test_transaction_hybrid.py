"""A hybrid on a table of transactions: trained, exported and read back as it was measured."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np
import pytest
from basin_client.tables import Table
from basin_client.transaction_tables import TransactionColumns, read_transactions
from sklearn.metrics import roc_auc_score

from models.base import DynamicsParams
from models.checkpoint import load_checkpoint
from models.tasks.node_scorer import NodeScorer
from tests.support.few_references import few_references
from training.cli_options import create_fabric
from training.datasets.payments import simulate_payments
from training.datasets.splits import split_by_time
from training.datasets.transactions import DescribedTransactions, TransactionData, describe
from training.tasks.anomaly.stacked_trees import BoostingConfig
from training.tasks.anomaly.transactions.export import export_transaction_scorer
from training.tasks.anomaly.transactions.train import (
    train_transaction_scorer,
    transaction_train_config,
)


@pytest.fixture(scope="module")
def described() -> DescribedTransactions:
    columns = TransactionColumns(label="is_fraud", category=("type",), drop=("*",))
    table = Table(simulate_payments(1500, fraud_share=0.1, seed=3), "payments")
    data = TransactionData.from_table(read_transactions(table, columns), columns)
    return describe(data, split_by_time(data.labels, data.rows.time))


@pytest.mark.parametrize("baseline", [None, "graph_transformer"])
def test_what_is_measured_is_what_scores(
    described: DescribedTransactions, baseline: str | None, tmp_path: Path
) -> None:
    recipe = transaction_train_config("et", len(described.split.train), hybrid=True, smoke=True)
    recipe = replace(recipe, trees=BoostingConfig(folds=3, rounds=20))
    fabric = create_fabric("cpu", "32-true")
    run = train_transaction_scorer(described, recipe, seed=0, fabric=fabric, baseline=baseline)
    assert run.evaluation.parts["test"].all.roc_auc > 0.6
    if baseline is not None:
        return
    with few_references():
        written = export_transaction_scorer(tmp_path / "hybrid", "hybrid", described, run, seed=0)
    assert "trees in folds of the training part" in written.manifest.training["protocol"]
    assert (tmp_path / "hybrid" / "README.md").read_text().count("Hybrid of ET and 60 boosted")
    network = cast(NodeScorer, load_checkpoint(tmp_path / "hybrid").network)
    assert network.part_weights.tolist() != [1, 0]
    for part in ("train", "test"):
        rows = described.measured[part]
        graph, own = described.build_graph(rows)
        logits = network.infer(network.pack([graph]), [DynamicsParams()]).logits.numpy()[own]
        measured = roc_auc_score(described.targets.labels[rows], logits)
        assert measured == pytest.approx(run.evaluation.parts[part].all.roc_auc, abs=1e-6)
    # A training target gets the fold that left it out, wherever it is scored.
    [alone] = described.split.train[:1]
    graph, [place] = described.build_graph(np.array([alone]))
    table_NC = network.features.compute_table(network.pack([graph]))
    column = network.features.count_node_columns(1)
    trees = network.features.trees
    assert trees is not None
    folds = trees.compute_folds(table_NC[place : place + 1, :column].numpy())[0]
    assert float(table_NC[place, column]) in folds.tolist()
