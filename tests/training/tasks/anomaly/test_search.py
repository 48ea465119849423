"""The search for recipes: what it begins with, when it ends, and that it reads no test label."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from lightning_fabric import Fabric
from rich.progress import Progress
from typer.testing import CliRunner

from models.checkpoint import load_checkpoint
from training.__main__ import app
from training.common.results_log import ResultsLog
from training.datasets import NodeDataset, Split, random_splits
from training.tasks.anomaly import search as searching
from training.tasks.anomaly.configs import smoke_node_config
from training.tasks.anomaly.search import list_variants, search_recipe
from training.tasks.anomaly.stacked_trees import BoostingConfig
from training.tasks.anomaly.task import NodeTrainConfig


@pytest.fixture(scope="module")
def split(dataset: NodeDataset) -> Split:
    return random_splits(dataset, 0.4, 1)[0]


def shrink(recipe: NodeTrainConfig) -> NodeTrainConfig:
    trees = None if recipe.trees is None else BoostingConfig(folds=2, rounds=10)
    return replace(smoke_node_config(recipe), epochs=2, trees=trees)


def search(dataset: NodeDataset, split: Split, log: Path, minutes: float) -> tuple[list, list]:
    lines = list[str]()
    with Progress(disable=True) as progress:
        trials = search_recipe(
            *(dataset, split, minutes, ResultsLog(log)),
            models=("et", "cdat"),
            variants=list_variants(hybrid=False, labels=False),
            seed=0,
            fabric=Fabric(accelerator="cpu", devices=1),
            progress=progress,
            tell=lines.append,
            adapt=shrink,
        )
    return trials, lines


def test_a_search_begins_with_the_recipes_and_goes_on(
    dataset: NodeDataset, split: Split, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(searching, "_MOST_TRIALS", 6)
    log = tmp_path / "search.jsonl"
    trials, lines = search(dataset, split, log, 10)
    assert len(trials) > 4
    assert [line.rpartition(": ")[0] for line in lines[:4]] == [
        *("et", "cdat", "et:hybrid", "cdat:hybrid")
    ]
    values = [trial.value for trial in trials]
    assert values == sorted(values, reverse=True)
    assert f"best {values[0]:.4f}" in [line for line in lines if "validation" in line][-1]
    before = log.read_text()
    assert search(dataset, split, log, 10)[0] == trials
    assert log.read_text() == before  # nothing was trained again
    labels = dataset.labels.copy()
    labels[split.test] = 1 - labels[split.test]
    others, _ = search(replace(dataset, labels=labels), split, tmp_path / "other.jsonl", 10)
    assert [(trial.recipe, trial.value) for trial in others] == [
        (trial.recipe, trial.value) for trial in trials
    ]


def test_no_recipe_is_begun_that_would_end_too_late(
    dataset: NodeDataset, split: Split, tmp_path: Path
) -> None:
    trials, _ = search(dataset, split, tmp_path / "search.jsonl", 0)
    assert [trial.name for trial in trials] == ["et"]


def test_a_change_that_cannot_be_trained_is_named(
    dataset: NodeDataset, split: Split, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(searching, "_MOST_TRIALS", 2)
    monkeypatch.setattr(searching, "_NETWORK", {"hops": (-1,)})
    monkeypatch.setattr(searching, "_LOOP", {})
    monkeypatch.setattr(searching, "_TREES", {})
    trials, lines = search(dataset, split, tmp_path / "search.jsonl", 10)
    assert len(trials) == 4
    assert "hops=-1: not trained: " in lines[-1]


def test_trees_are_left_out_where_there_are_too_few_frauds(
    dataset: NodeDataset, split: Split, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(searching, "_MOST_TRIALS", 0)
    fraud = dataset.labels[split.train] == 1
    few = replace(split, train=np.r_[split.train[fraud][:1], split.train[~fraud]])
    trials, lines = search(dataset, few, tmp_path / "search.jsonl", 10)
    assert {trial.name for trial in trials} == {"et", "cdat"}
    assert "et:hybrid: not trained: Trees are fitted in 2 folds" in lines[2]


def test_every_setting_is_one_of_a_recipe() -> None:
    known = {**vars(NodeTrainConfig("et")), **vars(BoostingConfig())}
    assert {*searching._LOOP, *searching._TREES} <= known.keys()


def test_what_is_trained_is_the_best(command: list[str], tmp_path: Path) -> None:
    result = CliRunner().invoke(app, [*command, "--search", "0.05", "--hybrid"])
    assert result.exit_code == 0, result.output
    assert "The best of" in result.output
    manifest = load_checkpoint(tmp_path / "checkpoint").manifest
    assert manifest.training["protocol"].startswith("recipe: of ")
    assert manifest.training["recipe"]["trees"] is not None
    tried = (tmp_path / "run" / "search.jsonl").read_text().splitlines()
    assert f"recipe: of {len(tried)} the best" in manifest.training["protocol"]


@pytest.mark.parametrize(
    ("given", "named"),
    [(["--epochs", "3"], "--epochs"), (["--ablation", "no-hopfield"], "--ablation")],
)
def test_what_a_search_chooses_is_not_given(
    command: list[str], given: list[str], named: str
) -> None:
    result = CliRunner().invoke(app, [*command, "--search", "1", *given])
    assert result.exit_code == 2
    assert f"--search chooses what {named} says" in " ".join(result.output.split())
