"""What of a stored graph a score reads, and the energies that it is compared with."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from models.architectures.et import ET, ETConfig
from models.base import DynamicsParams
from models.inputs.graph import Graph
from models.manifest import Calibration
from models.tasks.node_scorer import NodeScorer
from service.storage.graphs import DynamicGraph, GraphSnapshot, Schema
from training.tasks.anomaly.neighborhoods import (
    InducedSampler,
    choose_neighborhood,
    compute_request_energies,
    fit_quantiles_by_degree,
)

NODES, RELATIONS = 300, ("a", "b")


@pytest.fixture(scope="module", params=[0, 2], ids=["plain", "edge_attr"])
def graph(request) -> Graph:
    rng = np.random.default_rng(0)
    edges = (NODES * rng.random((2, 900)) ** 1.5).astype(np.int64)
    x = rng.standard_normal((NODES, 3)).astype(np.float32)
    kind = rng.integers(0, 2, 900)
    _, first = np.unique(np.r_[edges, kind[None]], axis=1, return_index=True)  # a store has no more
    attr = rng.lognormal(3, 1, (len(first), request.param)).astype(np.float32)
    return Graph(x, edges[:, first], kind[first], attr if request.param else None)


@pytest.fixture(scope="module")
def network(graph: Graph) -> NodeScorer:
    config = ETConfig(
        features=("x", "y", "z"), relations=RELATIONS, combine="concat", dim=8, heads=2, head_dim=4,
        memories=8, blocks=1, steps=2, step_size=0.5, hops=3, bins=4,
        edge_features=() if graph.edge_attr is None else ("amount", "hour"),
    )  # fmt: skip
    built, _ = ET.from_data(config, [graph], 0)
    assert isinstance(built, NodeScorer)
    return built.eval()


@pytest.mark.parametrize("most", [1000, 2])
def test_training_takes_what_the_server_takes(graph, network, most) -> None:
    config = network.config
    schema = Schema(config.features, RELATIONS, edge_features=config.edge_features)
    stored = DynamicGraph(schema, GraphSnapshot(graph, list(range(NODES)), 0))
    sampler = InducedSampler(network, graph, network.pack([graph]))
    for node in (0, 17, 299):
        ours, rows = sampler.sample(np.array([node]), 2, most)
        theirs = stored.sample_neighborhood(
            [node], 2, most, 0, 1 << 20, 1 << 20, network.neighbor_rule
        )
        if most == 2:  # chosen by another chance: a node, two others, two of each
            assert 1 < ours.num_nodes <= 7
            assert 1 < theirs.graph.num_nodes <= 7
            continue
        assert ours.num_nodes == theirs.graph.num_nodes
        one, other = (network.pack([part]) for part in (ours, theirs.graph))
        right = network.infer(one, [DynamicsParams()]).logits[0].item()
        logits = network.infer(other, [DynamicsParams()]).logits
        assert logits[0].item() == pytest.approx(right, abs=1e-5)
        whole_NC = network.features.compute_table(network.pack([graph]))
        known = network.infer(one, [DynamicsParams()], table_NC=whole_NC[torch.from_numpy(rows)])
        assert known.logits[0].item() == pytest.approx(right, abs=1e-5)


@pytest.mark.parametrize("graph", [0], indirect=True, ids=["plain"])
def test_the_least_reach_that_gives_the_labels_of_the_whole_graph(graph, network) -> None:
    logits = network.infer(network.pack([graph]), [DynamicsParams()]).logits.numpy()
    calibration = Calibration(slope=1.0, intercept=-float(np.median(logits)))
    given = network, graph, np.arange(100), 0.5, calibration
    chosen = choose_neighborhood(*given, reaches=((0, 1), (8, 1000), (9, 1000)))
    assert (chosen.hops, chosen.max_neighbors, chosen.nodes) == (8, 1000, NODES)
    assert chosen.labels_equal == 1
    worst = choose_neighborhood(*given, reaches=((0, 1),))
    assert worst.labels_equal < 0.996
    reference = compute_request_energies(network, graph, np.arange(NODES), chosen)
    assert len(reference.by_degree) > 2
    assert len(chosen.energy.by_degree) > 2


def test_quantiles_follow_the_degree() -> None:
    rng = np.random.default_rng(0)
    degree = rng.choice([0.0, 0.7, 1.1, *rng.uniform(1, 4, 20)], 3000)
    energy = -3 * degree + 0.2 * degree**2 + (0.1 + 0.2 * degree) * rng.standard_normal(3000)
    reference = fit_quantiles_by_degree(degree, energy)
    flags = [
        reference.out_of_distribution(reference.percentile(*row))
        for row in zip(energy, degree, strict=True)
    ]
    assert 0.003 < np.mean(flags) < 0.015
    # As low as energies of four times the degree are.
    assert reference.percentile(-7.0, 0.7) == 0
    assert not reference.out_of_distribution(reference.percentile(-7.0))


def test_graphs_of_one_degree_have_quantiles_alone() -> None:
    reference = fit_quantiles_by_degree(np.full(10, 0.7), np.arange(10.0))
    assert reference.by_degree == ()
    assert reference.percentile(4.5, 0.7) == pytest.approx(50)
