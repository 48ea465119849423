"""What the features of edges say of nodes and of what sees what, against loops over them."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import numpy as np
import pytest
import torch

from models.architectures.cdat import CDAT
from models.architectures.et import ET
from models.base import DynamicsParams
from models.inputs import edge_features
from models.inputs.edge_features import EdgeBias, EdgeFeatures
from models.inputs.features import describe_edges
from models.inputs.graph import Graph, OutsideNeighbors
from models.inputs.graph_batch import GraphBatch, pack_graphs
from models.inputs.neighbor_means import NeighborRule, sum_outside_edges
from models.tasks.node_config import NodeConfig
from models.tasks.node_scorer import NodeScorer
from training.tasks.anomaly.neighbor_sampler import NeighborSampler

NODES, EDGES, RELATIONS = 12, 60, 2


def make_graph(seed: int = 0) -> Graph:
    """With loops, edges that are parallel or go both ways, and a node without any."""
    rng = np.random.default_rng(seed)
    ends = rng.integers(0, NODES - 1, (2, EDGES))
    attr = rng.lognormal(3, 1, (EDGES, 2)).astype(np.float32)
    x = rng.standard_normal((NODES, 5)).astype(np.float32)
    return Graph(x, ends, rng.integers(0, RELATIONS, EDGES), attr)


def pack(graph: Graph, *, undirected: bool, self_loops: bool) -> GraphBatch:
    return pack_graphs(
        [graph],
        num_relations=RELATIONS,
        undirected=undirected,
        self_loops=self_loops,
        edge_features=2,
    )


@pytest.mark.parametrize("undirected", [True, False])
@pytest.mark.parametrize("self_loops", [True, False])
def test_a_bias_is_the_mean_over_the_edges_of_each_direction(
    undirected: bool, self_loops: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(edge_features, "_CHUNK", 7)
    graph = make_graph()
    batch = pack(graph, undirected=undirected, self_loops=self_loops)
    features = EdgeFeatures(2, 4).fit(batch)
    bias = EdgeBias(features.encoding_width, 3)
    torch.nn.init.normal_(bias.constant_2H)
    assert graph.edge_attr is not None
    assert graph.edge_type is not None
    encoded_eP = features.encode(torch.from_numpy(graph.edge_attr.astype(np.float64)))
    with torch.no_grad():
        for relation, layout in enumerate(batch.relations):
            values_EH = bias(features, batch, relation)
            assert values_EH.shape == (layout.num_edges, 3)
            receivers, seen = layout.receivers_E.tolist(), layout.indices_E.tolist()
            for value_H, i, j in zip(values_EH, receivers, seen, strict=True):
                expected_H, edges = torch.zeros(3), 0
                for is_backward, ends in ((0, (j, i)), (1, (i, j))):  # source and target
                    if is_backward and not undirected:
                        continue
                    of = (graph.edge_type == relation) & (ends == graph.edge_index.T).all(1)
                    edges += of.sum()
                    if of.any():
                        each_eH = encoded_eP[of] @ bias.weight_2HP[is_backward].T
                        expected_H += (each_eH + bias.constant_2H[is_backward]).mean(0)
                assert edges or (self_loops and i == j)
                torch.testing.assert_close(value_H, expected_H, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("undirected", [True, False])
def test_a_node_has_mean_and_deviation_of_the_edges_into_it_and_out_of_it(undirected: bool) -> None:
    graph = make_graph()
    described = describe_edges(pack(graph, undirected=undirected, self_loops=False)).numpy()
    assert described.shape == (NODES, RELATIONS * 2 * 2 * 2)
    parts = described.reshape(NODES, RELATIONS, 2, 2, 2)  # direction, mean or deviation, feature
    assert graph.edge_attr is not None
    source, target = graph.edge_index
    for node in range(NODES):
        for relation in range(RELATIONS):
            of = (graph.edge_type == relation) & (source != target)
            for direction, end in enumerate((target, source)):
                chosen = graph.edge_attr[of & (end == node)].astype(np.float64)
                if direction == 1 and not undirected:
                    chosen = chosen[:0]
                mean = chosen.mean(0) if len(chosen) else np.zeros(2)
                deviation = chosen.std(0) if len(chosen) else np.zeros(2)
                np.testing.assert_allclose(
                    parts[node, relation, direction], [mean, deviation], atol=1e-5
                )


@pytest.mark.parametrize("undirected", [True, False])
def test_a_part_is_described_as_in_the_whole_beside_a_graph_that_is_one(undirected: bool) -> None:
    graph, other = make_graph(), make_graph(1)
    assert graph.edge_attr is not None
    assert graph.edge_type is not None
    attr = graph.edge_attr + np.float32(1e6)  # of which squares would lose the deviation
    graph = replace(graph, edge_attr=attr)
    part = 5  # the first nodes
    source, target = graph.edge_index
    inside = (source < part) & (target < part)
    into, out_of = (target < part) & (source >= part), (source < part) & (target >= part)
    rule = NeighborRule(0, RELATIONS, undirected, self_loops=False)
    left_out = np.r_[np.flatnonzero(into), np.flatnonzero(out_of)]
    edges = sum_outside_edges(
        rule,
        part,
        np.r_[target[into], source[out_of]],
        graph.edge_type[left_out],
        np.repeat([False, True], [into.sum(), out_of.sum()]),
        attr[left_out],
    )
    none = np.zeros((RELATIONS, part))
    outside = OutsideNeighbors(
        none, np.zeros((*none.shape, 0, 6)), np.zeros((*none.shape, 6)), edges
    )
    near = Graph(
        graph.x[:part], graph.edge_index[:, inside], graph.edge_type[inside], attr[inside], outside
    )
    loops = {"undirected": undirected, "self_loops": False}
    both = pack_graphs([other, near], num_relations=RELATIONS, edge_features=2, **loops)
    described = describe_edges(both).numpy()
    expected = describe_edges(pack(graph, **loops)).numpy()[:part]
    np.testing.assert_allclose(described[NODES:], expected, rtol=1e-12, atol=1e-6)
    np.testing.assert_array_equal(described[:NODES], describe_edges(pack(other, **loops)).numpy())


@pytest.mark.parametrize("kind", [CDAT, ET])
def test_features_of_edges_and_their_direction_change_scores(kind: type[NodeScorer]) -> None:
    network, graphs = kind.build_example(0)
    network.eval()
    graph = graphs[2]
    assert graph.edge_attr is not None

    def score(attr: np.ndarray, ends: np.ndarray) -> np.ndarray:
        changed = Graph(graph.x, ends, graph.edge_type, attr)
        batch = cast(NodeScorer, network).pack([changed])
        return cast(NodeScorer, network).infer(batch, [DynamicsParams()]).logits.numpy()

    as_given = score(graph.edge_attr, graph.edge_index)
    assert np.abs(score(graph.edge_attr[::-1].copy(), graph.edge_index) - as_given).max() > 1e-3
    assert np.abs(score(graph.edge_attr, graph.edge_index[::-1].copy()) - as_given).max() > 1e-4
    order = np.random.default_rng(0).permutation(len(graph.edge_attr))
    shuffled = Graph(
        graph.x,
        graph.edge_index[:, order],
        None if graph.edge_type is None else graph.edge_type[order],
        graph.edge_attr[order],
    )
    batch = cast(NodeScorer, network).pack([shuffled])
    again = cast(NodeScorer, network).infer(batch, [DynamicsParams()]).logits.numpy()
    np.testing.assert_allclose(again, as_given, atol=1e-5)


def test_a_sample_of_all_neighbours_has_the_scores_of_the_whole() -> None:
    example, _ = ET.build_example(0)
    config = cast(NodeConfig, example.config).model_copy(update={"undirected": True})
    network, batch = ET.from_data(config, [make_graph()], 0)
    network.eval()
    encoded = cast(NodeScorer, network).features(batch)
    whole = cast(NodeScorer, network)(batch, None, encoded)
    # Three steps in each of two blocks reach no further than the graph is wide.
    part, nodes = NeighborSampler(batch, (NODES,) * 8).sample(np.arange(4), seed=0)
    assert part.edge_attr_eP is not None
    sampled = cast(NodeScorer, network)(part, None, encoded[nodes])
    torch.testing.assert_close(sampled[:4], whole[:4], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("undirected", [True, False])
def test_an_entry_of_a_sample_has_the_bias_that_it_has_in_the_whole(undirected: bool) -> None:
    batch = pack(make_graph(), undirected=undirected, self_loops=False)
    features = EdgeFeatures(2, 4).fit(batch)
    bias = EdgeBias(features.encoding_width, 3)
    part, nodes = NeighborSampler(batch, (2, 1)).sample(np.array([3, 7]), seed=0)
    assert part.edge_attr_eP is not None
    assert len(part.edge_attr_eP) < EDGES / 2
    with torch.no_grad():
        for relation, (layout, sampled) in enumerate(
            zip(batch.relations, part.relations, strict=True)
        ):
            pairs = zip(layout.receivers_E.tolist(), layout.indices_E.tolist(), strict=True)
            whole = dict(zip(pairs, bias(features, batch, relation), strict=True))
            ends = nodes[sampled.receivers_E.numpy()], nodes[sampled.indices_E.numpy()]
            for i, j, value_H in zip(*ends, bias(features, part, relation), strict=True):
                # A sample is undirected: what the whole does not have has no edge.
                expected_H = whole.get((i, j), torch.zeros(3))
                torch.testing.assert_close(value_H, expected_H, atol=1e-6, rtol=1e-5)


def test_what_does_not_fit_the_model_is_refused() -> None:
    network, graphs = ET.build_example(0)
    graph = graphs[0]
    for attr, words in ((None, "it has none"), (np.zeros((3, 2)), r"it has shape \(3, 2\)")):
        with pytest.raises(ValueError, match=words):
            network.pack([Graph(graph.x, graph.edge_index, graph.edge_type, attr)])
    flat = Graph(graph.x, graph.edge_index, graph.edge_type, np.ones((27, 2), np.float32))
    with pytest.raises(ValueError, match="Every feature of the edges is constant"):
        ET.from_data(cast(NodeConfig, network.config), [flat], 0)
