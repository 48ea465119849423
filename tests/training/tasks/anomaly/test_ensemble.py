"""Networks of several seeds, trained one by one and served as one model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from lightning_fabric import Fabric
from rich.progress import Progress

from models.base import DynamicsParams
from tests.support.few_references import few_references
from tests.support.killed_run import killed_after
from training.datasets import NodeDataset, Split
from training.tasks.anomaly.configs import TableModel
from training.tasks.anomaly.export import describe_kind, export_node_scorer
from training.tasks.anomaly.results_table import compute_rows
from training.tasks.anomaly.stacked_trees import BoostingConfig
from training.tasks.anomaly.task import NodeTrainConfig
from training.tasks.anomaly.train import NodeRun, train_node_scorer

CONFIG = {"dim": 16, "heads": 2, "head_dim": 8, "memories": 16, "hidden": 16, "bins": 4}


def _train(
    dataset: NodeDataset, split: Split, fabric: Fabric, seed: int = 0, members: int = 1, **given
) -> NodeRun:
    recipe = NodeTrainConfig("et", CONFIG, epochs=6, learning_rate=1e-2, members=members)
    run_folder, baseline = given.pop("run_folder", None), given.pop("baseline", None)
    recipe = NodeTrainConfig(**(vars(recipe) | given))
    return train_node_scorer(
        *(dataset, split, recipe),
        seed=seed,
        fabric=fabric,
        run_folder=run_folder,
        baseline=baseline,
    )


def test_its_score_is_the_mean_of_networks_of_different_seeds(
    dataset: NodeDataset, split: Split, fabric: Fabric, tmp_path: Path
) -> None:
    whole = _train(dataset, split, fabric, seed=1, members=2)
    alone = [_train(dataset, split, fabric, seed=seed) for seed in (2, 3)]
    expected = np.mean([run.logits for run in alone], 0)
    np.testing.assert_allclose(whole.logits, expected, rtol=1e-5, atol=1e-6)
    assert whole.result.best_epoch == tuple(run.result.best_epoch for run in alone)
    with few_references():
        written = export_node_scorer(tmp_path / "e", "e", dataset, split, whole, seed=1)
    assert written.manifest.config["members"] == 2
    assert written.manifest.training["epoch"] == list(whole.result.best_epoch)  # type: ignore[arg-type]
    served = written.network.infer(written.network.pack([dataset.graph]), [DynamicsParams()])
    np.testing.assert_allclose(served.logits.numpy(), whole.logits, atol=1e-4)
    assert "Ensemble of 2 ET networks, the mean of their log-odds, that scores" in (
        tmp_path / "e" / "README.md"
    ).read_text("utf-8")


def test_a_hybrid_of_several_networks_has_one_set_of_trees(
    dataset: NodeDataset, split: Split, fabric: Fabric
) -> None:
    given = {"trees": BoostingConfig(folds=2, rounds=10), "labels": True}
    run = _train(dataset, split, fabric, members=2, **given)
    network = run.network
    assert network.features.trees is not None
    assert network.label_trees is not None
    assert describe_kind(network).startswith("Hybrid of 2 ET networks and 20 boosted trees")
    names = network.state_dict()
    assert {name.split(".")[1] for name in names if name.startswith("networks.")} == {"0", "1"}
    assert not [name for name in names if name.startswith("networks.") and ".trees." in name]
    served = network.infer(network.pack([dataset.graph]), [DynamicsParams()])
    np.testing.assert_allclose(served.logits.numpy(), run.logits, atol=1e-4)


def test_a_killed_ensemble_goes_on(
    dataset: NodeDataset, split: Split, fabric: Fabric, tmp_path: Path
) -> None:
    whole = _train(dataset, split, fabric, members=2)
    with killed_after(4):
        _train(dataset, split, fabric, members=2, run_folder=tmp_path)
    resumed = _train(dataset, split, fabric, members=2, run_folder=tmp_path)
    np.testing.assert_array_equal(whole.logits, resumed.logits)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["member-0", "member-1"]


def test_baselines_are_averaged_too(dataset: NodeDataset, split: Split, fabric: Fabric) -> None:
    whole = _train(dataset, split, fabric, members=2, baseline="gcn")
    alone = [_train(dataset, split, fabric, seed=seed, baseline="gcn") for seed in (0, 1)]
    expected = np.mean([run.logits for run in alone], 0)
    np.testing.assert_allclose(whole.logits, expected, rtol=1e-5, atol=1e-6)


def test_names_in_tables() -> None:
    for name in ("et", "et:labels", "cdat*2", "graph_transformer:hybrid*5"):
        assert str(TableModel.from_name(name)) == name
    assert TableModel.from_name("et:labels*3") == TableModel("et", "labels", 3)
    for name in ("et*", "et*1", "et*x", "et*-2"):
        with pytest.raises(ValueError, match="2 or more"):
            TableModel.from_name(name)


def test_trees_have_no_seeds_to_average(
    dataset: NodeDataset, split: Split, fabric: Fabric, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=r"ensembles are of networks; leave out \*2"):
        compute_rows(dataset, [split], ["boosting_bag*2"], tmp_path / "o", fabric, Progress())


def test_other_configurations_are_refused(
    dataset: NodeDataset, split: Split, fabric: Fabric
) -> None:
    network = _train(dataset, split, fabric).network
    other = _train(dataset, split, fabric, config=CONFIG | {"dim": 8}).network
    with pytest.raises(ValueError, match="same configuration"):
        network.add_members([other])


def test_weights_of_before_there_were_ensembles_are_those_of_one_network(
    dataset: NodeDataset, split: Split, fabric: Fabric
) -> None:
    network = _train(dataset, split, fabric).network
    now = network.state_dict()
    before = {name.removeprefix("networks.0."): tensor for name, tensor in now.items()}
    fresh = network.build_sibling(5)
    fresh.load_state_dict(before)
    assert all(torch.equal(tensor, now[name]) for name, tensor in fresh.state_dict().items())
