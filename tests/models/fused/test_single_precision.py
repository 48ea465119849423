"""Fused systems in single precision, as models use them, see and move as torch does."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch

from models.dynamics import Evaluation, PreviousStep
from models.fused.system import FusedSystem
from models.layouts import Dense, EdgeList, Layout
from tests.support.fused_blocks import (
    ENERGIES,
    MOTIONS,
    build_block,
    make_layouts,
    make_masks,
    make_states,
    require_same,
)

pytestmark = pytest.mark.usefixtures("threads")


def to_single(layout: Layout) -> Layout:
    """The layout with biases in single precision."""
    if isinstance(layout, EdgeList) and layout.bias_EH is not None:
        return layout.weighed(None, layout.bias_EH.float())
    return layout


# The kernels that models use; `tests.support.compile_kernels` compiles them before the tests.
_SERVED = [
    *product(("et", "power"), ("descent",), ("edges", "biased", "others", "some")),
    *product(("et", "cdat"), ("controlled",), ("edges", "biased")),
]


@pytest.mark.parametrize(("energy", "motion", "layout"), _SERVED)
@torch.no_grad()
def test_in_single_precision_it_sees_and_moves_as_torch_does(
    energy: str, motion: str, layout: str
) -> None:
    block = build_block(ENERGIES[energy](), MOTIONS[motion]()).float()
    places = to_single(make_layouts()[layout])
    x_ND, beta_RH = (part.float() for part in make_states())
    beta_RH /= 10  # logits are smaller, and less is rounded
    fused, plain = FusedSystem.of_block(block, block.build_backend()), block.build_backend()
    tolerance, steps_R = 2e-3, torch.tensor([0.1, 0.2, 0.3])
    for with_force in (False, True):
        seen = plain.evaluate_with_stats(x_ND, places, beta_RH, with_force, None)
        actual = fused.evaluate_with_stats(x_ND, places, beta_RH, with_force, None)
        require_same(actual, seen, tolerance)
    force_ND = seen.terms.force_ND
    assert force_ND is not None
    moved, known = (
        system.step(x_ND, places, steps_R, force_ND, seen.control_ND) for system in (fused, plain)
    )
    for one, other in zip(moved, known, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
    came = PreviousStep(known[1], seen.control_ND, seen.g_ND)
    both = (
        system.evaluate_with_stats(known[0], places, beta_RH, True, came)
        for system in (fused, plain)
    )
    require_same(*both, tolerance)


@pytest.mark.parametrize("layout", ["edges", "others"])
@torch.no_grad()
def test_what_is_not_finite_is_seen(layout: str) -> None:
    block, places = build_block(ENERGIES["et"]()).float(), make_layouts()[layout]
    x_ND, beta_RH = (part.float() for part in make_states())
    x_ND[0, 0], x_ND[-1, 0] = torch.nan, torch.inf
    seen = FusedSystem.of_block(block, block.build_backend()).evaluate_with_stats(
        x_ND, places, beta_RH, True, None
    )
    known = block.build_backend().evaluate_with_stats(x_ND, places, beta_RH, True, None)
    for actual, other in (
        (seen.squared_norm_R, known.squared_norm_R),
        *zip(seen.components.values(), known.components.values(), strict=True),
    ):
        assert np.isfinite(actual).tolist() == np.isfinite(other).tolist()
    assert not np.isfinite(seen.squared_norm_R[[0, -1]]).any()
    assert np.isfinite(seen.squared_norm_R[1])


# No model uses the kernel where all see all.
@torch.no_grad()
@pytest.mark.parametrize("mask", [pytest.param("all", marks=pytest.mark.slow), "others", "some"])
def test_pictures_in_single_precision_are_as_near_as_torch(mask: str) -> None:
    block, places = build_block(ENERGIES["et"]()), Dense(make_masks()[mask])
    x_ND, beta_RH = make_states()
    known = block.build_backend().evaluate_with_stats(x_ND, places, beta_RH, True, None)
    block = block.float()
    plain = block.build_backend()
    systems = FusedSystem.of_block(block, plain), plain
    seen = [
        each.evaluate_with_stats(x_ND.float(), places, beta_RH.float(), True, None)
        for each in systems
    ]

    def off(actual: Evaluation) -> np.ndarray:
        force_ND, known_ND = actual.terms.force_ND, known.terms.force_ND
        assert force_ND is not None
        assert known_ND is not None
        components = actual.components.items()
        return np.array(
            [
                float((force_ND - known_ND).norm() / known_ND.norm()),
                *(np.abs(of_R / known.components[name] - 1).max() for name, of_R in components),
            ]
        )

    assert (off(seen[0]) < 2 * off(seen[1]) + 1e-7).all()
