"""Edges, what they mean, their gradients and threads; exponentials among all tokens of a row."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from models.kernels import edge_attention, exponential
from models.layouts import Dense, EdgeList, edge_list


def _random(nodes: int, edges: int, seed: int = 0, **options: bool) -> EdgeList:
    rng = np.random.default_rng(seed)
    return EdgeList.from_edges(rng.integers(0, nodes, (2, edges)), nodes, **options)


def _inputs(nodes: int, dtype: torch.dtype = torch.float64) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    q, k = (torch.randn(nodes, 2, 3, generator=generator, dtype=dtype) for _ in range(2))
    beta = 0.5 + torch.rand(nodes, 2, generator=generator, dtype=dtype)
    return [t.requires_grad_() for t in (q, k, beta)]


TERMS = [(), ("bias",), ("weight",), ("weight", "bias")]


@pytest.mark.parametrize("terms", TERMS, ids="+".join)
@pytest.mark.parametrize("path", ["cpu", "any_device"])
def test_gradients(path: str, terms: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """Numerical differences, through lse, pk and ptq, for both implementations."""
    if path == "any_device":
        monkeypatch.setattr(edge_list, "_cpu_forward", edge_list._torch_forward)
        monkeypatch.setattr(edge_list, "_cpu_backward", edge_list._torch_backward)
        monkeypatch.setattr(edge_list, "_CHUNK", 5)
    edges = _random(7, 15, undirected=False)

    def attend(q, k, beta, *given):
        named = {f"{term}_EH": value for term, value in zip(terms, given, strict=True)}
        return tuple(edges.weighed(**named).attend(q, k, beta))

    given = [torch.randn(edges.num_edges, 2, dtype=torch.float64) for _ in terms]
    given = [value.requires_grad_() for value in given]
    assert torch.autograd.gradcheck(attend, [*_inputs(7), *given])


@pytest.mark.parametrize("terms", TERMS, ids="+".join)
def test_dense_and_edge_list_agree_on_weights_and_biases(terms: tuple[str, ...]) -> None:
    """Values and gradients, and -1/beta lse has the force that pk and ptq say."""
    edges, inputs = _random(9, 20, undirected=False), _inputs(9)
    receivers, sources = edges.receivers_E, edges.indices_E.long()
    mask = torch.zeros(1, 9, 9, dtype=torch.bool)
    mask[0, receivers, sources] = True
    on_edges, on_pairs = {}, {}
    for term in terms:
        value = torch.randn(edges.num_edges, 2, dtype=torch.float64, requires_grad=True)
        pairs = torch.zeros(1, 2, 9, 9, dtype=torch.float64)
        on_edges[f"{term}_EH"] = value
        on_pairs[f"{term}_RHLL"] = pairs.index_put(
            (torch.tensor(0), torch.arange(2)[:, None], receivers, sources), value.T
        )
    wanted = [*inputs, *on_edges.values()]
    results = []
    for out in (
        edges.weighed(**on_edges).attend(*inputs),
        Dense(mask).weighed(**on_pairs).attend(*inputs),
    ):
        loss = sum((t * torch.arange(t.numel()).reshape(t.shape)).sum() for t in out)
        results.append([*out, *torch.autograd.grad(loss, wanted, retain_graph=True)])
        q, k, beta = inputs
        dq, dk = torch.autograd.grad((out.lse_NH / beta).sum(), (q, k), retain_graph=True)
        torch.testing.assert_close(dq, out.pk_NHY, rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(dk, out.ptq_NHY, rtol=1e-10, atol=1e-12)
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("terms", TERMS, ids="+".join)
def test_threads_change_nothing(terms: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does one pass for what those are given that are seen, in place of two."""
    edges, inputs = _random(300, 4000), _inputs(300, torch.float32)
    edges = edges.weighed(**{f"{term}_EH": torch.randn(edges.num_edges, 2) for term in terms})
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)

    def run() -> list[torch.Tensor]:
        out = edges.attend(*inputs)
        loss = sum((t * torch.arange(t.numel()).reshape(t.shape)).sum() for t in out)
        return [*out, *torch.autograd.grad(loss, inputs)]

    one = run()
    monkeypatch.setattr(edge_attention, "_PARALLEL_WORK", 0)
    for a, b in zip(one, run(), strict=True):
        assert torch.equal(a, b)


