"""Resonance by itself and on plain attention: the laws of the paper."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import cast

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from models.layouts import Dense
from models.nn.transformer import MultiHeadAttention
from models.resonance import Resonance, ResonanceParameter, orthonormal_basis
from tests.support.resonance import GATES, plain, prior_of, resonance, turned


@pytest.mark.parametrize("unroll", [1, 2, 5])
@pytest.mark.parametrize("gate", GATES)
def test_gates_are_those_of_the_paper(gate: str, unroll: int) -> None:
    c = torch.linspace(-0.9987, 0.9971, 101, dtype=torch.float64).requires_grad_()  # no corner
    one = turned(gate, unroll)
    r, slope = prior_of(one).compute_resonance(c, lambda value: value)
    torch.testing.assert_close(r[0], plain(c, one), rtol=1e-12, atol=1e-12)
    (gradient,) = torch.autograd.grad(r.sum(), c)
    assert (gradient - slope[0]).abs().max() < 1e-12


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
    return (
        prior_of(one.model_copy(update={"strength": 1.0}))
        .compute_resonance(c, lambda v: v)[0][0]
        .tolist()
    )


def _middle(one: Resonance) -> float:
    """The cosine of which the gate is half open."""
    return 2 * one.vigilance - 1 if one.gate == "centred" else one.vigilance


@given(_shapes, st.floats(0, 1))
@settings(deadline=None, max_examples=60)
def test_a2_vigilance_is_a_margin(shape: dict, beyond: float) -> None:
    """Above rho more than half of lambda is gained, below less, and at rho just half."""
    one = resonance(**shape)
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
    ones = [resonance(gate=gate, vigilance=vigilance, sharpness=a) for a in (1, 5, 25, 100)]
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
    one = resonance(**shape, unroll=unroll, feedback=min(feedback, 1.0))
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
    layout = Dense(mask).resonating(prior_of(resonance(**shape)))
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
    one = resonance(**shape | {"strength": shape["strength"] or 1.0})
    angles = torch.tensor([math.acos(c) for c in cosines], dtype=torch.float64)
    q = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    k = torch.stack([angles.cos(), angles.sin()], 1)
    prior = prior_of(one, heads=1)
    bias = prior.compute_bias(q[None, None], k[None, None])[0, 0, 0]
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
        prior_of(resonance(**given_, unroll=t)).compute_resonance(c, lambda v: v)[0]
        for t in range(1, 17)
    ]
    bound = resonance(**given_).contraction
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
        resonance(gate=gate, feedback=feedback, unroll=2)
    assert refused.value.errors()[0]["loc"] == ("feedback",)
    assert resonance(gate=gate, feedback=0.99 * feedback, unroll=2).contraction < 1


def test_the_narrowing_map() -> None:
    """Orthonormal, the same at any time, and no cosine changes where nothing is left out."""
    basis = orthonormal_basis(5)
    torch.testing.assert_close(basis.T @ basis, torch.eye(5, dtype=torch.float64))
    orthonormal_basis.cache_clear()
    assert torch.equal(basis, orthonormal_basis(5))
    q, k = torch.randn(2, 1, 2, 6, 5, dtype=torch.float64)
    whole, wide, narrow = (
        prior_of(resonance(rank=rank)).compute_bias(q, k) for rank in (None, 7, 2)
    )
    assert torch.equal(whole, wide)
    assert not torch.allclose(whole, narrow)
    with pytest.raises(ValueError, match="same rank"):
        prior_of(resonance(rank=2), resonance(rank=3))


@pytest.mark.parametrize("learned", [False, True])
def test_attention_is_the_papers_pseudocode(learned: bool) -> None:
    """Section 10, row by row, with what each row asks for."""
    torch.manual_seed(0)
    trained = turned("sigmoid", 1)
    layer = MultiHeadAttention(6, 2, 3, 0.0, trained, learned).double()
    if learned:
        with torch.no_grad():
            layer.resonant.strength_H.copy_(torch.tensor([0.3, -2.0]))
    x = torch.randn(3, 4, 6, dtype=torch.float64)
    asked = [None, turned("tanh", 3, 1), resonance(strength=0.0)]
    found = layer(x, x, asked)
    for row, one in enumerate(asked):
        one = one or trained
        key, value = (x[row] @ layer.key_value.weight.T).chunk(2, -1)
        query, read = x[row] @ layer.query.weight.T, []
        for h in range(2):
            q, k, v = (u[:, 3 * h : 3 * h + 3] for u in (query, key, value))
            c = (q / (q.norm(dim=-1, keepdim=True) + 1e-8)) @ (k / k.norm(dim=-1, keepdim=True)).T
            strength = (0.3, -2.0)[h] if learned and row == 0 else one.strength
            s = q @ k.T / math.sqrt(3) + strength * plain(c, one)
            read.append(torch.softmax(s, -1) @ v)
        expected = layer.out(torch.cat(read, -1))
        torch.testing.assert_close(found[row], expected, rtol=1e-6, atol=1e-6)


def test_a_strength_that_is_learned_from_zero_keeps_its_rank() -> None:
    resonant = ResonanceParameter(2, resonance(strength=0.0, rank=2), learn=True).double()
    with torch.no_grad():
        cast(torch.Tensor, resonant.strength_H).fill_(1.5)
    prior = resonant([None], torch.zeros(1, dtype=torch.float64))
    assert prior is not None
    assert prior.rank == 2
    with pytest.raises(ValueError, match="same rank"):
        resonant([None, resonance(rank=3)], torch.zeros(1, dtype=torch.float64))


def test_cosines_keep_their_precision_where_products_are_taken_in_half() -> None:
    prior = ResonanceParameter(2, resonance())([None], torch.zeros(1))
    layout = Dense(torch.ones(1, 3, 3, dtype=torch.bool)).resonating(prior)
    q_NHY, k_NHY = torch.randn(2, 3, 2, 4, generator=torch.Generator().manual_seed(0))
    expected = layout.attend(q_NHY, k_NHY, torch.ones(3, 2))
    with torch.autocast("cpu", torch.bfloat16):
        found = layout.attend(q_NHY, k_NHY, torch.ones(3, 2))
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
