"""Small blocks, layouts and states, by which fused systems are compared with torch."""

from __future__ import annotations

import numpy as np
import torch

from models.base import Block, Config
from models.dynamics import ControlledDynamics, Descent, EnergyLayerNorm, Evaluation, Motion
from models.energies import (
    Balanced,
    DotProductAttention,
    Energy,
    Hopfield,
    Sum,
    VonMisesFisherAttention,
)
from models.layouts import Dense, EdgeList, Layout

DIM, HEADS, WIDTH, ROWS, TOKENS = 12, 2, 4, 3, 300  # tokens: more than a block of them
ENERGIES = {
    "et": lambda: Sum(DotProductAttention(DIM, HEADS, WIDTH), Hopfield(DIM, 7)),
    "cdat": lambda: Balanced(VonMisesFisherAttention(DIM, HEADS, WIDTH), Hopfield(DIM, 7, "relu")),
    "power": lambda: Sum(Hopfield(DIM, 7, "power"), DotProductAttention(DIM, HEADS, WIDTH)),
    "softmax": lambda: Sum(Hopfield(DIM, 7, "softmax")),
    "attention": lambda: VonMisesFisherAttention(DIM, HEADS, WIDTH),
}
MOTIONS = {
    "descent": Descent,
    "controlled": lambda: ControlledDynamics(DIM, 3),
    "local": lambda: ControlledDynamics(DIM, 2, locality=(0.3, 2.0)),
    "uncoupled": lambda: ControlledDynamics(DIM, 0, inhibition=False),
}


def build_block(energy: Energy, motion: Motion | None = None) -> Block:
    torch.manual_seed(1)
    config = Config(dim=DIM, heads=HEADS, head_dim=WIDTH, memories=7, step_size=0.1)
    block = Block(energy, motion or Descent(), EnergyLayerNorm(DIM), config)
    with torch.no_grad():
        for parameter in block.parameters():
            parameter.normal_()
    return block.double()


def make_edges(seed: int = 0) -> EdgeList:
    rng = np.random.default_rng(seed)
    row_of_N = torch.from_numpy(np.sort(rng.integers(0, ROWS, TOKENS)))
    pairs = rng.integers(0, TOKENS, (2, 6 * TOKENS))
    same = (row_of_N[pairs[0]] == row_of_N[pairs[1]]).numpy() & (pairs != 5).all(0)
    return EdgeList.from_edges(pairs[:, same], TOKENS, row_of_N=row_of_N, rows=ROWS)


def make_masks() -> dict[str, torch.Tensor]:
    """Which tokens see which: all, all but themselves, and some, of which one sees none."""
    length = TOKENS // ROWS
    all_see = torch.ones(1, length, length, dtype=torch.bool)
    some = torch.rand(ROWS, length, length, generator=torch.manual_seed(6)) < 0.3
    some[1, 4] = False
    return {
        "all": all_see.expand(ROWS, -1, -1),
        "others": (all_see ^ torch.eye(length, dtype=torch.bool)).expand(ROWS, -1, -1),
        "some": some,
    }


def make_layouts() -> dict[str, Layout]:
    edges = make_edges()
    pairs = edges.num_edges, HEADS
    none = EdgeList.from_edges(
        np.zeros((2, 0), np.int64), TOKENS, row_of_N=edges.row_of_N, rows=ROWS
    )
    weight, bias = torch.rand(pairs), torch.randn(pairs, dtype=torch.float64)
    return {
        "edges": edges,
        "weighed": edges.weighed(weight),
        "both": edges.weighed(weight, bias),
        "biased": edges.weighed(None, bias),
        "no edges": none,
        **{name: Dense(mask_RLL) for name, mask_RLL in make_masks().items()},
    }


def make_states(seed: int = 2) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(seed)
    x_ND = torch.randn(TOKENS, DIM, dtype=torch.float64)
    return x_ND, torch.rand(ROWS, HEADS, dtype=torch.float64) + 0.5


def require_same(found: Evaluation, known: Evaluation, tolerance: float = 1e-9) -> None:
    close = {"rtol": tolerance, "atol": tolerance, "equal_nan": True}
    torch.testing.assert_close(found.g_ND, known.g_ND, **close)
    assert found.terms.parts.keys() == known.terms.parts.keys()
    for name, part_N in known.terms.parts.items():
        torch.testing.assert_close(found.terms.parts[name], part_N, **close)
        np.testing.assert_allclose(found.components[name], known.components[name], tolerance)
    pairs = (found.terms.force_ND, known.terms.force_ND), (found.control_ND, known.control_ND)
    for one, other in pairs:
        assert (one is None) == (other is None)
        if one is not None:
            torch.testing.assert_close(one, other, **close)
    for name in ("squared_norm_R", "squared_speed_R", "control_work_R"):
        one, other = getattr(found, name), getattr(known, name)
        assert (one is None) == (other is None)
        if one is not None:
            np.testing.assert_allclose(one, other, tolerance, tolerance)
