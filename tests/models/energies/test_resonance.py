"""Resonance within energies: exact forces, descent, and nothing where there is none."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from models.dynamics import Descent, EnergyLayerNorm, RowParams, solve
from models.layouts import Dense, edge_list, spmm
from models.resonance import ResonanceParameter
from tests.models.energies import test_energies as energies
from tests.models.layouts import test_layouts as layouts
from tests.support.resonance import GATES, plain, prior_of, resonance, turned

MASKS = ("full", "others", "sparse", "isolated")
ATTENDING = ("dot_product", "vmf", "sum", "balanced")


@pytest.mark.parametrize("rank", [None, 3])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("layout", ["dense", "edge_list"])
@pytest.mark.parametrize("unroll", [1, 3])
@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("name", ATTENDING)
def test_force_is_minus_the_gradient(
    name: str, gate: str, unroll: int, layout: str, mask: str, rank: int | None
) -> None:
    """Every row has a resonance of its own, one of them another gate."""
    energy, g = energies._energy(name), energies._state().requires_grad_()
    rows = [turned(gate, unroll), turned("sigmoid", unroll, 1), turned(gate, unroll, 2)]
    prior = prior_of(*(row.model_copy(update={"rank": rank}) for row in rows))
    found = []
    for kind in (layout, "dense"):
        terms = energy(g, energies._layout(kind, mask).resonating(prior), energies._beta(0.8))
        (gradient,) = torch.autograd.grad(terms.token_energy_N.sum(), g)
        assert (terms.force_ND + gradient).abs().max() < 1e-9
        found.append(terms)
    torch.testing.assert_close(found[0].force_ND, found[1].force_ND, rtol=1e-12, atol=1e-11)
    assert found[0].parts.keys() == found[1].parts.keys()


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("layout", ["dense", "edge_list"])
def test_dot_product_by_loops(layout: str, rows: int) -> None:
    """-(1/beta) log sum exp(beta k . q + lambda r), written out."""
    energy, mask, beta, g = (
        energies._energy("dot_product"),
        energies._mask("sparse"),
        energies._beta(0.7),
        energies._state(),
    )
    ones = [turned("sigmoid", 2, row if rows > 1 else 0) for row in range(3)]
    expected = torch.zeros(3, dtype=torch.float64)
    for row, one in enumerate(ones):
        tokens = g[row * energies.LENGTH : (row + 1) * energies.LENGTH]
        for h in range(2):
            keys, queries = tokens @ energy.key_HYD[h].T, tokens @ energy.query_HYD[h].T
            for c, query in enumerate(queries):
                if mask[row, c].any():
                    seen = keys[mask[row, c]]
                    cosine = torch.nn.functional.cosine_similarity(seen, query[None])
                    s = beta[row, h] * seen @ query + one.strength * plain(cosine, one)
                    expected[row] -= torch.logsumexp(s, 0) / beta[row, h]
    places = energies._layout(layout, "sparse").resonating(prior_of(*ones))
    got = places.sum_rows(energy(g, places, beta).token_energy_N)
    torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("terms", layouts.TERMS, ids="+".join)
@pytest.mark.parametrize("path", ["cpu", "any_device", "dense"])
def test_gradients_of_training(
    path: str, terms: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Numerical differences, through value and force: so that a network with resonance learns."""
    edges = layouts._random(7, 15, undirected=False)
    if path == "any_device":
        monkeypatch.setattr(edge_list, "_cpu_forward", edge_list._torch_forward)
        monkeypatch.setattr(edge_list, "_cpu_backward", edge_list._torch_backward)
        monkeypatch.setattr(spmm, "_cpu_products", spmm._torch_products)
        monkeypatch.setattr(spmm, "_cpu_sums", spmm._torch_sums)
        monkeypatch.setattr(edge_list, "_CHUNK", 5)
    mask = torch.zeros(1, 7, 7, dtype=torch.bool)
    mask[0, edges.receivers_E, edges.indices_E.long()] = True
    resonant = ResonanceParameter(2, turned("sigmoid", 2), learn=True).double()
    assert resonant.strength_H is not None

    def attend(q, k, beta, strength, *given):
        prior = replace(resonant([None], beta), strength_PH=strength[None])
        if path == "dense":
            named = {f"{t}_RHLL": value for t, value in zip(terms, given, strict=True)}
            return tuple(Dense(mask).weighed(**named).resonating(prior).attend(q, k, beta))
        named = {f"{t}_EH": value for t, value in zip(terms, given, strict=True)}
        return tuple(edges.weighed(**named).resonating(prior).attend(q, k, beta))

    shape = (1, 2, 7, 7) if path == "dense" else (edges.num_edges, 2)
    given = [torch.randn(shape, dtype=torch.float64).requires_grad_() for _ in terms]
    strength = resonant.strength_H.detach().clone().requires_grad_()
    assert torch.autograd.gradcheck(attend, [*layouts._inputs(7), strength, *given])


