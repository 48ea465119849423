"""Training on tables of one's own: columns, numbers on edges, and which nodes train."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import numpy as np
import pandas as pd
import pytest
from basin_client import InputError
from basin_client.graph_tables import ColumnOptions
from typer.testing import CliRunner

from basin.bulk import score_tables
from models.base import DynamicsParams
from models.checkpoint import load_checkpoint
from models.tasks.node_scorer import NodeScorer
from training.__main__ import app
from training.datasets import NodeDataset, Split, load_node_tables
from training.tasks.anomaly import neighborhoods


def test_command_line_trains_your_own_tables(command: list[str], tmp_path: Path) -> None:
    result = CliRunner().invoke(app, command, catch_exceptions=False)
    assert result.exit_code == 0
    checkpoint = load_checkpoint(tmp_path / "checkpoint")
    assert checkpoint.manifest.name == "et-my-n"
    assert [feature.name for feature in checkpoint.manifest.features] == ["a", "b", "c"]
    assert checkpoint.manifest.metrics["test"]["nodes"] == 240
    assert list((tmp_path / "run").glob("events.out.tfevents.*"))
    levels = checkpoint.manifest.energy.values
    assert list(levels) == sorted(levels)


def test_amounts_on_edges_are_read_where_they_are_named(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    edges = pd.read_csv(tmp_path / "e.csv", dtype=str)
    amounts = np.random.default_rng(0).lognormal(3, 1, len(edges)).round(2)
    edges.assign(amount=amounts).to_csv(tmp_path / "e.csv", index=False)
    # Refused, not dropped, where they are not named.
    with pytest.raises(InputError, match="Name numbers with --edge-features"):
        CliRunner().invoke(app, command, catch_exceptions=False)
    named = [*command, "--edge-features", "amount", "--name", "flows"]
    monkeypatch.setattr(neighborhoods, "_TRIED", 50)
    monkeypatch.setattr(neighborhoods, "_REFERENCES", 50)
    assert CliRunner().invoke(app, named, catch_exceptions=False).exit_code == 0
    loaded = load_checkpoint(tmp_path / "checkpoint")
    [feature] = loaded.manifest.edge_features
    assert (feature.name, feature.maximum) == ("amount", pytest.approx(amounts.max()))
    assert loaded.manifest.neighborhood is not None
    # By parts as the whole.
    monkeypatch.setenv("BASIN_CHECKPOINTS", str(tmp_path))
    tables = tmp_path / "My n.csv", tmp_path / "e.csv"
    drop = ColumnOptions(drop=["is_fraud"])
    scores, _ = score_tables(*tables, tmp_path / "bulk", model="flows", options=drop, parts=3)
    source = load_node_tables(*tables, "is_fraud", ColumnOptions(edge_features=["amount"]))
    network = cast(NodeScorer, loaded.network)
    logits = network.infer(network.pack([source.graph]), [DynamicsParams()]).logits
    np.testing.assert_allclose(scores["score"], logits.numpy(), atol=2e-5)


def test_nodes_are_split_by_time_by_column_by_group_or_by_a_file(
    command: list[str], tmp_path: Path
) -> None:
    path, edges = tmp_path / "My n.csv", tmp_path / "e.csv"
    nodes = pd.read_csv(path)
    day = np.random.default_rng(0).permutation(600)
    opened = pd.Timestamp("2026-01-01") + pd.to_timedelta(day, unit="D")
    part = np.array(["train", "train", "val", "test"])[np.arange(600) % 4]
    nodes.assign(opened=opened.astype(str), part=part, bank=np.arange(600) // 20).to_csv(
        path, index=False
    )
    options = ColumnOptions(drop=["opened", "part", "bank"])

    def load(split: str) -> tuple[NodeDataset, Split]:
        dataset = load_node_tables(path, edges, "is_fraud", options, split=split)
        [chosen] = dataset.official
        assert dataset.features == ("a", "b", "c")
        return dataset, chosen

    _, by_time = load("time:opened")
    assert day[by_time.train].max() < day[by_time.val].min()
    assert day[by_time.val].max() < day[by_time.test].min()
    _, by_column = load("column:part")
    assert (by_column.test % 4 == 3).all()
    _, by_group = load("group:bank")
    banks = [set(rows // 20) for rows in by_group.parts().values()]
    assert not banks[0] & banks[1]
    assert not (banks[0] | banks[1]) & banks[2]
    # The column is no feature, and what is written can be read.
    named = [*command, "--drop", "part", "--drop", "bank", "--split", "time:opened"]
    named += ["--split-out", str(tmp_path / "s.csv")]
    assert CliRunner().invoke(app, named, catch_exceptions=False).exit_code == 0
    manifest = load_checkpoint(tmp_path / "checkpoint").manifest
    assert [feature.name for feature in manifest.features] == ["a", "b", "c"]
    assert manifest.training["split"] == "time:opened"
    _, by_file = load(str(tmp_path / "s.csv"))
    assert np.array_equal(by_file.test, by_time.test)
    for split, words in (("time:opend", "no column 'opend'"), ("x.csv", "no such file")):
        with pytest.raises(Exception, match=words):
            load(split)
    # A column of the edges that is called the same is not left out with it.
    pd.read_csv(edges).assign(part=1.0).to_csv(edges, index=False)
    with pytest.raises(InputError, match="'part' is not read: edges have"):
        load_node_tables(
            *(path, edges, "is_fraud", ColumnOptions(drop=["opened", "bank"])), split="column:part"
        )
    result = CliRunner().invoke(
        app, ["anomaly", "--dataset", "payments-accounts", "--split", "group:bank"]
    )
    assert result.exit_code == 2
