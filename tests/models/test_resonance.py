"""Resonance on every attention: the paper's laws, exact forces, and nothing where there is none."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from models.dynamics import Descent, LayerNorm, RowKnobs, solve
from models.heard import listening, selectivity
from models.layouts import Dense, edge_list, pairs
from models.resonance import Prior, Resonance, Resonant, orthonormal
from models.transformer import Attention
from tests.models import test_energies as energies
from tests.models import test_layouts as layouts

GATES = ("sigmoid", "centred", "tanh", "piecewise-linear")
MASKS = ("full", "others", "sparse", "isolated")
ATTENDING = ("dot_product", "vmf", "sum", "balanced")


def _resonance(**given: object) -> Resonance:
    return Resonance.model_validate(given)


def _prior(*rows: Resonance | None, heads: int = 2) -> Prior:
    prior = Resonant(heads)(rows, torch.zeros((), dtype=torch.float64))
    assert prior is not None
    return prior


def _turned(gate: str, unroll: int, row: int = 0) -> Resonance:
    """A resonance whose gate is neither open nor shut anywhere near."""
    return _resonance(
        strength=(1.7, -0.6, 0.9)[row],
        vigilance=(0.1, -0.3, 0.4)[row],
        sharpness=(2.0, 3.0, 1.5)[row] / (2 if gate == "piecewise-linear" else 1),
        unroll=unroll + row,
        feedback=(0.5, -0.4, 0.3)[row],
        gate=gate,
        rank=None,
    )


def _plain(c: torch.Tensor, one: Resonance) -> torch.Tensor:
    """r of the paper, as it writes it: sections 2, 5 and 11."""
    r = torch.zeros_like(c)
    for _ in range(one.unroll):
        at = one.feedback * r - one.vigilance
        a = one.sharpness
        r = {
            "sigmoid": lambda at=at, a=a: torch.sigmoid(a * (c + at)),
            "centred": lambda at=at, a=a: torch.sigmoid(a * ((c + 1) / 2 + at)),
            "tanh": lambda at=at, a=a: (1 + torch.tanh(a * (c + at))) / 2,
            "piecewise-linear": lambda at=at, a=a: (a * (c + at) + 0.5).clip(0, 1),
        }[one.gate]()
    return r


@pytest.mark.parametrize("unroll", [1, 2, 5])
@pytest.mark.parametrize("gate", GATES)
def test_gates_are_those_of_the_paper(gate: str, unroll: int) -> None:
    c = torch.linspace(-0.9987, 0.9971, 101, dtype=torch.float64).requires_grad_()  # no corner
    one = _turned(gate, unroll)
    r, slope = _prior(one).resonance(c, lambda value: value)
    torch.testing.assert_close(r[0], _plain(c, one), rtol=1e-12, atol=1e-12)
    (gradient,) = torch.autograd.grad(r.sum(), c)
    assert (gradient - slope[0]).abs().max() < 1e-12


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
    rows = [_turned(gate, unroll), _turned("sigmoid", unroll, 1), _turned(gate, unroll, 2)]
    prior = _prior(*(row.model_copy(update={"rank": rank}) for row in rows))
    found = []
    for kind in (layout, "dense"):
        terms = energy(g, energies._layout(kind, mask).resonating(prior), energies._beta(0.8))
        (gradient,) = torch.autograd.grad(terms.token_energy_N.sum(), g)
        assert (terms.force_ND + gradient).abs().max() < 1e-9
        found.append(terms)
    torch.testing.assert_close(found[0].force_ND, found[1].force_ND, rtol=1e-12, atol=1e-11)
    assert found[0].parts.keys() == found[1].parts.keys()
    assert energy(g, energies._layout(layout, mask), energies._beta(0.8)).force_ND is not None


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
    ones = [_turned("sigmoid", 2, row if rows > 1 else 0) for row in range(3)]
    expected = torch.zeros(3, dtype=torch.float64)
    for row, one in enumerate(ones):
        tokens = g[row * energies.LENGTH : (row + 1) * energies.LENGTH]
        for h in range(2):
            keys, queries = tokens @ energy.key_HYD[h].T, tokens @ energy.query_HYD[h].T
            for c, query in enumerate(queries):
                if mask[row, c].any():
                    seen = keys[mask[row, c]]
                    cosine = torch.nn.functional.cosine_similarity(seen, query[None])
                    s = beta[row, h] * seen @ query + one.strength * _plain(cosine, one)
                    expected[row] -= torch.logsumexp(s, 0) / beta[row, h]
    places = energies._layout(layout, "sparse").resonating(_prior(*ones))
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
        monkeypatch.setattr(pairs, "_cpu_products", pairs._torch_products)
        monkeypatch.setattr(pairs, "_cpu_sums", pairs._torch_sums)
        monkeypatch.setattr(edge_list, "_CHUNK", 5)
    mask = torch.zeros(1, 7, 7, dtype=torch.bool)
    mask[0, edges.receivers_E, edges.indices_E.long()] = True
    resonant = Resonant(2, _turned("sigmoid", 2), learn=True).double()
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
    edges = edges.resonating(_prior(*(_turned("tanh", 2, row) for row in range(3))))
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
    silent = _resonance(strength=0.0, unroll=3, feedback=0.2)
    assert Resonant(2)([None] * 3, beta) is None
    assert Resonant(2)([silent, None, silent], beta) is None
    assert Resonant(2, _turned("tanh", 2))([silent] * 3, beta) is None
    assert places.resonating(None) is places
    alone = energy(g, places, beta)
    beside = energy(g, places.resonating(_prior(silent, _turned("sigmoid", 2), None)), beta)
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
    places = places.resonating(_prior(*(_turned(gate, 3, row) for row in range(3))))
    knobs = RowKnobs(
        steps_R=torch.full((3,), 200),
        beta_RH=energies._beta(0.5),
        step_size_R=torch.full((3,), 2e-3, dtype=torch.float64),
        tolerance_R=torch.zeros(3, dtype=torch.float64),
        noise_R=torch.zeros(3, dtype=torch.float64),
        seeds=(0, 0, 0),
    )
    norm = LayerNorm(energies.DIM).double()
    solution = solve(energies._energy(name), Descent(), norm, energies._state(), places, knobs)
    course = torch.stack([moment.energy_R for moment in solution.trace])
    assert (course.diff(dim=0) <= 1e-12).all()
    assert (course[-1] < course[0] - 1e-3).all()


@pytest.mark.parametrize("layout", ["dense", "edge_list"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_nothing_of_no_length_makes_nan(layout: str, dtype: torch.dtype) -> None:
    prior = Resonant(2)([_turned("sigmoid", 2)], torch.zeros((), dtype=dtype))
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


_unit_interval = st.floats(-1, 1)
_shapes = st.fixed_dictionaries(
    {
        "vigilance": _unit_interval,
        "sharpness": st.floats(0.5, 20),
        "gate": st.sampled_from(GATES),
        "strength": st.floats(-3, 3),
    }
)


def _r(one: Resonance, *cosines: float) -> list[float]:
    c = torch.tensor(cosines, dtype=torch.float64)
    return _prior(one.model_copy(update={"strength": 1.0})).resonance(c, lambda v: v)[0][0].tolist()


def _middle(one: Resonance) -> float:
    """The cosine of which the gate is half open."""
    return 2 * one.vigilance - 1 if one.gate == "centred" else one.vigilance


@given(_shapes, st.floats(0, 1))
@settings(deadline=None, max_examples=60)
def test_a2_vigilance_is_a_margin(shape: dict, beyond: float) -> None:
    """Above rho more than half of lambda is gained, below less, and at rho just half."""
    one = _resonance(**shape)
    rho = _middle(one)
    above, at, below = _r(one, rho + beyond, rho, rho - beyond)
    assert at == pytest.approx(0.5)
    assert below <= 0.5 + 1e-12
    assert above >= 0.5 - 1e-12
    if beyond > 1e-3:
        assert below < 0.5 < above


@given(st.sampled_from(GATES), _unit_interval, _unit_interval)
@settings(deadline=None, max_examples=60)
def test_a3_sharpness_makes_a_step_of_it(gate: str, vigilance: float, c: float) -> None:
    """As alpha grows, r approaches 1{c > rho}, and never turns back."""
    ones = [_resonance(gate=gate, vigilance=vigilance, sharpness=a) for a in (1, 5, 25, 100)]
    above = c > _middle(ones[0])
    errors = [abs(_r(one, c)[0] - above) for one in ones]
    assert all(b <= a + 1e-12 for a, b in pairwise(errors))
    if abs(c - _middle(ones[0])) > 0.2:
        assert errors[-1] < 1e-4


@given(_shapes, st.lists(_unit_interval, min_size=1, max_size=8), st.integers(1, 6))
@settings(deadline=None, max_examples=60)
def test_a4_influence_is_bounded(shape: dict, cosines: list[float], unroll: int) -> None:
    """lambda r lies between 0 and lambda, and log-sum-exp moves by no more."""
    feedback = 0.9 / (shape["sharpness"] * 1.0)
    one = _resonance(**shape, unroll=unroll, feedback=min(feedback, 1.0))
    c = torch.tensor(cosines, dtype=torch.float64)
    r = torch.tensor(_r(one, *cosines), dtype=torch.float64)
    assert ((r >= 0) & (r <= 1)).all()
    logits = 3 * c
    moved = torch.logsumexp(logits + one.strength * r, 0) - torch.logsumexp(logits, 0)
    assert min(0, one.strength) - 1e-12 <= moved <= max(0, one.strength) + 1e-12


@given(_shapes, st.integers(0, 2**16))
@settings(deadline=None, max_examples=25)
def test_a5_masks_hold(shape: dict, seed: int) -> None:
    """What is not seen has no part in it, however well it would agree."""
    generator = torch.Generator().manual_seed(seed)
    q, k = torch.randn(2, 6, 2, 3, generator=generator, dtype=torch.float64)
    beta = torch.ones(6, 2, dtype=torch.float64)
    mask = torch.rand(1, 6, 6, generator=generator) < 0.6
    mask[0, :, 0] = False
    shape = shape | {"strength": shape["strength"] or 1.0}
    layout = Dense(mask).resonating(_prior(_resonance(**shape)))
    before = layout.attend(q, k, beta)
    moved = k.clone()
    moved[0] = 100 * q[1]
    after = layout.attend(q, moved, beta)
    assert torch.equal(before.lse_NH, after.lse_NH)
    assert torch.equal(before.pk_NHY, after.pk_NHY)
    assert (before.ptq_NHY[0] == 0).all()


@given(_shapes, st.lists(_unit_interval, min_size=2, max_size=2), st.floats(-3, 3))
@settings(deadline=None, max_examples=40)
def test_a6_the_gap_grows_by_what_they_resonate_apart(
    shape: dict, cosines: list[float], gap: float
) -> None:
    """log p_1 - log p_2 is the gap of the logits plus lambda (r_1 - r_2)."""
    one = _resonance(**shape | {"strength": shape["strength"] or 1.0})
    angles = torch.tensor([math.acos(c) for c in cosines], dtype=torch.float64)
    q = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    k = torch.stack([angles.cos(), angles.sin()], 1)
    prior = _prior(one, heads=1)
    bias = prior.bias(q[None, None], k[None, None])[0, 0, 0]
    log_p = torch.log_softmax(torch.tensor([gap, 0.0], dtype=torch.float64) + bias, 0)
    r = _r(one, *(float(a.cos()) for a in angles))
    expected = gap + one.strength * (r[0] - r[1])
    assert float(log_p[0] - log_p[1]) == pytest.approx(expected, abs=1e-8)


@given(
    st.sampled_from(GATES),
    st.floats(0.5, 12),
    st.floats(0.05, 0.95),
    _unit_interval,
    st.booleans(),
)
@settings(deadline=None, max_examples=60)
def test_the_unroll_contracts(
    gate: str, sharpness: float, ratio: float, vigilance: float, negative: bool
) -> None:
    """Each round moves r by at most alpha beta / 4 of what the last one did (section 5)."""
    steepest = {"tanh": 0.5, "piecewise-linear": 1.0}.get(gate, 0.25)
    feedback = min(1.0, ratio / (steepest * sharpness)) * (-1 if negative else 1)
    c = torch.linspace(-1, 1, 41, dtype=torch.float64)
    given_ = {"gate": gate, "sharpness": sharpness, "vigilance": vigilance, "feedback": feedback}
    rounds = [
        _prior(_resonance(**given_, unroll=t)).resonance(c, lambda v: v)[0] for t in range(1, 17)
    ]
    bound = _resonance(**given_).contraction
    assert bound <= ratio + 1e-12
    moves = [(b - a).abs() for a, b in zip([torch.zeros_like(c), *rounds], rounds, strict=False)]
    for before, after in pairwise(moves):
        assert (after <= bound * before + 1e-15).all()
    r = rounds[-1][0]
    left = (_plain_step(c, r, given_) - r).abs().max()
    assert left <= bound**16 + 1e-15  # the fixed point is this near


def _plain_step(c: torch.Tensor, r: torch.Tensor, shape: dict) -> torch.Tensor:
    x = (c + 1) / 2 if shape["gate"] == "centred" else c
    u = shape["sharpness"] * (x + shape["feedback"] * r - shape["vigilance"])
    if shape["gate"] == "piecewise-linear":
        return (u + 0.5).clip(0, 1)
    return (1 + torch.tanh(u)) / 2 if shape["gate"] == "tanh" else torch.sigmoid(u)


@pytest.mark.parametrize(
    ("gate", "feedback"),
    [
        ("sigmoid", 0.5),
        ("sigmoid", -0.5),
        ("centred", 0.5),
        ("tanh", 0.25),
        ("piecewise-linear", 0.125),
    ],
)
def test_what_need_not_settle_is_refused(gate: str, feedback: float) -> None:
    """alpha beta / 4 must be below 1 with alpha = 8, and so for the slope of the other gates."""
    with pytest.raises(ValidationError, match="lower feedback or sharpness") as refused:
        _resonance(gate=gate, feedback=feedback, unroll=2)
    assert refused.value.errors()[0]["loc"] == ("feedback",)
    assert _resonance(gate=gate, feedback=0.99 * feedback, unroll=2).contraction < 1


def test_the_narrowing_map() -> None:
    """Orthonormal, the same at any time, and no cosine changes where nothing is left out."""
    basis = orthonormal(5)
    torch.testing.assert_close(basis.T @ basis, torch.eye(5, dtype=torch.float64))
    orthonormal.cache_clear()
    assert torch.equal(basis, orthonormal(5))
    q, k = torch.randn(2, 1, 2, 6, 5, dtype=torch.float64)
    whole, wide, narrow = (_prior(_resonance(rank=rank)).bias(q, k) for rank in (None, 7, 2))
    assert torch.equal(whole, wide)
    assert not torch.allclose(whole, narrow)
    with pytest.raises(ValueError, match="same rank"):
        _prior(_resonance(rank=2), _resonance(rank=3))


@pytest.mark.parametrize("learned", [False, True])
def test_attention_is_the_papers_pseudocode(learned: bool) -> None:
    """Section 10, row by row, with what each row asks for."""
    torch.manual_seed(0)
    trained = _turned("sigmoid", 1)
    layer = Attention(6, 2, 3, 0.0, trained, learned).double()
    if learned:
        with torch.no_grad():
            layer.resonant.strength_H.copy_(torch.tensor([0.3, -2.0]))
    x = torch.randn(3, 4, 6, dtype=torch.float64)
    asked = [None, _turned("tanh", 3, 1), _resonance(strength=0.0)]
    found = layer(x, x, asked)
    for row, one in enumerate(asked):
        one = one or trained
        key, value = (x[row] @ layer.key_value.weight.T).chunk(2, -1)
        query, read = x[row] @ layer.query.weight.T, []
        for h in range(2):
            q, k, v = (u[:, 3 * h : 3 * h + 3] for u in (query, key, value))
            c = (q / (q.norm(dim=-1, keepdim=True) + 1e-8)) @ (k / k.norm(dim=-1, keepdim=True)).T
            strength = (0.3, -2.0)[h] if learned and row == 0 else one.strength
            s = q @ k.T / math.sqrt(3) + strength * _plain(c, one)
            read.append(torch.softmax(s, -1) @ v)
        expected = layer.out(torch.cat(read, -1))
        torch.testing.assert_close(found[row], expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("mask", ["sparse", "isolated"])
@pytest.mark.parametrize("layout", ["dense", "edge_list"])
def test_what_is_heard(layout: str, mask: str) -> None:
    """Cosines, crossing rates and the best pairs of each row, against every pair by itself."""
    rows = [_turned("sigmoid", 2), _turned("centred", 1, 1), _turned("tanh", 1, 2)]
    places = energies._layout(layout, mask).resonating(_prior(*rows))
    q, k, beta = (t.detach() for t in layouts._inputs(18))
    with listening() as heard:
        places.attend(torch.ones_like(q), k, beta)
        places.attend(q, k, beta)
    places.attend(-q, k, beta)  # to nobody
    [(prior, pairs)] = heard.items()
    for row, one in enumerate(rows):
        seen = energies._mask(mask)[row]
        mine = slice(row * energies.LENGTH, (row + 1) * energies.LENGTH)
        told = selectivity(prior, pairs, row)
        for h, head in enumerate(told):
            unit_q, unit_k = (torch.nn.functional.normalize(u[mine, h], dim=-1) for u in (q, k))
            c = unit_q @ unit_k.T
            if not seen.any():
                assert head["mean"] is head["crossing"] is None
                assert head["pairs"] == []
                continue
            above = (c + 1) / 2 if one.gate == "centred" else c
            crossing = (above[seen] > one.vigilance).double().mean()
            assert head["crossing"] == pytest.approx(float(crossing))
            assert head["mean"] == pytest.approx(float(_plain(c[seen], one).mean()))
            best = c[seen].sort(descending=True).values[:5].tolist()
            assert [pair["cosine"] for pair in head["pairs"]] == pytest.approx(best)
            for pair in head["pairs"]:
                i, j = pair["token"], pair["seen"]
                assert seen[i, j]
                assert pair["cosine"] == pytest.approx(float(c[i, j]))
                assert pair["resonance"] == pytest.approx(float(_plain(c[i, j], one)))
