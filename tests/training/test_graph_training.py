"""Whole graphs: what is learned, resumed, chosen and reported, and what test labels never touch."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from lightning_fabric import Fabric
from typer.testing import CliRunner

from models.checkpoint import load as load_checkpoint
from models.contract import Knobs
from models.graph import Column, Graph
from models.graph_classifier import GraphClassifier, Task
from models.tokens import Tokeniser, collate
from tests.training.killed import killed_after
from training.__main__ import app
from training.datasets import GraphDataset, Split, as_published, k_folds
from training.graph_baselines import GIN, GRAPH_NETWORKS, SummedMLP, fit_forest
from training.graph_evaluate import evaluate_graphs, measure, temperatures
from training.graph_problem import GraphProblem, GraphRecipe
from training.graph_recipes import graph_recipe
from training.graph_runs import choose, train_graphs
from training.trainer import _centralise, _centred

SMALL = {"dim": 16, "heads": 2, "head_dim": 8, "memories": 16, "blocks": 2, "encoder": 16}


@pytest.fixture(scope="module")
def dataset() -> GraphDataset:
    """A triangle somewhere in a tree, or none: what only structure tells; some labels missing."""
    rng = np.random.default_rng(0)
    graphs, labels = [], []
    for i in range(120):
        nodes = int(rng.integers(6, 12))
        parent = [int(rng.integers(0, j)) for j in range(1, nodes)]
        edges = [(p, j) for j, p in enumerate(parent, 1)]
        if i % 2:
            edges.append((nodes - 1, parent[parent[nodes - 2] - 1] if parent[-1] else 0))
            a, b = edges[0]
            edges += [(a, nodes), (b, nodes)]
            nodes += 1
        x = np.c_[rng.integers(0, 3, nodes), rng.standard_normal(nodes)].astype(np.float32)
        attr = rng.integers(0, 2, (len(edges), 1)).astype(np.float32)
        graphs.append(Graph(x, np.array(edges).T, None, attr))
        labels.append((i % 2, -1 if i % 5 == 0 else int(rng.integers(0, 3))))
    return GraphDataset(
        "triangles",
        tuple(graphs),
        np.array(labels),
        (Task(name="ring", labels=("no", "yes")), Task(name="noise", labels=("a", "b", "c"))),
        (Column("kind", ("x", "y", "z")), Column("number")),
        (Column("bond", ("s", "d")),),
    )


@pytest.fixture(scope="module")
def split(dataset: GraphDataset) -> Split:
    return k_folds(dataset, 4)[0]


@pytest.fixture(scope="module")
def fabric() -> Fabric:
    return Fabric(accelerator="cpu", devices=1)


def _recipe(model: str, **changed) -> GraphRecipe:
    chosen = graph_recipe(model, "triangles")
    config = chosen.config | (SMALL if model in ("cdat", "et") else {"dim": 16})
    values = {"epochs": 5, "learning_rate": 3e-3, "batch_graphs": 16} | changed
    return replace(chosen, config=config, **values)


@pytest.mark.parametrize("model", ["cdat", "et", "gin"])
def test_it_learns_structure(
    model: str, dataset: GraphDataset, split: Split, fabric: Fabric
) -> None:
    dataset = replace(dataset, labels=dataset.labels[:, :1], tasks=dataset.tasks[:1])
    recipe = _recipe(model, epochs=25, learning_rate=1e-2)
    result = train_graphs(dataset, split, recipe, seed=0, fabric=fabric)
    assert result.evaluation.parts["test"][0].accuracy > 0.8
    if isinstance(result.network, GraphClassifier):
        batch = result.network.pack(dataset.graphs)
        served = result.network.infer(batch, [Knobs()] * len(dataset.graphs))
        np.testing.assert_allclose(served.logits.numpy(), result.fitted.logits, atol=1e-4)


@pytest.mark.parametrize("model", ["cdat", "gin", "mlp"])
def test_test_labels_have_no_part(
    model: str, dataset: GraphDataset, split: Split, fabric: Fabric
) -> None:
    """Other labels on every test graph change no weight, epoch, choice or temperature."""
    labels = dataset.labels.copy()
    labels[split.test, 0] = 1 - labels[split.test, 0]
    labels[split.test, 1] = 2 - labels[split.test, 1].clip(min=0)
    recipes = [_recipe(model, epochs=3), _recipe(model, epochs=3, learning_rate=1e-2)]
    first = choose(dataset, split, recipes, seed=0, fabric=fabric)
    second = choose(replace(dataset, labels=labels), split, recipes, seed=0, fabric=fabric)
    np.testing.assert_array_equal(first.fitted.logits, second.fitted.logits)
    assert first.recipe == second.recipe
    assert first.evaluation.temperatures == second.evaluation.temperatures
    assert first.evaluation.parts["val"] == second.evaluation.parts["val"]


def test_a_killed_run_goes_on_to_the_same_result(
    dataset: GraphDataset, split: Split, fabric: Fabric, tmp_path: Path
) -> None:
    recipe = _recipe("et", epochs=6)
    whole = train_graphs(dataset, split, recipe, seed=3, fabric=fabric)
    with killed_after(3):
        train_graphs(dataset, split, recipe, seed=3, fabric=fabric, run=tmp_path)
    resumed = train_graphs(dataset, split, recipe, seed=3, fabric=fabric, run=tmp_path)
    np.testing.assert_array_equal(whole.fitted.logits, resumed.fitted.logits)
    with pytest.raises(ValueError, match="of another recipe"):
        train_graphs(dataset, split, replace(recipe, epochs=7), seed=3, fabric=fabric, run=tmp_path)


def test_missing_labels_and_weights_in_the_loss(dataset: GraphDataset, split: Split) -> None:
    tokens = dataset.tokens(Tokeniser())
    logits = torch.randn(6, 5)
    target = torch.tensor([[0, -1], [1, -1], [0, 2], [0, 0], [1, -1], [0, 1]])
    batch = collate(tokens[:6])
    for balanced in (False, True):
        recipe = GraphRecipe("et", balanced=balanced, label_smoothing=0.1)
        problem = GraphProblem(
            tokens, dataset.labels, dataset.tasks, split, recipe, torch.device("cpu")
        )
        expected = []
        for t, columns in enumerate((slice(0, 2), slice(2, 5))):
            known = target[:, t] >= 0
            expected.append(
                torch.nn.functional.cross_entropy(
                    logits[known, columns],
                    target[known, t],
                    weight=problem.weights[t],
                    label_smoothing=0.1,
                )
            )
        got = problem.loss(lambda _: logits, (batch, target))  # type: ignore[arg-type]
        torch.testing.assert_close(got, torch.stack(expected).mean())
        # Nothing is known of a task in this batch: it adds nothing, and no NaN.
        assert problem.loss(lambda _: logits, (batch, target.clamp(max=-1))).item() == 0  # type: ignore[arg-type]
    assert (problem.labels[split.test] == -1).all()


@pytest.mark.parametrize("model", ["cdat", "et", "gin", "mlp"])
def test_half_precision_trains(model: str, dataset: GraphDataset, split: Split) -> None:
    half = Fabric(accelerator="cpu", devices=1, precision="bf16-mixed")
    result = train_graphs(dataset, split, _recipe(model, epochs=2), seed=0, fabric=half)
    assert np.isfinite(result.fitted.logits).all()


def test_centralised_gradients() -> None:
    few, many = torch.nn.Linear(1, 12), torch.nn.Linear(12, 3)
    network = torch.nn.Sequential(few, torch.nn.ReLU(), many)
    network(torch.randn(5, 1)).square().sum().backward()
    before = {name: p.grad.clone() for name, p in network.named_parameters() if p.grad is not None}
    _centralise(_centred(network))
    after = {name: p.grad for name, p in network.named_parameters() if p.grad is not None}
    assert after["2.weight"].mean(1).abs().max() < 1e-6
    assert not torch.equal(after.pop("2.weight"), before["2.weight"])
    for name, gradient in after.items():  # the map of one input above all
        assert torch.equal(gradient, before[name])


@pytest.mark.parametrize("model", ["cdat", "et", "gin", "mlp"])
def test_training_moves_every_parameter(
    model: str, dataset: GraphDataset, split: Split, fabric: Fabric
) -> None:
    start = train_graphs(dataset, split, _recipe(model, epochs=0), seed=0, fabric=fabric)
    end = train_graphs(dataset, split, _recipe(model, epochs=2), seed=0, fabric=fabric)
    after = dict(end.network.named_parameters())
    for name, before in start.network.named_parameters():
        if before.requires_grad and before.numel():
            assert not torch.equal(before, after[name]), name


def test_temperature_repairs_confidence() -> None:
    rng = np.random.default_rng(0)
    logits = rng.standard_normal((20_000, 3))
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    labels = (p.cumsum(1) > rng.random((20_000, 1))).argmax(1)[:, None]
    task = (Task(name="t", labels=("a", "b", "c")),)
    (found,) = temperatures(4 * logits, labels, task)
    assert found == pytest.approx(4, rel=0.05)
    (raw,), (mended,) = (measure(4 * logits, labels, task, t) for t in (None, (found,)))
    assert mended.cross_entropy < raw.cross_entropy
    assert mended.accuracy == raw.accuracy


def test_temperature_stays_modest_where_all_is_right() -> None:
    task = (Task(name="t", labels=("a", "b")),)
    labels = np.tile([0, 1], 20)[:, None]
    logits = np.where(np.eye(2)[labels[:, 0]] == 1, 3.0, -3.0)
    (found,) = temperatures(logits, labels, task)
    assert 0.5 < found < 2
    p = 1 / (1 + np.exp(-6 / found))
    assert p == pytest.approx(41 / 42, abs=1e-3)  # 40 graphs and one more of each class


def test_figures() -> None:
    task = (Task(name="t", labels=("a", "b")),)
    logits = np.log([[0.8, 0.2], [0.4, 0.6], [0.3, 0.7], [0.9, 0.1]])
    (m,) = measure(logits, np.array([[0], [0], [1], [-1]]), task)
    assert (m.accuracy, m.roc_auc, m.graphs) == (pytest.approx(2 / 3), 1.0, 3)
    assert m.brier == pytest.approx((0.04 + 0.36 + 0.09) / 3)
    (one_class,) = measure(logits, np.zeros((4, 1), np.int64), task)
    assert one_class.roc_auc is None


def test_as_published_is_measured_on_what_was_trained_on(dataset: GraphDataset) -> None:
    split = as_published(dataset)
    assert np.array_equal(split.train, split.test)
    assert len(split.test) == len(dataset.graphs)


def test_gin_is_invariant_and_the_mlp_sees_no_edges(dataset: GraphDataset) -> None:
    graph = dataset.graphs[1]
    order = np.random.default_rng(0).permutation(graph.num_nodes)
    shuffled = replace(graph, x=graph.x[order], edge_index=np.argsort(order)[graph.edge_index])
    bare = replace(graph, edge_index=graph.edge_index[:, :0], edge_attr=np.zeros((0, 1)))
    make = Tokeniser(positions="none")
    one, other, none = (collate([make(g)]) for g in (graph, shuffled, bare))
    for kind in GRAPH_NETWORKS.values():
        network = kind(dataset, dim=8, layers=2, dropout=0.0).eval()
        torch.testing.assert_close(network(one), network(other), rtol=1e-4, atol=1e-5)
        assert torch.equal(network(one), network(none)) == (kind is SummedMLP)
    assert GRAPH_NETWORKS["gin"] is GIN


MOLECULES = [
    f"{head}{'C' * n}{tail}" for head in ("", "c1ccccc1") for n in range(2, 9) for tail in "CON"
]


@pytest.fixture
def csv(tmp_path: Path) -> Path:
    rows = [(text, int("c" in text)) for text in MOLECULES] + [("nonsense", 1)]
    pd.DataFrame(rows, columns=["smi", "aromatic"]).to_csv(tmp_path / "m.csv", index=False)
    return tmp_path / "m.csv"


def test_molecules_that_come_again_count_once(tmp_path: Path) -> None:
    from training.datasets import load_smiles

    rows = [
        *(("CCO", 1, "a"), ("OCC", 1, None), ("C(O)C", 1, "b")),  # ethanol: b contradicts a
        *(("CC", 0, "a"), ("C", 1, "b"), ("C", 0, "b"), ("?", 0, "b")),
    ]
    pd.DataFrame(rows, columns=["smi", "y", "z"]).to_csv(tmp_path / "m.csv", index=False)
    dataset = load_smiles(tmp_path / "m.csv", "smi", ["y", "z"])
    assert dataset.smiles == ("CCO", "CC", "C")
    assert dataset.labels.tolist() == [[1, -1], [0, 0], [-1, 1]]
    assert dataset.note == (
        "Left out: 1 not_smiles, 3 that came again. 2 had contradicting labels, which do not count."
    )


def test_numbers_are_no_labels(tmp_path: Path) -> None:
    from training.datasets import load_smiles

    rows = [("C" * (i + 1), i / 7) for i in range(60)]
    pd.DataFrame(rows, columns=["smi", "y"]).to_csv(tmp_path / "m.csv", index=False)
    with pytest.raises(ValueError, match="'y' has 60 values"):
        load_smiles(tmp_path / "m.csv", "smi", ["y"])


def test_a_part_of_one_label_is_refused(dataset: GraphDataset, fabric: Fabric) -> None:
    rings = np.flatnonzero(dataset.labels[:, 0] == 1)
    trees = np.flatnonzero(dataset.labels[:, 0] == 0)
    split = Split("scaffold", np.r_[rings[:20], trees], rings[20:40], rings[40:])
    with pytest.raises(ValueError, match=r"to val have less than two labels of ring.*balanced"):
        train_graphs(dataset, split, _recipe("et"), seed=0, fabric=fabric)


def test_balanced_probabilities_are_put_back(fabric: Fabric) -> None:
    """Labels that no graph tells: what is learned is how frequent they are."""
    rng = np.random.default_rng(0)
    graphs = tuple(Graph(np.zeros((2, 1), np.float32), np.array([[0], [1]])) for _ in range(400))
    labels = (rng.random(400) < 0.15).astype(np.int64)[:, None]
    task = (Task(name="t", labels=("often", "rare")),)
    constant = GraphDataset("constant", graphs, labels, task, (Column("node", ("node",)),))
    recipe = _recipe("et", epochs=20, balanced=True, label_smoothing=0.0, weight_decay=0.0)
    logits = train_graphs(
        constant, k_folds(constant, 4)[0], recipe, seed=0, fabric=fabric
    ).fitted.logits
    p = 1 / (1 + np.exp(logits[:, 0] - logits[:, 1]))
    assert p.mean() == pytest.approx(labels.mean(), abs=0.05)


def test_the_forest_learns(csv: Path) -> None:
    from training.datasets import load_smiles, random_split

    dataset = load_smiles(csv, "smi", ["aromatic"])
    split = random_split(dataset)
    logits = fit_forest(dataset, split, seed=0)
    assert (
        evaluate_graphs(logits, dataset.labels, split, dataset.tasks).mean("test", "roc_auc") == 1
    )


def test_command_line_from_smiles_to_checkpoint(csv: Path, tmp_path: Path) -> None:
    result = CliRunner().invoke(
        app,
        [
            *("classify", "--smoke", "--device", "cpu", "--model", "cdat", "--split", "random"),
            *("--smiles", str(csv), "--smiles-column", "smi", "--label", "aromatic"),
            *("--out", str(tmp_path / "checkpoint"), "--run-folder", str(tmp_path / "run")),
        ],
        catch_exceptions=False,
    )
    assert result.exit_code == 0
    checkpoint = load_checkpoint(tmp_path / "checkpoint")
    manifest = checkpoint.manifest
    assert (manifest.architecture, manifest.task) == ("cdat-graph", "classification")
    assert manifest.features[0].name == "element"
    assert manifest.features[0].values is not None
    assert manifest.features[0].values[3] == "C"
    assert manifest.edge_features[0].name == "bond"
    assert len(manifest.temperatures) == 1
    assert manifest.training["note"] == "Left out: 1 not_smiles."
    assert "accuracy" in manifest.metrics["test"]["aromatic"]  # type: ignore[index, operator]
    assert list(manifest.energy.values) == sorted(manifest.energy.values)
    assert (tmp_path / "run" / "state.safetensors").is_file()


def test_table_command_resumes(csv: Path, tmp_path: Path, monkeypatch) -> None:
    from training import graph_table

    asked = [
        *("classify-table", "--smoke", "--device", "cpu", "--split", "random", "--only", "1"),
        *("--smiles", str(csv), "--smiles-column", "smi", "--label", "aromatic"),
        *("--models", "et,mlp,forest", "--out", str(tmp_path / "t.jsonl")),
    ]
    first = CliRunner().invoke(app, asked, catch_exceptions=False)
    rows = [json.loads(line) for line in (tmp_path / "t.jsonl").read_text().splitlines()]
    assert [row["model"] for row in rows] == ["et", "mlp", "forest"]
    monkeypatch.setattr(graph_table, "_row", None)  # would fail if it trained anything again
    again = CliRunner().invoke(app, asked, catch_exceptions=False)
    assert first.exit_code == again.exit_code == 0
    table = [line for line in again.stdout.splitlines() if line.startswith("|")]
    assert table == [line for line in first.stdout.splitlines() if line.startswith("|")]
    assert table[0].startswith("| m, random-0 | accuracy |")


def test_options_that_do_not_go_together() -> None:
    for asked in (["classify"], ["classify", "--smiles", "x.csv"], ["classify", "--model", "gin"]):
        assert CliRunner().invoke(app, asked).exit_code == 2
