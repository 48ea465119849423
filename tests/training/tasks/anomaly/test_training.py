"""The loop, what it resumes, what it reports, and the baselines it is compared with."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from lightning_fabric import Fabric
from sklearn.metrics import f1_score
from torch_geometric.nn import TransformerConv
from typer.testing import CliRunner

from models.base import DynamicsParams
from models.checkpoint import load_checkpoint as load_checkpoint
from models.inputs.graph import Graph
from models.inputs.graph_batch import pack_graphs
from tests.support.killed_run import killed_after
from training.__main__ import app
from training.datasets import NodeDataset, Split
from training.tasks.anomaly.baselines import GraphTransformerConv, fit_bag, fit_trees
from training.tasks.anomaly.configs import (
    HYBRID,
    TableModel,
    node_train_config,
    smoke_node_config,
)
from training.tasks.anomaly.evaluate import (
    compute_node_metrics,
    evaluate_nodes,
    find_best_threshold,
    fit_calibration,
)
from training.tasks.anomaly.neighbor_sampler import NeighborSampler
from training.tasks.anomaly.stacked_trees import BoostingConfig
from training.tasks.anomaly.task import NodeTrainConfig
from training.tasks.anomaly.train import train_node_scorer


def _small(model: str = "cdat", **changed) -> NodeTrainConfig:
    config = {"dim": 16, "heads": 2, "head_dim": 8, "memories": 16, "hidden": 16, "bins": 4}
    return NodeTrainConfig(model, config, **({"epochs": 30, "learning_rate": 1e-2} | changed))


@pytest.mark.parametrize("model", ["cdat", "et"])
def test_it_learns(model: str, dataset: NodeDataset, split: Split, fabric: Fabric) -> None:
    result = train_node_scorer(dataset, split, _small(model), seed=0, fabric=fabric)
    assert result.evaluation.parts["test"].roc_auc > 0.9
    served = result.network.infer(result.network.pack([dataset.graph]), [DynamicsParams()])
    np.testing.assert_allclose(served.logits.numpy(), result.logits, atol=1e-4)


def test_a_hybrid_reads_trees_and_is_served_as_it_was_evaluated(
    dataset: NodeDataset, split: Split, fabric: Fabric
) -> None:
    config = node_train_config("et", "tolokers", 5000, HYBRID)
    trees = BoostingConfig(folds=3, rounds=20)
    chosen = replace(smoke_node_config(config), trees=trees, batch_nodes=64, fanouts=(5, 5))
    result = train_node_scorer(dataset, split, chosen, seed=0, fabric=fabric)
    network = result.network
    assert network.features.trees is not None
    batch = network.pack([dataset.graph])
    served = network.infer(batch, [DynamicsParams()])
    np.testing.assert_allclose(served.logits.numpy(), result.logits, atol=1e-4)
    of_network, of_trees = network.part_weights.tolist()
    assert of_network > 0 or of_trees > 0
    scores_N = network.read_parts(batch, network.features.compute_table(batch))[0]
    assert scores_N is not None
    own = (served.logits.numpy() - of_trees * scores_N.numpy()) / of_network
    assert np.ptp(own) > 0.1  # the network adds something of its own
    assert result.evaluation.parts["test"].roc_auc > 0.9
    # The bins of the log-odds of trees, of a node and of its neighbours, are the last.
    columns = network.features.count_node_columns(1)
    assert {columns, columns + 1} <= set(network.features.column_P.tolist())


def test_a_killed_run_goes_on_to_the_same_result(
    dataset: NodeDataset, split: Split, fabric: Fabric, tmp_path: Path
) -> None:
    whole = train_node_scorer(dataset, split, _small(epochs=12), seed=3, fabric=fabric)
    with killed_after(6):
        train_node_scorer(
            dataset, split, _small(epochs=12), seed=3, fabric=fabric, run_folder=tmp_path
        )
    resumed = train_node_scorer(
        dataset, split, _small(epochs=12), seed=3, fabric=fabric, run_folder=tmp_path
    )
    np.testing.assert_array_equal(whole.logits, resumed.logits)
    assert whole.result.best_epoch == resumed.result.best_epoch
    with pytest.raises(ValueError, match="of another recipe"):
        train_node_scorer(
            dataset, split, _small(epochs=13), seed=3, fabric=fabric, run_folder=tmp_path
        )
    relabelled = replace(dataset, labels=np.roll(dataset.labels, 1))
    with pytest.raises(ValueError, match="or graph"):
        train_node_scorer(
            relabelled, split, _small(epochs=12), seed=3, fabric=fabric, run_folder=tmp_path
        )


@pytest.mark.parametrize("trees", [None, BoostingConfig(folds=2, rounds=10)], ids=["", "hybrid"])
def test_test_labels_have_no_part(
    trees: BoostingConfig | None, dataset: NodeDataset, split: Split, fabric: Fabric
) -> None:
    """Turning over every test label changes no weight, threshold or calibration."""
    labels = dataset.labels.copy()
    labels[split.test] = 1 - labels[split.test]
    config = _small(epochs=8, trees=trees)
    first = train_node_scorer(dataset, split, config, seed=0, fabric=fabric)
    other = replace(dataset, labels=labels)
    second = train_node_scorer(other, split, config, seed=0, fabric=fabric)
    np.testing.assert_array_equal(first.logits, second.logits)
    assert first.evaluation.threshold == second.evaluation.threshold
    assert first.evaluation.calibration == second.evaluation.calibration


@pytest.mark.parametrize("fanouts", [None, (5, 5)])
def test_steps_on_part_of_the_labels_learn_too(
    dataset: NodeDataset, split: Split, fabric: Fabric, fanouts: tuple[int, ...] | None
) -> None:
    chosen = _small(epochs=10, batch_nodes=64, fanouts=fanouts)
    result = train_node_scorer(dataset, split, chosen, seed=0, fabric=fabric)
    assert result.evaluation.parts["test"].roc_auc > 0.85


def test_sampler_takes_at_most_its_fanout(dataset: NodeDataset) -> None:
    batch = pack_graphs([dataset.graph])
    seeds = np.array([5, 300, 7])
    part, kept = NeighborSampler(batch, (4,)).sample(seeds, seed=0)
    again, kept_again = NeighborSampler(batch, (4,)).sample(seeds, seed=0)
    assert kept[:3].tolist() == seeds.tolist()
    assert np.array_equal(kept, kept_again)
    assert len(np.unique(kept)) == len(kept)
    assert torch.equal(part.x_NF, batch.x_NF[kept])
    whole = batch.relations[0]
    for place, node in enumerate(kept):
        layout = part.relations[0]
        sources = layout.indices_E[layout.indptr_N1[place] : layout.indptr_N1[place + 1]].long()
        true = set(whole.indices_E[whole.indptr_N1[node] : whole.indptr_N1[node + 1]].tolist())
        assert set(kept[sources.numpy()].tolist()) <= true
    # Without a cap the neighbourhood of a seed is whole.
    full, kept = NeighborSampler(batch, (10**6,)).sample(seeds, seed=0)
    assert torch.equal(full.relations[0].degree_N[:3], whole.degree_N[torch.from_numpy(seeds)])
    assert again.rows == 1


@pytest.mark.parametrize("name", ["gcn", "graph_transformer"])
def test_graph_baselines_learn(
    name: str, dataset: NodeDataset, split: Split, fabric: Fabric
) -> None:
    like = _small()
    result = train_node_scorer(dataset, split, like, seed=0, fabric=fabric, baseline=name)
    assert result.train_config.model == name
    assert result.evaluation.parts["test"].roc_auc > 0.9
    hybrid = replace(like, trees=BoostingConfig(folds=2, rounds=10))
    result = train_node_scorer(dataset, split, hybrid, seed=0, fabric=fabric, baseline=name)
    assert result.evaluation.parts["test"].roc_auc > 0.9


def test_graph_transformer_is_the_one_of_pyg(dataset: NodeDataset) -> None:
    torch.manual_seed(0)
    ours, theirs = GraphTransformerConv(8, heads=2), TransformerConv(8, 4, heads=2)
    with torch.no_grad():
        weight, bias = ours.qkv.weight.chunk(3), ours.qkv.bias.chunk(3)
        for i, linear in enumerate((theirs.lin_query, theirs.lin_key, theirs.lin_value)):
            linear.weight.copy_(weight[i])
            linear.bias.copy_(bias[i])
        theirs.lin_skip.load_state_dict(ours.skip.state_dict())
    edges = pack_graphs([dataset.graph]).relations[0]
    receivers = torch.repeat_interleave(torch.arange(600), edges.degree_N)
    x = torch.randn(600, 8)
    expected = theirs(x, torch.stack([edges.indices_E.long(), receivers]))
    torch.testing.assert_close(ours(x, edges), expected, rtol=1e-4, atol=1e-5)


def test_trees_are_tuned_on_validation(dataset: NodeDataset, split: Split) -> None:
    table = dataset.graph.x.astype(np.float64)
    trees = fit_trees(table, dataset.labels, split, seed=0)
    assert set(trees) == {"gradient_boosting", "random_forest"}
    for logits, val, _ in trees.values():
        assert val == evaluate_nodes(logits, dataset.labels, split).parts["val"].roc_auc


def test_a_bag_is_tuned_on_validation(dataset: NodeDataset, split: Split) -> None:
    table = dataset.graph.x.astype(np.float64)
    logits, val, setting = fit_bag(table, dataset.labels, split, seed=0)
    assert val == evaluate_nodes(logits, dataset.labels, split).parts["val"].roc_auc
    assert "rounds=" in setting


def test_threshold_is_the_best_one() -> None:
    rng = np.random.default_rng(0)
    for _ in range(5):
        p, y = rng.random(40).round(1), rng.integers(0, 2, 40)
        chosen = f1_score(y, p >= find_best_threshold(p, y), average="macro")
        tried = [f1_score(y, p >= t, average="macro") for t in np.linspace(-0.05, 1.05, 200)]
        assert chosen >= max(tried) - 1e-12


def test_calibration_repairs_weighted_training() -> None:
    rng = np.random.default_rng(0)
    p = rng.beta(1, 9, 20_000)
    y = (rng.random(20_000) < p).astype(int)
    skewed = 1.7 * np.log(p / (1 - p)) + 3
    assert np.abs(fit_calibration(skewed, y)(skewed) - p).mean() < 0.01


def test_recall_at_k() -> None:
    metrics = compute_node_metrics(np.array([0.9, 0.8, 0.2, 0.1]), np.array([1, 0, 1, 0]), 0.5)
    assert metrics.recall_at_k == 0.5
    assert metrics.macro_f1 == 0.5


def test_ablations() -> None:
    assert node_train_config("cdat", "tolokers", 5000, "no-w").config["coupling_rank"] == 0
    assert node_train_config("et", "tolokers", 5000, "no-attention").config["attention"] is False
    with pytest.raises(ValueError, match="ablation of cdat"):
        node_train_config("et", "tolokers", 5000, "no-w")
    with pytest.raises(ValueError, match="unknown variant 'no-x'; known are none, no-w"):
        node_train_config("et", "tolokers", 5000, "no-x")


@pytest.mark.parametrize("ablation", ["no-w", "no-inhibition", "no-attention", "no-hopfield"])
def test_ablations_train(ablation: str, dataset: NodeDataset, split: Split, fabric: Fabric) -> None:
    chosen = smoke_node_config(node_train_config("cdat", dataset.name, 5000, ablation))
    result = train_node_scorer(dataset, split, chosen, seed=0, fabric=fabric)
    parts = {"no-attention": {"hopfield"}, "no-hopfield": {"attention"}}
    output = result.network.infer(result.network.pack([dataset.graph]), [DynamicsParams()])
    components = output.solutions[0].trace[0].components
    assert components.keys() == parts.get(ablation, {"attention", "hopfield"})


def test_mixed_precision_learns_a_strength(dataset: NodeDataset, split: Split) -> None:
    half = Fabric(accelerator="cpu", devices=1, precision="bf16-mixed")
    chosen = _small(epochs=24)
    chosen.config.update(resonance={"strength": 1.0, "rank": 4}, learn_strength=True)
    result = train_node_scorer(dataset, split, chosen, seed=0, fabric=half)
    assert result.evaluation.parts["test"].roc_auc > 0.85


@pytest.mark.parametrize("baseline", [None, "gcn", "graph_transformer"])
def test_mixed_precision_learns(baseline: str | None, dataset: NodeDataset, split: Split) -> None:
    half = Fabric(accelerator="cpu", devices=1, precision="bf16-mixed")
    result = train_node_scorer(
        dataset, split, _small(epochs=24), seed=0, fabric=half, baseline=baseline
    )
    assert result.evaluation.parts["test"].roc_auc > 0.85


def test_a_part_without_fraud_is_refused_at_once(
    dataset: NodeDataset, split: Split, fabric: Fabric
) -> None:
    benign = replace(split, test=split.test[dataset.labels[split.test] == 0])
    with pytest.raises(ValueError, match=r"no fraudulent node among the .* of the part `test`"):
        train_node_scorer(dataset, benign, _small(), seed=0, fabric=fabric)


def torchrun(machines: int, command: list[str]) -> list[tuple[int, str, str]]:
    """Two processes on so many machines; how each torchrun ended, and what it said."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        place = f"127.0.0.1:{free.getsockname()[1]}"
    about = ["--nnodes", machines, "--nproc_per_node", 2 // machines, "--rdzv_backend", "c10d"]
    started = [
        subprocess.Popen(
            [
                *(sys.executable, "-m", "torch.distributed.run", *map(str, about)),
                *("--rdzv_endpoint", place, "--local_addr", "127.0.0.1"),
                *("-m", "training", *command, "--batch-nodes", "200"),
            ],
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(machines)
    ]
    said = [process.communicate(timeout=600) for process in started]
    return [(one.returncode, *told) for one, told in zip(started, said, strict=True)]


@pytest.mark.slow
@pytest.mark.parametrize("machines", [1, 2])
def test_several_processes_train_one_network(
    command: list[str], tmp_path: Path, machines: int
) -> None:
    ended = torchrun(machines, command)
    assert not any(status for status, *_ in ended), ended
    assert sum(out.count("checkpoint ") for _, out, _ in ended) == 1  # one process reports
    assert len(list((tmp_path / "run").glob("events.out.tfevents.*"))) == 1
    trained = load_checkpoint(tmp_path / "checkpoint").manifest.training["recipe"]
    assert trained["fanouts"] == [16, 16]  # type: ignore[index, call-overload]


def test_command_line_trains_a_resonance(command: list[str], tmp_path: Path) -> None:
    """What was learned is what the manifest tells, and what is served."""
    asked = [*command, "--resonance", "strength=0.3,gate=tanh", "--learn-strength"]
    assert CliRunner().invoke(app, asked, catch_exceptions=False).exit_code == 0
    loaded = load_checkpoint(tmp_path / "checkpoint")
    told = loaded.manifest.knobs.resonance
    assert told is not None
    assert (told.gate, told.vigilance) == ("tanh", 0.5)
    [block] = loaded.network.blocks_in_order()
    assert told.strength == (tuple(block.resonant.strength_H.tolist()),)
    assert all(0 < abs(strength - 0.3) < 0.2 for strength in told.strength[0])
    recipe = loaded.manifest.training["recipe"]
    assert recipe["config"]["resonance"]["strength"] == 0.3  # type: ignore[index, call-overload]


@pytest.mark.parametrize(
    "given",
    [["--learn-strength"], *(["--resonance", r] for r in ("tone=1", "strength=x", "gate=x", "x"))],
)
def test_a_resonance_that_is_none_is_refused(command: list[str], given: list[str]) -> None:
    assert CliRunner().invoke(app, [*command, *given]).exit_code == 2


def test_table_command_resumes(tmp_path: Path, monkeypatch) -> None:
    from training.tasks.anomaly import results_table

    dataset = NodeDataset(
        "tolokers", Graph(np.zeros((4, 1), np.float32), np.zeros((2, 0))), np.zeros(4), ("a",)
    )
    part = np.arange(1)
    split = Split("official-0", part, part, part)
    mark = results_table._mark(
        TableModel("et"), node_train_config("et", "tolokers", 1), dataset.fingerprint(split)
    )
    rows = {"dataset": "tolokers", "split": "official-0", "model": "et", "recipe": mark}
    figures = dict.fromkeys(results_table.COLUMNS, 0.5)
    out = tmp_path / "t.jsonl"
    out.write_text(json.dumps(rows | {"test": figures}) + "\n")

    def trained(*_: object) -> None:
        raise RuntimeError("trained")

    monkeypatch.setattr(results_table, "_network_row", trained)  # nothing is trained again
    from rich.progress import Progress

    with Progress(disable=True) as progress:
        results = results_table.compute_rows(dataset, [split], ["et"], out, Fabric(), progress)
        with pytest.raises(RuntimeError, match="trained"):  # of other data nothing is there
            results_table.compute_rows(
                replace(dataset, labels=np.ones(4)), [split], ["et"], out, Fabric(), progress
            )
    text = results_table.format_table(dataset, "official splits", results)
    assert "| et | 50.00 ± 0.00 |" in text
    assert text.endswith("A machine that was not noted.")
