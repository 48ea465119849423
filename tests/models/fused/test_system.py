"""Fused systems in double precision see and move as torch does, and leave the rest to torch."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch

from models.base import DynamicsParams, Solver
from models.dynamics import PreviousStep, Relaxation, StepBackend
from models.energies import AssociativeMemory, Hopfield, Sum
from models.fused import kernels, parallel, system
from models.fused.system import FusedSystem, force_parallel_path
from models.kernels import dense_attention, edge_attention, exponential
from models.layouts import Dense, EdgeList, Layout
from models.resonance import Resonance
from tests.support.fused_blocks import (
    DIM,
    ENERGIES,
    HEADS,
    MOTIONS,
    ROWS,
    build_block,
    make_edges,
    make_layouts,
    make_masks,
    make_states,
    require_same,
)
from tests.support.interpreted import interpret

pytestmark = pytest.mark.usefixtures("threads")


@pytest.fixture(params=["interpreted", pytest.param("compiled", marks=pytest.mark.slow)])
def doubles(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """How kernels run in double precision, which no model has. To compile them takes about ten
    seconds for each pair of energy and layout."""
    if request.param == "interpreted":
        interpret(monkeypatch, kernels, parallel, dense_attention, edge_attention, exponential)


# Without attention, or without memories, on each kind of pairs once.
_WHOLE, _HALF = ("et", "cdat", "power"), ("softmax", "attention")
_SEEN = [*product(_WHOLE, make_layouts()), *product(_HALF, ("biased", "some"))]


@pytest.mark.usefixtures("doubles")
@pytest.mark.parametrize(("energy", "layout"), _SEEN)
@torch.no_grad()
def test_it_sees_what_torch_sees(energy: str, layout: str) -> None:
    block, places = build_block(ENERGIES[energy]()), make_layouts()[layout]
    x_ND, beta_RH = make_states()
    fused, plain = FusedSystem.of_block(block, block.build_backend()), block.build_backend()
    assert isinstance(fused, FusedSystem)
    for with_force in (True, False):
        seen = fused.evaluate_with_stats(x_ND, places, beta_RH, with_force, None)
        require_same(seen, plain.evaluate_with_stats(x_ND, places, beta_RH, with_force, None))


@pytest.mark.usefixtures("doubles")
@pytest.mark.parametrize("motion", MOTIONS)
@pytest.mark.parametrize("energy", ["et", "cdat"])
@torch.no_grad()
def test_it_moves_as_torch_does(energy: str, motion: str) -> None:
    block, places = build_block(ENERGIES[energy](), MOTIONS[motion]()), make_edges()
    x_ND, beta_RH = make_states()
    steps_R = torch.tensor([0.1, 0.2, 0.3], dtype=torch.float64)
    fused, plain = FusedSystem.of_block(block, block.build_backend()), block.build_backend()
    seen = plain.evaluate_with_stats(x_ND, places, beta_RH, True, None)
    require_same(fused.evaluate_with_stats(x_ND, places, beta_RH, True, None), seen)
    force_ND = seen.terms.force_ND
    assert force_ND is not None
    moved, known = (
        system.step(x_ND, places, steps_R, force_ND, seen.control_ND) for system in (fused, plain)
    )
    for one, other in zip(moved, known, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)
    came = PreviousStep(known[1], seen.control_ND, seen.g_ND)
    both = (
        system.evaluate_with_stats(known[0], places, beta_RH, True, came)
        for system in (fused, plain)
    )
    require_same(*both)


class _Counting(StepBackend):
    """Counts who is asked."""

    looks = 0

    def evaluate(self, *args, **kwargs):
        type(self).looks += 1
        return super().evaluate(*args, **kwargs)


@pytest.mark.usefixtures("doubles")
@torch.no_grad()
def test_the_other_looks_where_it_cannot(monkeypatch: pytest.MonkeyPatch) -> None:
    block, edges = build_block(ENERGIES["et"]()), make_edges()
    plain = block.build_backend()
    other = _Counting(plain.energy, plain.motion, plain.norm, plain.energy_fn)
    fused = FusedSystem.of_block(block, other)
    x_ND, beta_RH = make_states()

    def looks(x_ND: torch.Tensor, layout: Layout, beta_RH: torch.Tensor) -> int:
        before = _Counting.looks
        seen = fused.evaluate_with_stats(x_ND, layout, beta_RH, True, None)
        require_same(seen, plain.evaluate_with_stats(x_ND, layout, beta_RH, True, None), 1e-5)
        return _Counting.looks - before

    assert looks(x_ND, edges, beta_RH) == 0
    prior = block.resonant([Resonance(strength=2.0)], beta_RH)
    assert looks(x_ND, edges.resonating(prior), beta_RH) == 1
    dense = Dense(make_masks()["some"])
    assert looks(x_ND, dense, beta_RH) == 0
    assert looks(x_ND, dense.resonating(prior), beta_RH) == 1
    weight = torch.rand(ROWS, HEADS, 100, 100, dtype=torch.float64)
    assert looks(x_ND, dense.weighed(weight), beta_RH) == 1
    assert looks(x_ND, dense.weighed(None, weight), beta_RH) == 1
    monkeypatch.setattr(system, "_NARROW", 0)
    assert looks(x_ND, edges, beta_RH) == 0
    assert looks(x_ND, dense, beta_RH) == 1


@pytest.mark.usefixtures("doubles")
@torch.no_grad()
@pytest.mark.parametrize("layout", ["edges", "all"])
def test_what_is_little_is_looked_at_by_one(
    layout: str, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    block, places = build_block(ENERGIES["et"]()), make_layouts()[layout]
    x_ND, beta_RH = make_states()
    fused, asked = FusedSystem.of_block(block, block.build_backend()), []

    def counted(threads: int, *args) -> None:
        asked.append(threads)
        in_parts(threads, *args)

    in_parts = parallel.see_in_parts
    monkeypatch.setattr(parallel, "see_in_parts", counted)
    known = fused.evaluate_with_stats(x_ND, places, beta_RH, True, None)
    assert asked == [threads] * (threads > 1)
    asked.clear()
    monkeypatch.setattr(system, "_MUCH", 1 << 40)
    monkeypatch.setattr(system, "_LITTLE", 1 << 40)
    require_same(fused.evaluate_with_stats(x_ND, places, beta_RH, True, None), known)
    assert not asked
    with force_parallel_path():
        require_same(fused.evaluate_with_stats(x_ND, places, beta_RH, True, None), known)
    assert asked == [1]


@pytest.mark.parametrize(
    ("sizes", "known"),
    [
        ([], []),
        ([300], [300]),
        ([300, 10, 20, 226, 1, 255, 257, 3], [300, 256, 256, 257, 3]),
        ([100] * 5, [200, 200, 100]),
    ],
)
def test_small_rows_are_looked_at_some_at_a_time(sizes: list[int], known: list[int]) -> None:
    row_of_N = np.repeat(np.arange(len(sizes)), sizes)
    ends = [0]
    while ends[-1] < len(row_of_N):
        ends.append(kernels.end_of(row_of_N, ends[-1]))
    assert np.diff(ends).tolist() == known


@pytest.mark.usefixtures("doubles")
@torch.no_grad()
@pytest.mark.parametrize("layout", ["edges", "both", "no edges"])
@pytest.mark.parametrize("most", [1, 50])
def test_edges_are_looked_at_some_at_a_time(
    most: int, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In parts; else all at once."""
    block, places = build_block(ENERGIES["attention"]()), make_layouts()[layout]
    assert isinstance(places, EdgeList)
    x_ND, beta_RH = make_states()
    fused = FusedSystem.of_block(block, block.build_backend())
    monkeypatch.setattr(parallel, "_AT_A_TIME", most)
    monkeypatch.setattr(edge_attention, "_PARALLEL_WORK", 0)
    with force_parallel_path():
        found = fused.evaluate_with_stats(x_ND, places, beta_RH, True, None)
    runs = parallel.runs_of(places.indptr_N1.numpy(), most)
    counts = [int(places.indptr_N1[last] - places.indptr_N1[first]) for first, last in runs]
    assert sum(counts) == places.num_edges
    rows = [last - first for first, last in runs]
    assert all(count <= most or row == 1 for count, row in zip(counts, rows, strict=True))
    monkeypatch.setattr(system, "_MUCH", 1 << 40)
    require_same(found, fused.evaluate_with_stats(x_ND, places, beta_RH, True, None))


