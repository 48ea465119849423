"""Labels of neighbours as columns: counted one by one, and never a node's own."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import numpy as np
import pytest
import torch

from models.architectures.et import ET, ETConfig
from models.base import DynamicsParams
from models.inputs.graph import UNKNOWN, Graph
from models.inputs.graph_batch import pack_graphs
from models.inputs.label_columns import describe_labels, is_labelled_around
from models.inputs.tree_ensemble import RowKeys, TreeEnsemble, make_stump
from models.tasks.node_scorer import NodeScorer

PRIOR = 0.2
NODES = 30


def make_graph(seed: int = 0, relations: int = 2) -> Graph:
    rng = np.random.default_rng(seed)
    edges = rng.integers(0, NODES - 2, (2, 2 * NODES))  # two nodes are isolated
    x = rng.standard_normal((NODES, 3)).astype(np.float32)
    kind = rng.integers(0, relations, edges.shape[1])
    labels = rng.choice(np.array([UNKNOWN, 0, 1], np.int8), NODES, p=(0.6, 0.3, 0.1))
    return Graph(x, edges, kind, labels=labels)


def describe_one_by_one(graph: Graph, node: int, relation: int) -> list[float]:
    assert graph.labels is not None
    assert graph.edge_type is not None
    pairs = graph.edge_index[:, graph.edge_type == relation].T.tolist()
    near: dict[int, set[int]] = {i: set() for i in range(NODES)}
    for source, target in pairs:
        if source != target:
            near[source].add(target)
            near[target].add(source)
    one = [graph.labels[j] for j in near[node]]
    two = [graph.labels[k] for j in near[node] for k in near[j] if k != node]
    columns = list[float]()
    for labels, smoothing in ((one, 5), (two, 50)):
        known = [label for label in labels if label != UNKNOWN]
        rate = (known.count(1) + smoothing * PRIOR) / (len(known) + smoothing)
        columns += [rate, np.log(1 + len(known))]
    return columns


def test_columns_are_those_that_are_counted_one_by_one() -> None:
    graph = make_graph()
    columns = describe_labels(pack_graphs([graph], num_relations=2), PRIOR)
    for node in range(NODES):
        expected = [v for relation in (0, 1) for v in describe_one_by_one(graph, node, relation)]
        np.testing.assert_allclose(columns[node].numpy(), expected, atol=1e-12)
    is_seen = is_labelled_around(columns)
    assert not is_seen[-2:].any()
    assert is_seen[:-2].any()


@pytest.fixture(scope="module")
def network() -> NodeScorer:
    config = ETConfig(
        features=("a", "b", "c"), relations=("r", "s"), combine="concat", dim=8, heads=2,
        head_dim=4, memories=8, steps=2, step_size=0.2, bins=4, deviation_hops=2,
    )  # fmt: skip
    graph = make_graph()
    keys = list[RowKeys]()

    def fit_trees(table_NC: np.ndarray, is_exact_C: np.ndarray) -> TreeEnsemble:
        keys.append(RowKeys.of_rows(table_NC[:9], is_exact_C))
        stumps = [(0.1, [make_stump(0, 0.0, -1.0, 1.0)])] * 2
        return TreeEnsemble.from_folds(stumps, keys[0], np.arange(9) % 2)

    built, _ = ET.from_data(config, [graph], 0, fit_trees)
    network = cast(NodeScorer, built.eval())
    columns = network.features.count_node_columns(2)
    # One that reads the rate of the first relation, one that reads the count two steps away.
    stumps = [make_stump(columns, PRIOR, -1.0, 2.0), make_stump(columns + 3, 1.0, 0.0, 0.5)]
    label_trees = TreeEnsemble.from_folds([(0.2, stumps)] * 2, keys[0], np.arange(9) % 2)
    network.add_label_trees(label_trees, PRIOR)
    network.part_weights.copy_(torch.tensor([0.6, 0.3]))
    network.label_weights.copy_(torch.tensor([[0.5, 0.2, 0.1, -0.3], [0.4, 0.1, 0.9, 0.7]]))
    return network


def score(network: NodeScorer, *graphs: Graph) -> torch.Tensor:
    return network.infer(network.pack(graphs), [DynamicsParams()] * len(graphs)).logits


def test_a_label_moves_the_scores_of_others_and_not_its_own(network: NodeScorer) -> None:
    graph = make_graph()
    assert graph.labels is not None
    before = score(network, graph)
    moved = np.zeros(NODES, bool)
    for node in range(NODES):
        labels = graph.labels.copy()
        labels[node] = 1 if labels[node] != 1 else UNKNOWN
        after = score(network, replace(graph, labels=labels))
        assert after[node] == before[node]
        moved |= (after != before).numpy()
    assert moved.sum() > NODES / 2


def test_a_graph_without_labels_is_scored_as_if_the_model_read_none(network: NodeScorer) -> None:
    plain, labelled = replace(make_graph(1), labels=None), make_graph(2)
    parts = [score(network, plain), score(network, labelled)]
    together = score(network, plain, labelled)
    torch.testing.assert_close(together, torch.cat(parts), atol=1e-6, rtol=0)
    unknown = replace(plain, labels=np.full(NODES, UNKNOWN, np.int8))
    assert (score(network, unknown) - parts[0]).abs().max() > 0.1
    batch = network.pack([plain])
    scores_N, by_labels = network.read_parts(batch, network.features.compute_table(batch))
    assert by_labels is None
    assert scores_N is not None
    # Of a graph with labels the parts weigh as the buffers say.
    batch = network.pack([labelled])
    scores_N, by_labels = network.read_parts(batch, network.features.compute_table(batch))
    assert scores_N is not None
    assert by_labels is not None
    alone = (score(network, replace(labelled, labels=None)) - 0.3 * scores_N) / 0.6
    of_each = network.label_weights[by_labels.is_seen_N.long()].T
    expected = of_each[0] * alone + of_each[1] * scores_N + of_each[2] * by_labels.score_N
    torch.testing.assert_close(score(network, labelled), expected + of_each[3], atol=1e-5, rtol=0)
    assert len(by_labels.is_seen_N.unique()) == 2


def test_forward_and_a_copy_by_its_weights_say_the_same(network: NodeScorer) -> None:
    graph = make_graph(3)
    batch = network.pack([graph])
    expected = score(network, graph)
    with torch.no_grad():
        torch.testing.assert_close(network(batch), expected, atol=1e-5, rtol=0)
    loaded = type(network)(network.config)
    loaded.load_state_dict(network.state_dict())
    torch.testing.assert_close(score(loaded.eval(), graph), expected, atol=0, rtol=0)


@pytest.mark.parametrize(
    "changed", [{"undirected": False}, {"self_loops": True}, {"trees": None}], ids=str
)
def test_labels_need_trees_and_edges_that_are_seen_from_both_ends(changed: dict) -> None:
    graph = make_graph()
    config = ETConfig(features=("a", "b", "c"), relations=("r", "s"), dim=8, heads=2, head_dim=4)
    config = config.model_copy(update={k: v for k, v in changed.items() if k != "trees"})
    keys = RowKeys.of_rows(np.empty((0, 3)))
    trees = TreeEnsemble.from_folds([(0.1, [make_stump(0, 0.0, -1.0, 1.0)])], keys, np.empty(0))
    fit = None if "trees" in changed else lambda *_: trees
    network, _ = ET.from_data(config, [graph], 0, fit)
    with pytest.raises(ValueError, match="seen from both ends"):
        cast(NodeScorer, network).add_label_trees(trees, PRIOR)
