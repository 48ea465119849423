"""Whole graphs: numbering, company, odd graphs, and the papers' variants."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from models.base import DynamicsParams
from models.inputs.graph import Column, Graph
from models.inputs.positions import compute_laplacian_pe, compute_random_walk_pe
from models.inputs.tokens import AttentionKind, GraphTokenizer, collate_tokens
from models.inputs.wl_colors import WLColorEncoder, find_frequent_colors
from models.layouts import Dense
from models.registry import find_architectures
from models.tasks.graph_classifier import GraphClassifier

NAMES = ("cdat-graph", "et-graph")


def _network(name: str, **changed: Any) -> tuple[GraphClassifier, list[Graph]]:
    kind = find_architectures()[name]
    network, graphs = kind.build_example(0)
    config = network.config.model_dump() | changed
    torch.manual_seed(0)
    again = kind(kind.config_type.model_validate(config))  # type: ignore[call-arg]
    assert isinstance(again, GraphClassifier)
    return again.eval(), graphs


def _random_graph(rng: np.random.Generator, nodes: int, edges: int) -> Graph:
    x = np.c_[rng.integers(0, 3, nodes), rng.standard_normal(nodes)].astype(np.float32)
    pairs = np.stack(np.triu_indices(nodes, 1))
    index = pairs[:, rng.permutation(pairs.shape[1])[:edges]]
    count = index.shape[1]
    attr = np.c_[rng.integers(0, 2, count), rng.standard_normal(count)].astype(np.float32)
    return Graph(x, index, None, attr)


def _shuffled(graph: Graph, seed: int = 1) -> Graph:
    order = np.random.default_rng(seed).permutation(graph.num_nodes)
    index = np.argsort(order)[graph.edge_index]
    turned = np.random.default_rng(seed).permutation(index.shape[1])
    assert graph.edge_attr is not None
    attr = graph.edge_attr[turned]
    return Graph(graph.x[order], index[::-1][:, turned], None, attr)


@pytest.mark.parametrize("weighting", ["bias", "multiply", "none"])
@pytest.mark.parametrize("attend", ["edges", "all"])
@pytest.mark.parametrize("name", NAMES)
def test_numbering_changes_nothing(name: str, attend: str, weighting: str) -> None:
    network, graphs = _network(name, attend=attend, weighting=weighting)
    network.double()
    graphs = [*graphs, _random_graph(np.random.default_rng(3), 12, 20)]
    for graph in graphs:
        pair = [
            network.infer(network.pack([g]), [DynamicsParams()]) for g in (graph, _shuffled(graph))
        ]
        assert (pair[0].logits - pair[1].logits).abs().max() < 1e-9


@pytest.mark.parametrize("variant", [{"positions": "laplacian"}, {"pairs": "convolution"}])
def test_the_papers_variants_run_and_depend_on_the_numbering(variant: dict[str, str]) -> None:
    network, _ = _network("et-graph", **variant)
    graphs = [_random_graph(np.random.default_rng(seed), 12, 14) for seed in range(8)]
    apart = []
    for graph in graphs:
        one, other = (network(network.pack([g])).detach() for g in (graph, _shuffled(graph)))
        assert one.isfinite().all()
        apart.append(float((one - other).abs().max()))
    assert max(apart) > 1e-3  # of some graphs eigenvectors come out alike, as their signs fall
    graph = graphs[0]
    network.train()(network.pack([graph, graph])).sum().backward()


@pytest.mark.parametrize("name", NAMES)
def test_alone_or_among_others(name: str) -> None:
    rng = np.random.default_rng(0)
    graphs = [_random_graph(rng, int(n), int(1.2 * n)) for n in rng.integers(1, 30, 64)]
    network, _ = _network(name)
    together = network.infer(network.pack(graphs), [DynamicsParams(tolerance=1e-2)] * 64)
    for row in (0, 20, 63):
        alone = network.infer(network.pack([graphs[row]]), [DynamicsParams(tolerance=1e-2)])
        torch.testing.assert_close(together.logits[row], alone.logits[0], rtol=1e-5, atol=1e-5)
        for many, one in zip(together.solutions, alone.solutions, strict=True):
            assert many.stop_reasons[row] == one.stop_reasons[0]
            assert many.steps_R[row] == one.steps_R[0]


@pytest.mark.parametrize("name", NAMES)
def test_odd_graphs(name: str) -> None:
    """No edges, one node, an isolated node, edges to itself: finite, and gradients too."""
    network, _ = _network(name)
    x = np.zeros((3, 2), np.float32)
    none, attr = np.zeros((2, 0), np.int64), np.zeros((0, 2), np.float32)
    one_edge = Graph(x, np.array([[0, 1], [1, 1]]), None, np.zeros((2, 2), np.float32))
    graphs = [Graph(x, none, None, attr), Graph(x[:1], none, None, attr), one_edge]
    batch = network.pack(graphs)
    assert network.infer(batch, [DynamicsParams()] * 3).logits.isfinite().all()
    network.train()(batch).square().sum().backward()
    assert all(p.grad.isfinite().all() for p in network.parameters() if p.grad is not None)


@pytest.mark.parametrize("weighting", ["bias", "multiply"])
@pytest.mark.parametrize("name", NAMES)
def test_the_weighed_layout_is_the_dense_one(name: str, weighting: str) -> None:
    """Energy and force of each block, on the edge list and on a padded mask."""
    network, graphs = _network(name, weighting=weighting)
    network.double()
    batch = network.pack(graphs)
    sizes = torch.bincount(batch.row_of_N)
    length, at = int(sizes.max()), torch.cat([torch.arange(int(n)) for n in sizes])
    place = batch.row_of_N * length + at
    generator = torch.Generator().manual_seed(0)
    g = torch.randn(len(at), network.config.dim, generator=generator, dtype=torch.float64)
    padded = torch.zeros(batch.rows * length, g.shape[1], dtype=torch.float64)
    padded[place] = g
    i, j = batch.layout.receivers_E, batch.layout.indices_E.long()
    where = batch.row_of_N[i], at[i], at[j]
    mask = torch.zeros(batch.rows, length, length, dtype=torch.bool)
    mask[where] = True
    for block, layout in zip(network.blocks_in_order(), network.build_layouts(batch), strict=True):
        terms = {}
        for key in ("weight", "bias"):
            if (value := getattr(layout, f"{key}_EH")) is not None:
                full = torch.zeros(batch.rows, length, length, value.shape[1], dtype=value.dtype)
                full[where] = value
                terms[f"{key}_RHLL"] = full.permute(0, 3, 1, 2)
        beta = block.resolve_params([DynamicsParams()] * batch.rows).beta_RH
        sparse = block.energy(g, layout, beta)
        dense = block.energy(padded, Dense(mask).weighed(**terms), beta)
        difference = dense.force_ND[place] - sparse.force_ND
        assert difference.abs().max() < 1e-10
        assert (dense.parts["attention"][place] - sparse.parts["attention"]).abs().max() < 1e-10


def test_tokens_are_cls_then_nodes() -> None:
    graph = Graph(
        np.zeros((3, 1), np.float32),
        np.array([[2, 0], [0, 2]]),
        None,
        np.array([[5.0], [7.0]], np.float32),
    )
    tokens = GraphTokenizer(positions="none")(graph)
    seen = [
        tokens.indices[a:b].tolist() for a, b in zip(tokens.indptr, tokens.indptr[1:], strict=False)
    ]
    assert seen == [[1, 2, 3], [0, 3], [0], [0, 1]]
    assert tokens.kind.tolist() == [1, 1, 1, 2, 0, 2, 2, 0]
    assert tokens.edge_attr.ravel().tolist() == [5.0, 7.0]  # each direction has its own
    np.testing.assert_allclose(np.expm1(tokens.positions[:, 0]), [3, 1, 0, 1])
    batch = collate_tokens([tokens, tokens])
    assert batch.edges_2e.tolist() == [[2, 0, 5, 3], [0, 2, 3, 5]]
    every = GraphTokenizer(attend="all")(graph)
    assert np.diff(every.indptr).tolist() == [3, 3, 3, 3]
    assert (every.kind == AttentionKind.NON_EDGE).sum() == 4


def test_positions() -> None:
    """Powers of the transition matrix, and eigenvectors of L, written out."""
    rng = np.random.default_rng(0)
    dense = np.triu(rng.random((9, 9)) < 0.3, 1)
    dense = (dense | dense.T).astype(float)
    dense[4] = dense[:, 4] = 0
    receivers, sources = dense.nonzero()
    indptr = np.r_[0, np.cumsum(np.bincount(receivers, minlength=9))]
    step = dense / np.maximum(dense.sum(1, keepdims=True), 1)
    expected = [np.diag(np.linalg.matrix_power(step, k)) for k in range(1, 8)]
    np.testing.assert_allclose(
        compute_random_walk_pe(indptr, sources, 7), np.stack(expected, 1), atol=1e-12
    )
    scale = np.where(dense.sum(1) > 0, np.maximum(dense.sum(1), 1) ** -0.5, 0)
    matrix = np.eye(9) - scale[:, None] * dense * scale
    vectors = compute_laplacian_pe(indptr, sources, 12)
    assert vectors.shape == (9, 12)
    assert not vectors[:, 9:].any()
    values = np.diag(vectors[:, :9].T @ matrix @ vectors[:, :9])
    np.testing.assert_allclose(values, np.linalg.eigvalsh(matrix), atol=1e-10)


def test_colours_name_surroundings() -> None:
    """What two nodes see decides, as far as the round reaches, and how often they see it."""
    make = GraphTokenizer(
        positions="none", color_rounds=3, categorical_columns=(0,), categorical_edge_columns=(0,)
    )

    def colours(labels: str, edges: list[tuple[int, int]], bonds: str) -> np.ndarray:
        x = np.array([[ord(label), i] for i, label in enumerate(labels)], np.float32)
        attr = np.array([[ord(bond)] for bond in bonds], np.float32).reshape(-1, 1)
        return make(Graph(x, np.array(edges).reshape(-1, 2).T, None, attr)).colors

    path = colours("ABAB", [(0, 1), (1, 2), (2, 3)], "--=")
    assert path[0, 0] == path[2, 0] != path[1, 0]  # by their own label; numbers do not count
    assert path[0, 1] != path[2, 1]  # one neighbour, and two
    turned = colours("BABA", [(2, 3), (0, 1), (1, 2)], "-=-")  # the same from its other end
    np.testing.assert_array_equal(path, turned[::-1])
    other = colours("ABAB", [(0, 1), (1, 2), (2, 3)], "---")
    assert (path[:, 0] == other[:, 0]).all()
    assert (path[:, 1] == other[:, 1]).tolist() == [True, True, False, False]
    assert (path[:, 2] == other[:, 2]).tolist() == [True, False, False, False]
    two, three = (colours("A" * (n + 1), [(0, i + 1) for i in range(n)], "-" * n) for n in (2, 3))
    assert two[0, 1] != three[0, 1]
    assert len(np.unique(path)) == path.size - 2  # rounds have names of their own


def test_colours_that_few_graphs_have_are_left_out() -> None:
    graphs = [np.array([[7, 1], [7, 1]]), np.array([[7, 2]]), np.array([[3, 1]])]
    names = find_frequent_colors(graphs, min_graphs=2)
    assert names.tolist() == [1, 7]
    encoder = WLColorEncoder(len(names), width=3, dropout=0.5).eval()
    encoder.names_V.copy_(torch.from_numpy(names))
    known = torch.tensor([[7, 1], [7, 2], [3, 9]])  # by both rounds, by the first, by none
    second, first = encoder.weight
    torch.testing.assert_close(encoder(known), torch.stack([first + second, first, 0 * first]))
    encoder.train()
    torch.manual_seed(0)
    many = encoder(known[:1].expand(400, 2))
    sums = {tuple(row) for row in many.detach().round(decimals=4).tolist()}
    assert len(sums) == 4  # neither, either or both, each doubled
    torch.testing.assert_close(many.mean(0), first + second, atol=0.03, rtol=0)


def test_noise_is_of_training_only() -> None:
    network, graphs = _network("et-graph", noise=0.5, dropout=0.0)
    batch = network.pack(graphs)
    assert torch.equal(network(batch), network(batch))
    network.train()
    assert not torch.equal(network(batch), network(batch))


def test_what_does_not_fit_is_named() -> None:
    network, (graph, *_) = _network("et-graph")
    network.check(graph)
    for x, message in (
        (graph.x[:, :1], "2 columns"),
        (np.full_like(graph.x, np.nan), "a: a value is not finite"),
        (graph.x + np.float32([3, 0]), r"a: a value is not in 0\.\.2"),
    ):
        with pytest.raises(ValueError, match=message):
            network.check(replace(graph, x=x))
    with pytest.raises(ValueError, match="columns"):
        network.check(replace(graph, edge_attr=None))


def test_numbers_are_standardised() -> None:
    kind = find_architectures()["et-graph"]
    network, graphs = kind.build_example(0)
    assert isinstance(network, GraphClassifier)
    values = np.concatenate([g.x[:, 1] for g in graphs])
    assert network.nodes.mean_F.item() == pytest.approx(values.mean(), abs=1e-6)
    assert network.config.node_features[1] == Column("b")


@pytest.mark.parametrize(
    "variant",
    [
        {"weighting": "multiply"},
        {"weighting": "multiply", "pairs": "convolution", "positions": "laplacian"},
        {"attend": "all", "pairs": "none"},
        {"weighting": "none"},
    ],
    ids=lambda variant: "+".join(f"{key}-{value}" for key, value in variant.items()),
)
@pytest.mark.parametrize("name", NAMES)
def test_the_force_of_every_variant_is_exact(name: str, variant: dict[str, str]) -> None:
    network, graphs = _network(name, **variant)
    network.double()
    batch = network.pack(graphs)
    generator = torch.Generator().manual_seed(0)
    shape = (len(batch.row_of_N), network.config.dim)
    for block, layout in zip(network.blocks_in_order(), network.build_layouts(batch), strict=True):
        g = torch.randn(shape, generator=generator, dtype=torch.float64, requires_grad=True)
        terms = block.energy(
            g, layout, block.resolve_params([DynamicsParams()] * batch.rows).beta_RH
        )
        (gradient,) = torch.autograd.grad(terms.token_energy_N.sum(), g, retain_graph=True)
        assert (terms.force_ND + gradient).abs().max() < 1e-9