def test_edges_are_sorted_deduplicated_and_symmetrised() -> None:
    edges = EdgeList.from_edges(np.array([[0, 0, 2, 1], [1, 1, 2, 0]]), 4)
    assert edges.degree_N.tolist() == [1, 1, 0, 0]
    assert edges.indices_E.tolist() == [1, 0]
    one_way = EdgeList.from_edges(np.array([[0], [1]]), 2, undirected=False)
    assert one_way.degree_N.tolist() == [0, 1]  # 1 sees 0
    loops = EdgeList.from_edges(np.zeros((2, 0), np.int64), 3, self_loops=True)
    assert loops.degree_N.tolist() == [1, 1, 1]


def test_who_sees_a_token_is_sought_once_for_all_copies() -> None:
    edges = _random(20, 60, undirected=False)
    assert edges.weighed(torch.ones(edges.num_edges, 2)).t_edge_E is edges.t_edge_E
    places = edges.t_edge_E.long()
    seers, seen = edges.receivers_E[places], edges.indices_E[places]
    assert torch.equal(edges.t_indices_E, seers.int())
    assert torch.equal(seen.bincount(minlength=20), edges.t_indptr_N1.diff())
    assert (seen.diff() >= 0).all()


def test_no_edges_and_no_nodes() -> None:
    empty = EdgeList.from_edges(np.zeros((2, 0), np.int64), 3)
    out = empty.attend(*_inputs(3))
    assert all((t == 0).all() for t in out)
    assert EdgeList.from_edges(np.zeros((2, 0), np.int64), 0).num_edges == 0


def test_mean_neighbours() -> None:
    edges, x = _random(50, 120), torch.randn(50, 4, dtype=torch.float64)
    adjacency = torch.zeros(50, 50, dtype=torch.float64)
    for i in range(50):
        adjacency[i, edges.indices_E[edges.indptr_N1[i] : edges.indptr_N1[i + 1]].long()] = 1
    expected = adjacency @ x / adjacency.sum(1, keepdim=True).clamp(min=1)
    torch.testing.assert_close(edges.mean_neighbours(x), expected)


def test_nan_is_seen() -> None:
    """Reassociating sums must not hide a NaN: divergence has to be detected."""
    edges, inputs = _random(20, 60), _inputs(20, torch.float32)
    with torch.no_grad():
        inputs[1][3, 0, 0] = torch.nan
    seen_by = (edges.indices_E == 3).nonzero().flatten()
    receivers = torch.searchsorted(edges.indptr_N1, seen_by, right=True) - 1
    lse = edges.attend(*inputs).lse_NH
    assert len(receivers) > 0
    assert lse[receivers, 0].isnan().all()
    assert lse[:, 1].isfinite().all()


def test_half_precision_is_summed_in_full() -> None:
    edges, (q, k, beta) = _random(20, 60), _inputs(20, torch.float32)
    out = edges.attend(q.bfloat16(), k.bfloat16(), beta)
    assert all(t.dtype == torch.float32 for t in out)


def test_exponentials_are_right_to_two_units_in_the_last_place() -> None:
    x = -np.concatenate([np.linspace(0, 87, 100_001), np.logspace(-8, 1, 1001)]).astype(np.float32)
    found, known = x.copy(), np.exp(x.astype(np.float64))
    powers = np.empty(len(x), np.int32)
    exponential.exp(found, powers)
    np.testing.assert_allclose(found, known, 2 * np.finfo(np.float32).eps)
    ends = np.array([-0.0, -88.0, -1e30, -np.inf, np.nan, 0, 0], np.float32)
    exponential.exp(ends, powers)
    np.testing.assert_array_equal(ends, np.array([1, 0, 0, 0, np.nan, 1, 1], np.float32))