def test_edges_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """What keeps the memory of a large graph bounded changes nothing."""
    edges, inputs = energies._edges_of(energies._mask("sparse")), layouts._inputs(18)
    edges = edges.resonating(prior_of(*(turned("tanh", 2, row) for row in range(3))))
    with torch.no_grad():
        whole = edges.attend(*inputs)
        monkeypatch.setattr(edge_list, "_CHUNK", 4)
        for a, b in zip(whole, edges.attend(*inputs), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("layout", ["dense", "edge_list"])
@pytest.mark.parametrize("name", ATTENDING)
def test_no_strength_is_no_resonance(name: str, layout: str) -> None:
    """A1: strength 0 takes the very code that there was; a silent row beside a loud one, too."""
    energy, g = energies._energy(name), energies._state()
    places, beta = energies._layout(layout, "sparse"), energies._beta(1.0)
    silent = resonance(strength=0.0, unroll=3, feedback=0.2)
    assert ResonanceParameter(2)([None] * 3, beta) is None
    assert ResonanceParameter(2)([silent, None, silent], beta) is None
    assert ResonanceParameter(2, turned("tanh", 2))([silent] * 3, beta) is None
    assert places.resonating(None) is places
    alone = energy(g, places, beta)
    beside = energy(g, places.resonating(prior_of(silent, turned("sigmoid", 2), None)), beta)
    for row in (0, 2):
        mine = places.row_of_N == row
        assert torch.equal(alone.token_energy_N[mine], beside.token_energy_N[mine])
        torch.testing.assert_close(alone.force_ND[mine], beside.force_ND[mine], rtol=0, atol=0)
    assert not torch.equal(alone.token_energy_N, beside.token_energy_N)


@pytest.mark.parametrize("layout", ["dense", "edge_list"])
@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("name", ["dot_product", "sum"])
def test_the_energy_never_rises(name: str, gate: str, layout: str) -> None:
    """Energy Transformer eq. 6 descends the energy with the prior in it, by small steps."""
    places = energies._layout(layout, "others")
    places = places.resonating(prior_of(*(turned(gate, 3, row) for row in range(3))))
    params = RowParams(
        steps_R=np.full(3, 200),
        beta_RH=energies._beta(0.5),
        step_size_R=torch.full((3,), 2e-3, dtype=torch.float64),
        tolerance_R=np.zeros(3),
        noise_R=torch.zeros(3, dtype=torch.float64),
        nesterov_R=np.zeros(3, bool),
        descent_R=np.zeros(3, bool),
        seeds=(0, 0, 0),
    )
    norm = EnergyLayerNorm(energies.DIM).double()
    solution = solve(energies._energy(name), Descent(), norm, energies._state(), places, params)
    course = np.stack([moment.energy_R for moment in solution.trace])
    assert (np.diff(course, axis=0) <= 1e-12).all()
    assert (course[-1] < course[0] - 1e-3).all()


@pytest.mark.parametrize("layout", ["dense", "edge_list"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_nothing_of_no_length_makes_nan(layout: str, dtype: torch.dtype) -> None:
    prior = ResonanceParameter(2)([turned("sigmoid", 2)], torch.zeros((), dtype=dtype))
    places = energies._layout(layout, "isolated").resonating(prior)
    q, k = torch.randn(2, 18, 2, 3, dtype=dtype)
    q[3], k[4], q[9], k[9] = 0, 0, 0, 0
    q, k = q.requires_grad_(), k.requires_grad_()
    beta = torch.ones(18, 2, dtype=dtype)
    found = places.attend(q, k, beta)
    assert all(part.isfinite().all() for part in found)
    gradients = torch.autograd.grad(sum(part.sum() for part in found), (q, k))
    assert all(gradient.isfinite().all() for gradient in gradients)
    for name in ("dot_product", "vmf"):
        terms = energies._energy(name).to(dtype)(
            torch.zeros(18, energies.DIM).to(dtype), places, energies._beta(1.0).to(dtype)
        )
        assert terms.token_energy_N.isfinite().all()
        assert terms.force_ND.isfinite().all()
