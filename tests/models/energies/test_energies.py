"""Every energy, on every layout, mask and beta: the closed-form force is the gradient."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from models.dynamics import EnergyLayerNorm
from models.energies import (
    Balanced,
    DotProductAttention,
    Energy,
    Hopfield,
    ModernHopfield,
    Sum,
    Terms,
    VonMisesFisherAttention,
)
from models.layouts import Dense, EdgeList, Layout

DIM, LENGTH, ROWS = 7, 6, 3


class Well(Energy):
    """|g - 1|^4 / 4: of no features."""

    def forward(
        self, g_ND: torch.Tensor, layout: Layout, beta_RH: torch.Tensor, with_force: bool = True
    ) -> Terms:
        away_ND = g_ND - 1
        square_N = away_ND.square().sum(-1)
        force_ND = -square_N[:, None] * away_ND if with_force else None
        return Terms({"well": square_N.square() / 4}, force_ND)


ENERGIES = {
    "dot_product": lambda: DotProductAttention(DIM, 2, 4),
    "vmf": lambda: VonMisesFisherAttention(DIM, 2, 4),
    "hopfield_relu2": lambda: Hopfield(DIM, 9, "relu2"),
    "hopfield_relu": lambda: Hopfield(DIM, 9, "relu"),
    "hopfield_power": lambda: Hopfield(DIM, 9, "power"),
    "hopfield_softmax": lambda: Hopfield(DIM, 9, "softmax"),
    "modern_hopfield": lambda: ModernHopfield(torch.randn(9, DIM)),
    "modern_hopfield_given": lambda: ModernHopfield(torch.randn(9, DIM + 2)).condition_on(
        torch.arange(DIM + 2) < 2, torch.tensor([0.3, -0.5])
    ),
    "sum": lambda: Sum(DotProductAttention(DIM, 2, 4), Hopfield(DIM, 9, "relu2")),
    "balanced": lambda: Balanced(VonMisesFisherAttention(DIM, 2, 4), Hopfield(DIM, 9, "relu")),
    "of_others": lambda: Balanced(Sum(Well(), DotProductAttention(DIM, 2, 4)), Hopfield(DIM, 9)),
}


def _mask(kind: str) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    full = torch.ones(ROWS, LENGTH, LENGTH, dtype=torch.bool)
    if kind == "full":
        return full
    others = full & ~torch.eye(LENGTH, dtype=torch.bool)
    if kind == "others":  # B != C
        return others
    if kind == "sparse":
        return others & (torch.rand(full.shape, generator=generator) < 0.4)
    isolated = others.clone()  # one token sees nobody and is seen by nobody; one row has no edges
    isolated[0, 2], isolated[0, :, 2], isolated[1] = False, False, False
    return isolated


def _edges_of(mask_RLL: torch.Tensor) -> EdgeList:
    row, receiver, source = mask_RLL.nonzero().T
    n = mask_RLL.shape[0] * LENGTH
    index = torch.stack([row * LENGTH + source, row * LENGTH + receiver])
    loops = bool(mask_RLL[0].diagonal().all())
    return EdgeList.from_edges(
        index,
        n,
        row_of_N=torch.arange(ROWS).repeat_interleave(LENGTH),
        rows=ROWS,
        undirected=False,
        self_loops=loops,
    )


def _layout(kind: str, mask: str) -> Layout:
    return Dense(_mask(mask)) if kind == "dense" else _edges_of(_mask(mask))


def _state(seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(ROWS * LENGTH, DIM, generator=generator, dtype=torch.float64)


def _beta(beta: float, heads: int = 2) -> torch.Tensor:
    # Differs per row and per head, as a batch of requests may.
    return beta * (1 + torch.arange(ROWS * heads, dtype=torch.float64).reshape(ROWS, heads) / 7)


def _beta_for(energy: Energy, beta: float) -> torch.Tensor:
    return _beta(beta, 1 if isinstance(energy, ModernHopfield) else 2)


def _energy(name: str) -> Energy:
    torch.manual_seed(0)
    return ENERGIES[name]().double()


@pytest.mark.parametrize("beta", [0.1, 1.0, 30.0])
@pytest.mark.parametrize("mask", ["full", "others", "sparse", "isolated"])
@pytest.mark.parametrize("layout", ["dense", "edge_list"])
@pytest.mark.parametrize("name", ENERGIES)
def test_force_is_minus_the_gradient(name: str, layout: str, mask: str, beta: float) -> None:
    energy, places = _energy(name), _layout(layout, mask)
    g = _state().requires_grad_()
    terms = energy(g, places, _beta_for(energy, beta))
    (gradient,) = torch.autograd.grad(terms.token_energy_N.sum(), g)
    assert terms.force_ND is not None
    assert (terms.force_ND + gradient).abs().max() < 1e-9
    assert terms.force_ND.isfinite().all()
    assert energy(g, places, _beta_for(energy, beta), with_force=False).force_ND is None


@pytest.mark.parametrize("beta", [0.1, 1.0, 30.0])
@pytest.mark.parametrize("mask", ["full", "others", "sparse", "isolated"])
@pytest.mark.parametrize("name", ENERGIES)
def test_layouts_agree(name: str, mask: str, beta: float) -> None:
    energy, g = _energy(name), _state()
    dense = energy(g, _layout("dense", mask), _beta_for(energy, beta))
    sparse = energy(g, _layout("edge_list", mask), _beta_for(energy, beta))
    assert dense.parts.keys() == sparse.parts.keys()
    for part in dense.parts:
        torch.testing.assert_close(dense.parts[part], sparse.parts[part], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(dense.force_ND, sparse.force_ND, rtol=1e-12, atol=1e-11)


def test_dot_product_is_equation_3() -> None:
    """Written out with loops, from the paper."""
    energy, mask, beta, g = _energy("dot_product"), _mask("sparse"), _beta(0.7), _state()
    assert isinstance(energy, DotProductAttention)
    expected = torch.zeros(ROWS, dtype=torch.float64)
    for row in range(ROWS):
        tokens = g[row * LENGTH : (row + 1) * LENGTH]
        for h in range(2):
            keys, queries = tokens @ energy.key_HYD[h].T, tokens @ energy.query_HYD[h].T
            for c in range(LENGTH):
                seen = [b for b in range(LENGTH) if mask[row, c, b]]
                if seen:
                    s = torch.stack([beta[row, h] * keys[b] @ queries[c] for b in seen])
                    expected[row] -= torch.logsumexp(s, 0) / beta[row, h]
    layout = Dense(mask)
    got = layout.sum_rows(energy(g, layout, beta).token_energy_N)
    torch.testing.assert_close(got, expected)


def test_vmf_is_equation_11() -> None:
    """log-sum-exp over queries for each key, both on the sphere (CDAT eq. 10-11)."""
    energy, beta, g = _energy("vmf"), 3.0, _state()[:LENGTH]
    assert isinstance(energy, VonMisesFisherAttention)
    expected = torch.zeros((), dtype=torch.float64)
    for h in range(2):
        queries = torch.nn.functional.normalize(g @ energy.query_HYD[h].T, dim=-1)
        keys = torch.nn.functional.normalize(g @ energy.key_HYD[h].T, dim=-1)
        for c in range(LENGTH):
            others = [b for b in range(LENGTH) if b != c]
            expected -= torch.logsumexp(beta * queries[others] @ keys[c], 0) / beta
    layout = Dense(_mask("others")[:1])
    got = energy(g, layout, torch.full((1, 2), beta, dtype=torch.float64)).token_energy_N.sum()
    torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("layout", ["dense", "edge_list"])
def test_an_isolated_token_has_no_attention_energy(layout: str) -> None:
    for name in ("dot_product", "vmf"):
        terms = _energy(name)(_state(), _layout(layout, "isolated"), _beta(1.0))
        assert terms.token_energy_N[2] == 0
        assert terms.force_ND is not None
        assert (terms.force_ND[2] == 0).all()
        assert (terms.force_ND[LENGTH : 2 * LENGTH] == 0).all()


def test_what_is_given_is_a_slice_of_the_whole() -> None:
    """Known coordinates leave the same energy on the others: value, force and components."""
    torch.manual_seed(0)
    whole = ModernHopfield(torch.randn(9, DIM, dtype=torch.float64))
    known = torch.tensor([True, False, False, True, False, False, False])
    x = _state()
    x[:, known] = x[0, known]
    part = whole.condition_on(known, x[0, known])
    layout, beta = _layout("dense", "full"), _beta(3.0, 1)
    of_whole, of_part = whole(x, layout, beta), part(x[:, ~known], layout, beta)
    for name in of_whole.parts:
        torch.testing.assert_close(of_whole.parts[name], of_part.parts[name], rtol=1e-12, atol=0)
    torch.testing.assert_close(
        of_whole.force_ND[:, ~known], of_part.force_ND, rtol=1e-12, atol=1e-12
    )
    twice = whole.condition_on(known & (torch.arange(DIM) == 0), x[0, :1]).condition_on(
        known[1:], x[0, 3:4]
    )
    torch.testing.assert_close(twice.value(x[:, ~known], 3.0), part.value(x[:, ~known], 3.0))
    torch.testing.assert_close(part.value(x[:, ~known], 3.0), whole.value(x, 3.0))


def test_modern_hopfield_wants_one_temperature_per_row() -> None:
    with pytest.raises(ValueError, match="one inverse temperature"):
        _energy("modern_hopfield")(_state(), _layout("dense", "full"), _beta(1.0))
    with pytest.raises(ValueError, match="matrix"):
        ModernHopfield(torch.zeros(0, 3))


def test_balance_sums_to_one() -> None:
    energy = _energy("balanced")
    assert isinstance(energy, Balanced)
    with torch.no_grad():
        energy.balance.fill_(1.3)
    first, second = energy.weights()
    assert first.item() + second.item() == pytest.approx(1)
    assert 0 < first.item() < 1


def test_layer_norm_is_the_gradient_of_its_lagrangian() -> None:
    """Energy Transformer eq. 1-2, and a positive semi-definite Jacobian (CDAT lemma 3.2)."""
    torch.manual_seed(0)
    norm = EnergyLayerNorm(DIM).double()
    with torch.no_grad():
        norm.log_gamma.fill_(0.4)
        norm.delta_D.normal_()
    x = _state().requires_grad_()
    (gradient,) = torch.autograd.grad(norm.lagrangian(x).sum(), x)
    torch.testing.assert_close(gradient, norm(x), rtol=1e-9, atol=1e-9)
    jacobian = torch.autograd.functional.jacobian(norm, x.detach()[:1])[0, :, 0]
    torch.testing.assert_close(jacobian, jacobian.T, rtol=1e-9, atol=1e-12)
    assert np.linalg.eigvalsh(jacobian.numpy()).min() > -1e-12
