"""Reasons against arithmetic by hand, alone as in company, and as whole as they claim to be."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from models.base import DynamicsParams
from models.energies import AttentionEnergy, Hopfield
from models.energies.hopfield import HopfieldKind
from models.interpret.reasons import BatchReasons, compute_selectivity, get_supported_reasons
from models.layouts.pairwise import Pairwise
from models.nn.attention_recorder import AttentionRecord, PairValues, record_attention
from models.registry import find_architectures
from models.resonance import Resonance
from tests.models.energies import test_energies as energies
from tests.models.layouts import test_layouts as layouts
from tests.support.resonance import plain, prior_of, turned

ALL = sorted(find_architectures())
EVERYTHING = ("attention", "memories", "components", "resonance")
PARAMS = [
    DynamicsParams(),
    DynamicsParams(steps=1, beta=2.0),
    DynamicsParams(resonance=Resonance.model_validate({"strength": 1.5, "sharpness": 3.0})),
]


@pytest.mark.parametrize("resonating", [False, True])
@pytest.mark.parametrize("mask", ["full", "sparse", "isolated"])
@pytest.mark.parametrize("layout", ["dense", "edge_list"])
@pytest.mark.parametrize("name", ["dot_product", "vmf"])
def test_attention_is_the_softmax(name: str, layout: str, mask: str, resonating: bool) -> None:
    """In float64, pair by pair, and sums to 1 where a token sees any."""
    energy, places = energies._energy(name), energies._layout(layout, mask)
    rows = [turned("sigmoid", 2), turned("tanh", 1, 1), turned("centred", 1, 2)]
    places = places.resonating(prior_of(*rows) if resonating else None)
    assert isinstance(energy, AttentionEnergy)
    assert isinstance(places, Pairwise)
    q, k = (u.detach() for u in energy.attention_inputs(energies._state()))
    beta_RH = energies._beta(1.3)
    p = places.weights(q, k, beta_RH[places.row_of_N])
    unit_q, unit_k = (torch.nn.functional.normalize(u, dim=-1) for u in (q, k))
    for row in range(energies.ROWS):
        seen = energies._mask(mask)[row]
        weight_PH, i_P, j_P = places.pairs(p, row)
        first = row * energies.LENGTH
        for i in range(energies.LENGTH):
            mine = i_P == i
            assert j_P[mine].tolist() == seen[i].nonzero().flatten().tolist()
            for h in range(2):
                logits = beta_RH[row, h] * (k[first + j_P[mine], h] @ q[first + i, h])
                if resonating:
                    c = unit_k[first + j_P[mine], h] @ unit_q[first + i, h]
                    logits = logits + rows[row].strength * plain(c, rows[row])
                expected = logits.exp() / logits.exp().sum()
                torch.testing.assert_close(weight_PH[mine, h], expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("kind", ["relu2", "relu", "power", "softmax"])
def test_memories_that_fired(kind: HopfieldKind) -> None:
    """Activations pull as the force does, and shares are those of the energy."""
    torch.manual_seed(0)
    energy = Hopfield(energies.DIM, 9, kind).double()
    g, places, beta = energies._state(), energies._layout("dense", "full"), energies._beta(1.0)
    r_NM, share_NM = energy.memory_activations(g, places, beta)
    terms = energy(g, places, beta)
    torch.testing.assert_close(r_NM @ energy.memories_MD, terms.force_ND)
    torch.testing.assert_close(share_NM.sum(1), torch.ones(len(g), dtype=torch.float64))
    if kind != "softmax":
        without = Hopfield(energies.DIM, 8, kind).double()
        without.memories_MD = torch.nn.Parameter(energy.memories_MD[1:])
        rest_N = without(g, places, beta).parts["hopfield"]
        torch.testing.assert_close(
            (1 - share_NM[:, 0]) * terms.parts["hopfield"], rest_N, rtol=1e-9, atol=1e-12
        )


def _at_rest(name: str) -> tuple[Any, list[Any], list[BatchReasons]]:
    """A network, its items, and all of them at rest together and each alone."""
    network, items = find_architectures()[name].build_example(0)
    network.eval()

    def rest(which: list[int]) -> BatchReasons:
        params = [PARAMS[row] for row in which]
        with record_attention() as heard:
            output = network.infer(network.pack([items[row] for row in which]), params)
        return BatchReasons(network, output, params, heard)

    return network, items, [rest([0, 1, 2]), *(rest([row]) for row in range(3))]


@pytest.mark.parametrize("name", ALL)
def test_batched_equals_single(name: str) -> None:
    _, items, (together, *alone) = _at_rest(name)
    for row in range(len(items)):
        many, one = together.explain_row(row, EVERYTHING), alone[row].explain_row(0, EVERYTHING)
        assert many.num_tokens == one.num_tokens
        for a, b in zip(many.attention, one.attention, strict=True):
            assert a.kind == b.kind
            np.testing.assert_array_equal(a.query_P, b.query_P)
            np.testing.assert_array_equal(a.key_P, b.key_P)
            np.testing.assert_allclose(a.weight_PH, b.weight_PH, atol=1e-5)
        for a, b in zip(many.memories, one.memories, strict=True):
            for part, other in zip(a, b, strict=True):
                np.testing.assert_allclose(part, other, atol=1e-5)
        for a, b in zip(many.energies, one.energies, strict=True):
            assert a.keys() == b.keys()
            for part in a:
                np.testing.assert_allclose(a[part], b[part], rtol=1e-4, atol=1e-4)
    for a, b in zip(together.compute_selectivity(2), alone[2].compute_selectivity(0), strict=True):
        assert a["mean"] == pytest.approx(b["mean"], abs=1e-5)


@pytest.mark.parametrize("name", ALL)
def test_the_whole_adds_up(name: str) -> None:
    """Weights and shares sum to 1, and the energies of all tokens to that of the row."""
    network, items, (together, *_) = _at_rest(name)
    assert get_supported_reasons(network) == {"attention", "memories"}
    for row in range(len(items)):
        reasons = together.explain_row(row, EVERYTHING)
        assert reasons.attention
        for seen in reasons.attention:
            total = np.zeros((seen.query_P.max(initial=-1) + 1, seen.weight_PH.shape[1]))
            np.add.at(total, seen.query_P, seen.weight_PH)
            there = np.unique(seen.query_P)
            if seen.kind == "attention":
                np.testing.assert_allclose(total[there], 1, atol=1e-5)
            assert (total < 1 + 1e-5).all()
        for fired in reasons.memories:
            total = fired.share_KM.sum(1)
            assert (np.isclose(total, 1, atol=1e-5) | (total == 0)).all()
            np.testing.assert_allclose(fired.share_KM.mean(0), fired.mean_share_M, atol=1e-6)
        for rest, energies_ in zip(together._blocks, reasons.energies, strict=True):
            end = int(rest.solution.steps_R[row])
            for part, energy in rest.solution.trace[end].components.items():
                assert energies_[part].sum() == pytest.approx(
                    float(energy[row]), rel=1e-4, abs=1e-4
                )


@pytest.mark.parametrize("name", ALL)
def test_some_tokens_are_those_of_all(name: str) -> None:
    _, items, (together, *_) = _at_rest(name)
    row = len(items) - 1
    whole = together.explain_row(row, EVERYTHING)
    some = np.array([3, 0])
    part = together.explain_row(row, EVERYTHING, some)
    assert part.num_tokens == whole.num_tokens
    for a, b in zip(part.attention, whole.attention, strict=True):
        mine = np.isin(b.query_P, some)
        np.testing.assert_array_equal(a.weight_PH, b.weight_PH[mine])
        assert a.resonance_PH is None
        assert b.resonance_PH is not None  # this row resonates
    for a, b in zip(part.memories, whole.memories, strict=True):
        np.testing.assert_allclose(a.share_KM, b.share_KM[some], atol=1e-6)
        np.testing.assert_array_equal(a.mean_share_M, b.mean_share_M)
    for a, b in zip(part.energies, whole.energies, strict=True):
        for name_ in a:
            np.testing.assert_array_equal(a[name_], b[name_][some])


def test_the_mean_of_windows() -> None:
    _, _, (together, *_) = _at_rest("et-image")
    one, two = (
        together.explain_row(row, ("attention", "memories", "components")) for row in (0, 1)
    )
    mean = one.add(two).divide(2)
    both = (one.attention[0].weight_PH + two.attention[0].weight_PH) / 2
    np.testing.assert_allclose(mean.attention[0].weight_PH, both)
    np.testing.assert_allclose(
        mean.memories[0].mean_share_M,
        (one.memories[0].mean_share_M + two.memories[0].mean_share_M) / 2,
    )
    np.testing.assert_allclose(
        mean.energies[0]["attention"],
        (one.energies[0]["attention"] + two.energies[0]["attention"]) / 2,
    )


@pytest.mark.parametrize("mask", ["sparse", "isolated"])
@pytest.mark.parametrize("layout", ["dense", "edge_list"])
def test_what_resonated(layout: str, mask: str) -> None:
    """Cosines, crossing rates and the best pairs of each row, against every pair by itself."""
    rows = [turned("sigmoid", 2), turned("centred", 1, 1), turned("tanh", 1, 2)]
    places = energies._layout(layout, mask).resonating(prior_of(*rows))
    q, k, _ = (t.detach() for t in layouts._inputs(18))
    assert isinstance(places, Pairwise)
    cosines = places.cosines(q, k)

    def pairs(row: int) -> PairValues:
        return places.pairs(cosines, row)

    attended = AttentionRecord("attention", 2, places.num_pairs, pairs, places.prior, pairs)
    for row, one in enumerate(rows):
        seen = energies._mask(mask)[row]
        mine = slice(row * energies.LENGTH, (row + 1) * energies.LENGTH)
        told = compute_selectivity(attended, row)
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
            assert head["mean"] == pytest.approx(float(plain(c[seen], one).mean()))
            best = c[seen].sort(descending=True).values[:5].tolist()
            assert [pair["cosine"] for pair in head["pairs"]] == pytest.approx(best)
            for pair in head["pairs"]:
                i, j = pair["token"], pair["seen"]
                assert seen[i, j]
                assert pair["cosine"] == pytest.approx(float(c[i, j]))
                assert pair["resonance"] == pytest.approx(float(plain(c[i, j], one)))