@torch.no_grad()
def test_a_few_pictures_are_for_the_other_where_there_are_threads(
    threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    block, pictures = build_block(ENERGIES["et"]()), Dense(make_masks()["all"])
    x_ND, _ = make_states()
    fused = FusedSystem.of_block(block, block.build_backend())
    assert isinstance(fused, FusedSystem)

    def takes(layout: Layout) -> bool:
        return fused.takes(x_ND, layout)

    for little, much, taken in ((1 << 40, 1 << 41, True), (0, 1 << 40, False), (0, 0, True)):
        monkeypatch.setattr(system, "_LITTLE", little)
        monkeypatch.setattr(system, "_MUCH", much)
        assert takes(pictures) == (taken or threads == 1)
        assert takes(make_edges())


def test_parts_that_it_does_not_know_leave_all_to_the_other() -> None:
    twice = Sum(Hopfield(DIM, 7), Hopfield(DIM, 5))
    for energy in (twice, Sum(AssociativeMemory())):
        block = build_block(energy)
        plain = block.build_backend()
        assert FusedSystem.of_block(block, plain) is plain
    block = build_block(ENERGIES["et"]())
    block.norm = torch.nn.Identity()
    plain = block.build_backend()
    assert FusedSystem.of_block(block, plain) is plain


@pytest.mark.usefixtures("doubles")
@pytest.mark.parametrize("solver", ["euler", "descent"])
@torch.no_grad()
def test_momentum_and_rows_that_stay_are_as_ever(solver: Solver) -> None:
    block, places = build_block(ENERGIES["cdat"](), MOTIONS["controlled"]()), make_edges()
    x_ND, _ = make_states()
    params = block.resolve_params(
        [
            DynamicsParams(steps=6, solver="nesterov"),
            DynamicsParams(steps=2),
            DynamicsParams(steps=6, step_size=5.0, solver=solver),
        ]
    )
    fused, plain = FusedSystem.of_block(block, block.build_backend()), block.build_backend()
    ways = [Relaxation.from_state(system, x_ND, places, params) for system in (fused, plain)]
    while ways[0].moving_rows:
        for way in ways:
            way.step()
    found, known = (way.solution() for way in ways)
    assert found.stop_reasons == known.stop_reasons
    torch.testing.assert_close(found.x_ND, known.x_ND, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(
        [m.storage_R for m in found.trace], [m.storage_R for m in known.trace], 1e-9
    )
