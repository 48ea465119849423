"""Whole graphs: what is learned, resumed, chosen and reported, and what test labels never touch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from lightning_fabric import Fabric

from models.base import DynamicsParams
from models.inputs.graph import Column, Graph
from models.inputs.tokens import GraphTokenizer, collate_tokens
from models.tasks.graph_classifier import ClassificationTask, GraphClassifier
from tests.support.killed_run import killed_after
from training.datasets import GraphDataset, Split, as_published_split, k_folds
from training.tasks.classify.baselines import BASELINE_NETWORKS, GIN, SummedMLP
from training.tasks.classify.configs import graph_train_config
from training.tasks.classify.task import GraphTrainConfig, GraphTrainingTask
from training.tasks.classify.train import train_and_select, train_graph_classifier

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
        (
            ClassificationTask(name="ring", labels=("no", "yes")),
            ClassificationTask(name="noise", labels=("a", "b", "c")),
        ),
        (Column("kind", ("x", "y", "z")), Column("number")),
        (Column("bond", ("s", "d")),),
    )


@pytest.fixture(scope="module")
def split(dataset: GraphDataset) -> Split:
    return k_folds(dataset, 4)[0]


@pytest.fixture(scope="module")
def fabric() -> Fabric:
    return Fabric(accelerator="cpu", devices=1)


def _recipe(model: str, **changed) -> GraphTrainConfig:
    chosen = graph_train_config(model, "triangles")
    config = chosen.config | (SMALL if model in ("cdat", "et") else {"dim": 16})
    values = {"epochs": 5, "learning_rate": 3e-3, "batch_graphs": 16} | changed
    return replace(chosen, config=config, **values)


@pytest.mark.parametrize("model", ["cdat", "et", "gin"])
def test_it_learns_structure(
    model: str, dataset: GraphDataset, split: Split, fabric: Fabric
) -> None:
    dataset = replace(dataset, labels=dataset.labels[:, :1], tasks=dataset.tasks[:1])
    recipe = _recipe(model, epochs=25, learning_rate=1e-2)
    result = train_graph_classifier(dataset, split, recipe, seed=0, fabric=fabric)
    assert result.evaluation.parts["test"][0].accuracy > 0.8
    if isinstance(result.network, GraphClassifier):
        batch = result.network.pack(dataset.graphs)
        served = result.network.infer(batch, [DynamicsParams()] * len(dataset.graphs))
        np.testing.assert_allclose(served.logits.numpy(), result.logits, atol=1e-4)


@pytest.mark.parametrize("model", ["cdat", "gin", "mlp"])
def test_test_labels_have_no_part(
    model: str, dataset: GraphDataset, split: Split, fabric: Fabric
) -> None:
    """Other labels on every test graph change no weight, epoch, choice or temperature."""
    labels = dataset.labels.copy()
    labels[split.test, 0] = 1 - labels[split.test, 0]
    labels[split.test, 1] = 2 - labels[split.test, 1].clip(min=0)
    recipes = [_recipe(model, epochs=3), _recipe(model, epochs=3, learning_rate=1e-2)]
    first = train_and_select(dataset, split, recipes, seed=0, fabric=fabric)
    second = train_and_select(
        replace(dataset, labels=labels), split, recipes, seed=0, fabric=fabric
    )
    np.testing.assert_array_equal(first.logits, second.logits)
    assert first.train_config == second.train_config
    assert first.evaluation.temperatures == second.evaluation.temperatures
    assert first.evaluation.parts["val"] == second.evaluation.parts["val"]


def test_a_killed_run_goes_on_to_the_same_result(
    dataset: GraphDataset, split: Split, fabric: Fabric, tmp_path: Path
) -> None:
    recipe = _recipe("et", epochs=6)
    whole = train_graph_classifier(dataset, split, recipe, seed=3, fabric=fabric)
    with killed_after(3):
        train_graph_classifier(dataset, split, recipe, seed=3, fabric=fabric, run_folder=tmp_path)
    resumed = train_graph_classifier(
        dataset, split, recipe, seed=3, fabric=fabric, run_folder=tmp_path
    )
    np.testing.assert_array_equal(whole.logits, resumed.logits)
    with pytest.raises(ValueError, match="of another recipe"):
        train_graph_classifier(
            dataset, split, replace(recipe, epochs=7), seed=3, fabric=fabric, run_folder=tmp_path
        )


def test_missing_labels_and_weights_in_the_loss(dataset: GraphDataset, split: Split) -> None:
    tokens = dataset.tokens(GraphTokenizer())
    logits = torch.randn(6, 5)
    target = torch.tensor([[0, -1], [1, -1], [0, 2], [0, 0], [1, -1], [0, 1]])
    batch = collate_tokens(tokens[:6])
    for balanced in (False, True):
        recipe = GraphTrainConfig("et", balanced=balanced, label_smoothing=0.1)
        problem = GraphTrainingTask(
            tokens, dataset.labels, dataset.tasks, split, recipe, torch.device("cpu")
        )
        expected = []
        for t, columns in enumerate((slice(0, 2), slice(2, 5))):
            known = target[:, t] >= 0
            expected.append(
                torch.nn.functional.cross_entropy(
                    logits[known, columns] + problem.weights[t].log(),
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
    result = train_graph_classifier(dataset, split, _recipe(model, epochs=2), seed=0, fabric=half)
    assert np.isfinite(result.logits).all()


@pytest.mark.parametrize("model", ["cdat", "et", "gin", "mlp"])
def test_training_moves_every_parameter(
    model: str, dataset: GraphDataset, split: Split, fabric: Fabric
) -> None:
    start = train_graph_classifier(dataset, split, _recipe(model, epochs=0), seed=0, fabric=fabric)
    end = train_graph_classifier(dataset, split, _recipe(model, epochs=2), seed=0, fabric=fabric)
    after = dict(end.network.named_parameters())
    for name, before in start.network.named_parameters():
        if before.requires_grad and before.numel():
            assert not torch.equal(before, after[name]), name


def test_as_published_is_measured_on_what_was_trained_on(dataset: GraphDataset) -> None:
    split = as_published_split(dataset)
    assert np.array_equal(split.train, split.test)
    assert len(split.test) == len(dataset.graphs)


def test_gin_is_invariant_and_the_mlp_sees_no_edges(dataset: GraphDataset) -> None:
    graph = dataset.graphs[1]
    order = np.random.default_rng(0).permutation(graph.num_nodes)
    shuffled = replace(graph, x=graph.x[order], edge_index=np.argsort(order)[graph.edge_index])
    bare = replace(graph, edge_index=graph.edge_index[:, :0], edge_attr=np.zeros((0, 1)))
    make = GraphTokenizer(positions="none")
    one, other, none = (collate_tokens([make(g)]) for g in (graph, shuffled, bare))
    for kind in BASELINE_NETWORKS.values():
        network = kind(dataset, dim=8, layers=2, dropout=0.0).eval()
        torch.testing.assert_close(network(one), network(other), rtol=1e-4, atol=1e-5)
        assert torch.equal(network(one), network(none)) == (kind is SummedMLP)
    assert BASELINE_NETWORKS["gin"] is GIN


def test_a_part_of_one_label_is_refused(dataset: GraphDataset, fabric: Fabric) -> None:
    rings = np.flatnonzero(dataset.labels[:, 0] == 1)
    trees = np.flatnonzero(dataset.labels[:, 0] == 0)
    split = Split("scaffold", np.r_[rings[:20], trees], rings[20:40], rings[40:])
    with pytest.raises(ValueError, match=r"to val have less than two labels of ring.*balanced"):
        train_graph_classifier(dataset, split, _recipe("et"), seed=0, fabric=fabric)


def test_balanced_probabilities_are_put_back(fabric: Fabric) -> None:
    """Labels that no graph tells: what is learned is how frequent they are."""
    rng = np.random.default_rng(0)
    graphs = tuple(Graph(np.zeros((2, 1), np.float32), np.array([[0], [1]])) for _ in range(400))
    labels = (rng.random(400) < 0.15).astype(np.int64)[:, None]
    task = (ClassificationTask(name="t", labels=("often", "rare")),)
    constant = GraphDataset("constant", graphs, labels, task, (Column("node", ("node",)),))
    recipe = _recipe("et", epochs=20, balanced=True, label_smoothing=0.0, weight_decay=0.0)
    split = k_folds(constant, 4)[0]
    result = train_graph_classifier(constant, split, recipe, seed=0, fabric=fabric)
    p = 1 / (1 + np.exp(result.logits[:, 0] - result.logits[:, 1]))
    assert p.mean() == pytest.approx(labels.mean(), abs=0.05)
    chosen_by = result.evaluation.parts["val"][0]
    assert result.result.best_val == pytest.approx(
        -chosen_by.cross_entropy
    )  # what was chosen is what ships
