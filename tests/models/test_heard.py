"""What is told of resonance: against every pair by itself."""

from __future__ import annotations

import pytest
import torch

from models.heard import listening, selectivity
from tests.models import test_energies as energies
from tests.models import test_layouts as layouts
from tests.models.resonating import plain, prior_of, turned


@pytest.mark.parametrize("mask", ["sparse", "isolated"])
@pytest.mark.parametrize("layout", ["dense", "edge_list"])
def test_what_is_heard(layout: str, mask: str) -> None:
    """Cosines, crossing rates and the best pairs of each row, against every pair by itself."""
    rows = [turned("sigmoid", 2), turned("centred", 1, 1), turned("tanh", 1, 2)]
    places = energies._layout(layout, mask).resonating(prior_of(*rows))
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
            assert head["mean"] == pytest.approx(float(plain(c[seen], one).mean()))
            best = c[seen].sort(descending=True).values[:5].tolist()
            assert [pair["cosine"] for pair in head["pairs"]] == pytest.approx(best)
            for pair in head["pairs"]:
                i, j = pair["token"], pair["seen"]
                assert seen[i, j]
                assert pair["cosine"] == pytest.approx(float(c[i, j]))
                assert pair["resonance"] == pytest.approx(float(plain(c[i, j], one)))
