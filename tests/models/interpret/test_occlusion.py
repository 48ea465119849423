"""Explanations name what was planted, and deleting what they name beats chance."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from models import checkpoint
from models.architectures.et import ET, ETConfig
from models.base import DynamicsParams
from models.dynamics import RUN_ALONE, StopReason
from models.energies import Hopfield
from models.inputs.graph import Graph
from models.inputs.molecules import parse_smiles
from models.interpret import occlusion
from models.interpret.occlusion import Perturbation
from models.interpret.reasons import BatchReasons
from models.sampling import RunInterruptedError
from models.tasks.graph_classifier import GraphClassifier
from models.tasks.node_scorer import NodeScorer
from tests.support.paths import CHECKPOINTS
from tests.support.stop_when import StopWhen

AMES = CHECKPOINTS / "cdat-ames"
PARAMS = DynamicsParams()
NODES, SHARE = 400, 0.4


def _graph(seed: int) -> tuple[Graph, np.ndarray]:
    """A graph in which a node is fraudulent where a large `SHARE` of its neighbours is marked, and
    which is which; its own mark says nothing."""
    rng = np.random.default_rng(seed)
    x = np.c_[rng.random(NODES) < 0.3, rng.standard_normal(NODES)].astype(np.float32)
    graph = Graph(x, rng.integers(0, NODES, (2, 4 * NODES)))
    others = [occlusion.find_neighbours(graph, node) for node in range(NODES)]
    share = np.array([x[near, 0].mean() if len(near) else 0 for near in others])
    return graph, (share > SHARE).astype(np.float32)


@pytest.fixture(scope="module")
def planted() -> tuple[NodeScorer, Graph, int]:
    """A scorer trained in a moment, a graph it has not seen, and a node there that eight nodes of a
    ring and eight others are neighbours of."""
    graph, labels = _graph(0)
    config = ETConfig.model_validate(
        {
            **{"features": ("mark", "noise"), "dim": 16, "heads": 2, "head_dim": 8, "hidden": 16},
            **{"memories": 16, "steps": 2, "step_size": 0.3, "bins": 4, "hops": 1, "dropout": 0.0},
        }
    )
    network, batch = ET.from_data(config, [graph], 1)
    assert isinstance(network, NodeScorer)
    optimiser = torch.optim.Adam(network.parameters(), lr=1e-2)
    encoded = network.features(batch)
    for _ in range(80):
        optimiser.zero_grad()
        logits = network(batch, None, encoded)
        loss = torch.nn.functional.binary_cross_entropy_with_logits(
            logits, torch.from_numpy(labels)
        )
        loss.backward()
        optimiser.step()
    network.eval()
    other, _ = _graph(5)
    x = other.x.copy()
    x[:17] = 0
    x[1:9, 0] = 1
    index = np.asarray(other.edge_index)
    apart = index[:, (index != 0).all(0)]
    star = np.stack([np.zeros(16, np.int64), np.arange(1, 17)])
    return network, replace(other, x=x, edge_index=np.c_[apart, star]), 0


def test_a_planted_ring_is_named(planted) -> None:
    network, graph, node = planted
    value = occlusion.build_score_func(network, PARAMS, node, RUN_ALONE)
    whole = value([Perturbation(graph)])[0]
    others = occlusion.find_neighbours(graph, node)
    assert others.tolist() == list(range(1, 17))

    def without(parts) -> Perturbation:
        return Perturbation(occlusion.remove_neighbour_edges(graph, node, others[parts]))

    [found] = occlusion.attribute(value, whole, np.ones(1), without, 16, range(16))
    assert len(found.supports) == 5
    assert all(1 <= others[part] < 9 for part, _ in found.supports)
    assert found.deletion_effect is not None
    assert found.random_deletion_effect is not None
    assert found.deletion_effect > max(2 * found.random_deletion_effect, 0.1)
    # Most of what opposes are the others, and a gradient sees the same.
    assert all(others[part] >= 9 for part, _ in found.opposes)


def test_slopes_are_those_of_the_score(planted) -> None:
    """Against a small weight more or less on the edges of one neighbour, both ways."""
    network, graph, node = planted
    slope_N = occlusion.compute_edge_gradients(network, graph, PARAMS, node)
    with torch.inference_mode():  # as a server computes
        assert (
            occlusion.compute_edge_gradients(network, graph, PARAMS, node).tolist()
            == slope_N.tolist()
        )
    batch = network.pack([graph])
    [edges] = batch.relations
    encoded = network.features(batch)
    i, j = edges.receivers_E, edges.indices_E.long()
    for other in (1, 12):
        mine = ((i == node) & (j == other)) | ((i == other) & (j == node))
        scores = []
        for step in (0.05, -0.05):
            bias = torch.where(mine, step, 0.0)[:, None].repeat(1, 2)
            turned = type(batch)(batch.x_NF, (edges.weighed(bias_EH=bias),))
            with torch.no_grad():
                scores.append(float(network(turned, [PARAMS], encoded)[node]))
        assert slope_N[other] == pytest.approx((scores[0] - scores[1]) / 0.1, rel=0.1, abs=1e-4)
    assert not slope_N[17:].any()
    few = occlusion.select_neighbours(network, graph, PARAMS, node, np.arange(1, 17))
    assert few == list(range(16))


def test_of_many_neighbours_those_with_the_largest_slopes_are_tried(planted) -> None:
    network, graph, node = planted
    star = np.stack([np.zeros(90, np.int64), np.arange(1, 91)])
    many = replace(graph, edge_index=star)
    others = occlusion.find_neighbours(many, node)
    few = occlusion.select_neighbours(network, many, PARAMS, node, others)
    assert len(few) == len(set(few)) == occlusion.MAX_OCCLUDED
    size = np.abs(occlusion.compute_edge_gradients(network, many, PARAMS, node))[others]
    assert size[few].min() >= np.delete(size, few).max()


def test_causes_of_a_sum() -> None:
    """Where effects add up, those named are the largest, and deletion is their sum."""
    weights = np.array([3.0, -2.0, 1.0, 0.5, 0.0, -0.1, 0.2, 2.0])

    def value(variants):
        return np.stack([[weights.sum() - weights[v.silenced].sum()] * 2 for v in variants])

    def without(parts) -> Perturbation:
        return Perturbation(Graph(np.zeros((1, 1)), np.zeros((2, 0))), list(parts))  # type: ignore[arg-type]

    whole = np.full(2, weights.sum())
    up, down = occlusion.attribute(value, whole, np.array([1, -1]), without, 8, range(8))
    assert [part for part, _ in up.supports] == [0, 7, 2, 3]
    assert [part for part, _ in up.opposes] == [1, 5]
    assert up.deletion_effect == pytest.approx(6.5)
    assert up.random_deletion_effect is not None
    assert up.random_deletion_effect < up.deletion_effect
    assert (down.supports, down.opposes) == (up.opposes, up.supports)
    assert down.deletion_effect == pytest.approx(2.1)
    np.testing.assert_allclose(up.effects, weights)
    [none, _] = occlusion.attribute(value, whole, np.array([1, -1]), without, 8, [])
    assert (none.supports, none.deletion_effect, none.random_deletion_effect) == ([], None, None)


def test_a_silenced_memory_is_missing(planted) -> None:
    network, graph, _ = planted
    [block] = network.blocks_in_order()
    [memories] = [leaf for _, leaf in block.energy.leaves() if isinstance(leaf, Hopfield)]
    silence = occlusion.MemoryOccluder(network)
    assert silence.occlude(()) is network
    silence.occlude(((0, 0),))
    quiet = silence.occlude(((0, 3), (0, 7)))
    [fewer] = [
        leaf for _, leaf in quiet.blocks_in_order()[0].energy.leaves() if isinstance(leaf, Hopfield)
    ]
    stay = [m for m in range(16) if m not in (3, 7)]
    torch.testing.assert_close(fewer.memories_MD, memories.memories_MD[stay])
    assert len(memories.memories_MD) == 16
    # Also where the whole is made ready for good, as in a server.
    block.prepared_backend = block.build_backend()
    batch = network.pack([graph])
    whole, less = (
        n.infer(batch, [PARAMS]).logits
        for n in (
            network,
            occlusion.MemoryOccluder(network).occlude(tuple((0, m) for m in range(8))),
        )
    )
    assert (whole - less).abs().max() > 1e-4
    assert quiet.networks[0].head.mlp[1].weight is network.networks[0].head.mlp[1].weight
    rest = BatchReasons(network, network.infer(network.pack([graph]), [PARAMS]), [PARAMS])
    fired = rest.explain_row(0, {"memories"}, np.array([5, 0])).memories
    best = occlusion.select_memories(fired, 1)
    share = fired[0].share_KM[1]
    assert share[best].min() >= np.delete(share, best).max()
    assert occlusion.list_memories(fired)[best[0]] == (0, best[0])


def test_what_is_taken_away() -> None:
    edges = np.array([[0, 1, 2, 0, 3], [1, 2, 0, 3, 3]])
    graph = Graph(np.arange(8.0).reshape(4, 2), edges, np.arange(5), np.arange(5.0)[:, None])
    assert occlusion.find_neighbours(graph, 0).tolist() == [1, 2, 3]
    fewer = occlusion.remove_neighbour_edges(graph, 0, [1, 3])
    assert fewer.edge_index.tolist() == [[1, 2, 3], [2, 0, 3]]
    assert fewer.edge_type is not None
    assert fewer.edge_type.tolist() == [1, 2, 4]
    cut = occlusion.remove_nodes(graph, [1])
    assert cut.x.tolist() == [[0, 1], [4, 5], [6, 7]]
    assert cut.edge_index.tolist() == [[1, 0, 2], [0, 2, 2]]
    assert cut.edge_attr is not None
    assert cut.edge_attr[:, 0].tolist() == [2, 3, 4]
    plain = occlusion.replace_features(graph, 2, [1], np.array([9.0, 8.0]))
    assert plain.x[2].tolist() == [4, 8]
    assert graph.x[2].tolist() == [4, 5]


def test_it_can_be_interrupted(planted) -> None:
    network, graph, node = planted
    value = occlusion.build_score_func(
        network, PARAMS, node, StopWhen(lambda: StopReason.CANCELLED)
    )
    with pytest.raises(RunInterruptedError):
        value([Perturbation(graph)])


NITRO = (
    "O=[N+]([O-])c1ccc(C)cc1",
    "O=[N+]([O-])c1ccc(CC(C)C)cc1",
    "Cc1ccc2ccccc2c1[N+](=O)[O-]",
    "CCCCCCOc1ccc([N+](=O)[O-])cc1",
    "O=[N+]([O-])c1cccc2ccccc12",
)


def _of_atoms(network: GraphClassifier, graph: Graph, label: int) -> occlusion.Attribution:
    value = occlusion.build_margin_func(network, PARAMS, [label], RUN_ALONE)
    whole = value([Perturbation(graph)])[0]
    nodes = graph.num_nodes

    def without(parts) -> Perturbation:
        return Perturbation(occlusion.remove_nodes(graph, parts))

    [found] = occlusion.attribute(value, whole, np.ones(1), without, nodes, range(nodes))
    return found


def test_a_nitro_group_is_named() -> None:
    """Aromatic nitro compounds are mutagens by their nitro group: it is what the model names, and
    deletion moves it further than as many atoms at random."""
    network = checkpoint.load_checkpoint(AMES).network
    assert isinstance(network, GraphClassifier)
    lost = []
    for smiles in NITRO:
        graph = parse_smiles(smiles).graph
        logits_C = network.infer(network.pack([graph]), [PARAMS]).logits[0]
        assert logits_C.argmax() == 1
        found = _of_atoms(network, graph, 1)
        charged = graph.x[:, 2] != 2  # N+ and O- of the group
        group = set(np.flatnonzero(charged).tolist())
        assert group & {part for part, _ in found.supports[:2]}, smiles
        assert found.deletion_effect is not None
        assert found.random_deletion_effect is not None
        lost.append((found.deletion_effect, found.random_deletion_effect))
    moved, random = np.mean(lost, 0)
    assert moved > 1.5 * random
