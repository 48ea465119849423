"""What looks and moves in few calls sees what torch sees, and moves as torch does."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch

from models.base import Block, Config, DynamicsParams
from models.dynamics import (
    ControlledDynamics,
    Descent,
    EnergyLayerNorm,
    Evaluation,
    Motion,
    PreviousStep,
    Relaxation,
    StepBackend,
)
from models.energies import (
    AssociativeMemory,
    Balanced,
    DotProductAttention,
    Energy,
    Hopfield,
    Sum,
    VonMisesFisherAttention,
)
from models.fused import kernels, parallel, system
from models.fused.system import FusedSystem, force_parallel_path
from models.kernels import dense_attention, edge_attention, exponential
from models.layouts import Dense, EdgeList, Layout
from models.resonance import Resonance
from tests.support.interpreted import interpret

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


pytestmark = pytest.mark.usefixtures("threads")


@pytest.fixture(params=["interpreted", pytest.param("compiled", marks=pytest.mark.slow)])
def doubles(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """How kernels run in double precision, which no model has. To compile them takes about ten
    seconds for each pair of energy and layout."""
    if request.param == "interpreted":
        interpret(monkeypatch, kernels, parallel, dense_attention, edge_attention, exponential)


def _block(energy: Energy, motion: Motion | None = None) -> Block:
    torch.manual_seed(1)
    config = Config(dim=DIM, heads=HEADS, head_dim=WIDTH, memories=7, step_size=0.1)
    block = Block(energy, motion or Descent(), EnergyLayerNorm(DIM), config)
    with torch.no_grad():
        for parameter in block.parameters():
            parameter.normal_()
    return block.double()


def _edges(seed: int = 0) -> EdgeList:
    rng = np.random.default_rng(seed)
    row_of_N = torch.from_numpy(np.sort(rng.integers(0, ROWS, TOKENS)))
    pairs = rng.integers(0, TOKENS, (2, 6 * TOKENS))
    same = (row_of_N[pairs[0]] == row_of_N[pairs[1]]).numpy() & (pairs != 5).all(0)
    return EdgeList.from_edges(pairs[:, same], TOKENS, row_of_N=row_of_N, rows=ROWS)


def _masks() -> dict[str, torch.Tensor]:
    """Who sees whom: all, all but themselves, and some, of whom one sees nobody."""
    length = TOKENS // ROWS
    all_see = torch.ones(1, length, length, dtype=torch.bool)
    some = torch.rand(ROWS, length, length, generator=torch.manual_seed(6)) < 0.3
    some[1, 4] = False
    return {
        "all": all_see.expand(ROWS, -1, -1),
        "others": (all_see ^ torch.eye(length, dtype=torch.bool)).expand(ROWS, -1, -1),
        "some": some,
    }


def _layouts() -> dict[str, Layout]:
    edges = _edges()
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
        **{name: Dense(mask_RLL) for name, mask_RLL in _masks().items()},
    }


def _states(seed: int = 2) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(seed)
    x_ND = torch.randn(TOKENS, DIM, dtype=torch.float64)
    return x_ND, torch.rand(ROWS, HEADS, dtype=torch.float64) + 0.5


def _same(found: Evaluation, known: Evaluation, tolerance: float = 1e-9) -> None:
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


# Without attention, or without memories, on each kind of pairs once.
_WHOLE, _HALF = ("et", "cdat", "power"), ("softmax", "attention")
_SEEN = [*product(_WHOLE, _layouts()), *product(_HALF, ("biased", "some"))]


@pytest.mark.usefixtures("doubles")
@pytest.mark.parametrize(("energy", "layout"), _SEEN)
@torch.no_grad()
def test_it_sees_what_torch_sees(energy: str, layout: str) -> None:
    block, places = _block(ENERGIES[energy]()), _layouts()[layout]
    x_ND, beta_RH = _states()
    fused, plain = FusedSystem.of_block(block, block.build_backend()), block.build_backend()
    assert isinstance(fused, FusedSystem)
    for with_force in (True, False):
        seen = fused.evaluate_with_stats(x_ND, places, beta_RH, with_force, None)
        _same(seen, plain.evaluate_with_stats(x_ND, places, beta_RH, with_force, None))


@pytest.mark.usefixtures("doubles")
@pytest.mark.parametrize("motion", MOTIONS)
@pytest.mark.parametrize("energy", ["et", "cdat"])
@torch.no_grad()
def test_it_moves_as_torch_does(energy: str, motion: str) -> None:
    block, places = _block(ENERGIES[energy](), MOTIONS[motion]()), _edges()
    x_ND, beta_RH = _states()
    steps_R = torch.tensor([0.1, 0.2, 0.3], dtype=torch.float64)
    fused, plain = FusedSystem.of_block(block, block.build_backend()), block.build_backend()
    seen = plain.evaluate_with_stats(x_ND, places, beta_RH, True, None)
    _same(fused.evaluate_with_stats(x_ND, places, beta_RH, True, None), seen)
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
    _same(*both)


def _single(layout: Layout) -> Layout:
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
    block = _block(ENERGIES[energy](), MOTIONS[motion]()).float()
    places, (x_ND, beta_RH) = _single(_layouts()[layout]), (part.float() for part in _states())
    beta_RH /= 10  # logits are smaller, and less is rounded
    fused, plain = FusedSystem.of_block(block, block.build_backend()), block.build_backend()
    tolerance, steps_R = 2e-3, torch.tensor([0.1, 0.2, 0.3])
    for with_force in (False, True):
        seen = plain.evaluate_with_stats(x_ND, places, beta_RH, with_force, None)
        found = fused.evaluate_with_stats(x_ND, places, beta_RH, with_force, None)
        _same(found, seen, tolerance)
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
    _same(*both, tolerance)


@pytest.mark.parametrize("layout", ["edges", "others"])
@torch.no_grad()
def test_what_is_not_finite_is_seen(layout: str) -> None:
    block, places = _block(ENERGIES["et"]()).float(), _layouts()[layout]
    x_ND, beta_RH = (part.float() for part in _states())
    x_ND[0, 0], x_ND[-1, 0] = torch.nan, torch.inf
    seen = FusedSystem.of_block(block, block.build_backend()).evaluate_with_stats(
        x_ND, places, beta_RH, True, None
    )
    known = block.build_backend().evaluate_with_stats(x_ND, places, beta_RH, True, None)
    for found, other in (
        (seen.squared_norm_R, known.squared_norm_R),
        *zip(seen.components.values(), known.components.values(), strict=True),
    ):
        assert np.isfinite(found).tolist() == np.isfinite(other).tolist()
    assert not np.isfinite(seen.squared_norm_R[[0, -1]]).any()
    assert np.isfinite(seen.squared_norm_R[1])


class _Counting(StepBackend):
    """Counts who is asked."""

    looks = 0

    def evaluate(self, *args, **kwargs):
        type(self).looks += 1
        return super().evaluate(*args, **kwargs)


@pytest.mark.usefixtures("doubles")
@torch.no_grad()
def test_the_other_looks_where_it_cannot(monkeypatch: pytest.MonkeyPatch) -> None:
    block, edges = _block(ENERGIES["et"]()), _edges()
    plain = block.build_backend()
    other = _Counting(plain.energy, plain.motion, plain.norm, plain.energy_fn)
    fused = FusedSystem.of_block(block, other)
    x_ND, beta_RH = _states()

    def looks(x_ND: torch.Tensor, layout: Layout, beta_RH: torch.Tensor) -> int:
        before = _Counting.looks
        seen = fused.evaluate_with_stats(x_ND, layout, beta_RH, True, None)
        _same(seen, plain.evaluate_with_stats(x_ND, layout, beta_RH, True, None), 1e-5)
        return _Counting.looks - before

    assert looks(x_ND, edges, beta_RH) == 0
    prior = block.resonant([Resonance(strength=2.0)], beta_RH)
    assert looks(x_ND, edges.resonating(prior), beta_RH) == 1
    dense = Dense(_masks()["some"])
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
    block, places = _block(ENERGIES["et"]()), _layouts()[layout]
    x_ND, beta_RH = _states()
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
    _same(fused.evaluate_with_stats(x_ND, places, beta_RH, True, None), known)
    assert not asked
    with force_parallel_path():
        _same(fused.evaluate_with_stats(x_ND, places, beta_RH, True, None), known)
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
    block, places = _block(ENERGIES["attention"]()), _layouts()[layout]
    assert isinstance(places, EdgeList)
    x_ND, beta_RH = _states()
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
    _same(found, fused.evaluate_with_stats(x_ND, places, beta_RH, True, None))


@torch.no_grad()
def test_a_few_pictures_are_for_the_other_where_there_are_threads(
    threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    block, pictures = _block(ENERGIES["et"]()), Dense(_masks()["all"])
    x_ND, _ = _states()
    fused = FusedSystem.of_block(block, block.build_backend())
    assert isinstance(fused, FusedSystem)

    def takes(layout: Layout) -> bool:
        return fused.takes(x_ND, layout)

    for little, much, taken in ((1 << 40, 1 << 41, True), (0, 1 << 40, False), (0, 0, True)):
        monkeypatch.setattr(system, "_LITTLE", little)
        monkeypatch.setattr(system, "_MUCH", much)
        assert takes(pictures) == (taken or threads == 1)
        assert takes(_edges())


# No model uses the kernel where all see all.
@torch.no_grad()
@pytest.mark.parametrize("mask", [pytest.param("all", marks=pytest.mark.slow), "others", "some"])
def test_pictures_in_single_precision_are_as_near_as_torch(mask: str) -> None:
    block, places = _block(ENERGIES["et"]()), Dense(_masks()[mask])
    x_ND, beta_RH = _states()
    known = block.build_backend().evaluate_with_stats(x_ND, places, beta_RH, True, None)
    block = block.float()
    plain = block.build_backend()
    systems = FusedSystem.of_block(block, plain), plain
    seen = [
        each.evaluate_with_stats(x_ND.float(), places, beta_RH.float(), True, None)
        for each in systems
    ]

    def off(found: Evaluation) -> np.ndarray:
        force_ND, known_ND = found.terms.force_ND, known.terms.force_ND
        assert force_ND is not None
        assert known_ND is not None
        told = found.components.items()
        return np.array(
            [
                float((force_ND - known_ND).norm() / known_ND.norm()),
                *(np.abs(of_R / known.components[name] - 1).max() for name, of_R in told),
            ]
        )

    assert (off(seen[0]) < 2 * off(seen[1]) + 1e-7).all()


def test_parts_that_it_does_not_know_leave_all_to_the_other() -> None:
    twice = Sum(Hopfield(DIM, 7), Hopfield(DIM, 5))
    for energy in (twice, Sum(AssociativeMemory())):
        block = _block(energy)
        plain = block.build_backend()
        assert FusedSystem.of_block(block, plain) is plain
    block = _block(ENERGIES["et"]())
    block.norm = torch.nn.Identity()
    plain = block.build_backend()
    assert FusedSystem.of_block(block, plain) is plain


@pytest.mark.usefixtures("doubles")
@torch.no_grad()
def test_momentum_and_rows_that_stay_are_as_ever() -> None:
    block, places = _block(ENERGIES["cdat"](), MOTIONS["controlled"]()), _edges()
    x_ND, _ = _states()
    params = block.resolve_params(
        [
            DynamicsParams(steps=6, solver="nesterov"),
            DynamicsParams(steps=2),
            DynamicsParams(steps=6, step_size=5.0),
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
