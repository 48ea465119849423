"""The loop: energies fall, knobs are per row, and every stop has its reason."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from models.dynamics import (
    ControlledDynamics,
    Descent,
    EnergyLayerNorm,
    RowParams,
    Solution,
    StopReason,
    relax_differentiable,
    solve,
)
from models.energies import (
    Balanced,
    DotProductAttention,
    Energy,
    Hopfield,
    Sum,
    Terms,
    VonMisesFisherAttention,
)
from models.layouts import EdgeList, Layout
from tests.support.stop_when import StopWhen

DIM = 8


def _graphs(count: int, seed: int) -> tuple[EdgeList, torch.Tensor]:
    """`count` random graphs of 1 to 20 nodes and any density, packed, with their states."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 21, count)
    offsets = np.r_[0, np.cumsum(sizes)]
    edges = [
        offset + rng.integers(0, n, (2, rng.integers(0, n * n + 1)))
        for n, offset in zip(sizes, offsets, strict=False)
    ]
    layout = EdgeList.from_edges(
        np.concatenate(edges, 1),
        int(offsets[-1]),
        row_of_N=torch.from_numpy(np.repeat(np.arange(count), sizes)),
        rows=count,
    )
    x = torch.from_numpy(rng.standard_normal((int(offsets[-1]), DIM)))
    return layout, x


def _params(rows: int, **changed) -> RowParams:
    values = {"steps": 40, "beta": 0.8, "step_size": 0.02, "tolerance": 0.0, "noise": 0.0} | changed

    def column(name: str) -> torch.Tensor:
        return torch.as_tensor(values[name], dtype=torch.float64).expand(rows).clone()

    return RowParams(
        np.broadcast_to(np.asarray(values["steps"], np.int64), rows),
        column("beta")[:, None].expand(rows, 2).clone(),
        column("step_size"),
        column("tolerance").numpy(),
        column("noise"),
        np.broadcast_to(np.asarray(values.get("nesterov", False)), rows),
        np.broadcast_to(np.asarray(values.get("descent", False)), rows),
        tuple(values.get("seeds", range(rows))),
    )


def _et(seed: int = 0):
    torch.manual_seed(seed)
    energy = Sum(DotProductAttention(DIM, 2, 4), Hopfield(DIM, 12, "relu2"))
    return energy.double(), Descent(), EnergyLayerNorm(DIM).double()


def _cdat(seed: int = 0, kind="relu2"):
    torch.manual_seed(seed)
    energy = Balanced(VonMisesFisherAttention(DIM, 2, 4), Hopfield(DIM, 12, kind))
    motion = ControlledDynamics(DIM, coupling_rank=3, locality=(0.1, 1.5))
    with torch.no_grad():
        motion.strength_r.normal_()
    return energy.double(), motion.double(), EnergyLayerNorm(DIM).double()


def _rises(values: list[np.ndarray]) -> float:
    series = np.stack(values)
    scale = np.abs(series).max(0).clip(min=1)
    return float((np.diff(series, axis=0) / scale).max())


@pytest.mark.parametrize("nesterov", [False, True], ids=["euler", "nesterov"])
@pytest.mark.parametrize("seed", range(3))
def test_energy_never_rises_in_et(seed: int, nesterov: bool) -> None:
    layout, x = _graphs(150, seed)
    solution = solve(*_et(seed), x, layout, _params(150, nesterov=nesterov))
    assert _rises([moment.energy_R for moment in solution.trace]) < 1e-12
    dropped = solution.trace[0].energy_R - solution.trace[-1].energy_R
    assert (dropped > 0).all()
    assert set(solution.energy_rose) == {False}


@pytest.mark.parametrize("nesterov", [False, True], ids=["euler", "nesterov"])
@pytest.mark.parametrize("kind", ["relu2", "softmax"])
@pytest.mark.parametrize("seed", range(3))
def test_storage_never_rises_in_cdat(seed: int, kind: str, nesterov: bool) -> None:
    """CDAT theorem 3.3, while its energy itself may rise.

    States start with spread: where damping takes one through zero variance, the norm turns over
    within a step however small, and no discretisation follows it.
    """
    layout, x = _graphs(150, seed)
    params = _params(150, step_size=0.01, nesterov=nesterov)
    solution = solve(*_cdat(seed, kind), 3 * x, layout, params)
    storage = [m.storage_R for m in solution.trace if m.storage_R is not None]
    assert len(storage) == 41
    assert _rises(storage) < 1e-12
    assert set(solution.energy_rose) == {False}


def test_storage_falls_at_the_rate_of_the_theorem() -> None:
    """dV/dt = - x' . M x' with M = dg/dx, CDAT eq. 7, to second order in the step."""
    layout, x = _graphs(1, 3)
    energy, motion, norm = _cdat(3)
    errors = []
    for step in (1e-3, 5e-4):
        params = _params(1, steps=1, step_size=step)
        solution = solve(energy, motion, norm, x, layout, params)
        force = energy(norm(x), layout, params.beta_RH).force_ND
        speed = motion.drift(x, force).detach()
        _, pushed = torch.func.jvp(norm, (x,), (speed,))
        first, last = (m.storage_R for m in solution.trace)
        assert first is not None
        assert last is not None
        lost = float((speed * pushed).sum().detach())
        errors.append(abs(float(last[0] - first[0]) / step + lost))
    assert errors[0] / errors[1] == pytest.approx(2, abs=0.2)
    assert errors[1] < 0.05


def test_storage_never_rises_with_a_kinked_energy() -> None:
    """CDAT eq. 15 has corners, so the theorem holds only up to the step across one."""
    layout, x = _graphs(100, 5)
    solution = solve(*_cdat(5, "relu"), x, layout, _params(100, step_size=1e-3, steps=100))
    storage = np.stack([m.storage_R for m in solution.trace if m.storage_R is not None])
    assert (storage[-1] < storage[0]).all()
    assert np.diff(storage, axis=0).max() < 1e-3 * np.abs(storage).max()


def test_a_rising_energy_would_be_noticed() -> None:
    layout, x = _graphs(20, 0)
    energy, motion, norm = _et()
    solution = solve(energy, motion, norm, x, layout, _params(20, step_size=-0.02))
    assert _rises([moment.energy_R for moment in solution.trace]) > 1e-6
    assert set(solution.energy_rose) == {True}


@pytest.mark.parametrize("make", [_et, _cdat])
@pytest.mark.parametrize("step_size", [0.02, 0.5, 20.0])
def test_whether_the_energy_rose_is_what_the_trace_says(make: Any, step_size: float) -> None:
    """Of V where the motion is controlled, whatever E does."""
    layout, x = _graphs(60, 4)
    solution = solve(*make(), x, layout, _params(60, step_size=step_size))
    moments = [m.energy_R if m.storage_R is None else m.storage_R for m in solution.trace]
    before_TR, after_TR = np.stack(moments[:-1]), np.stack(moments[1:])
    rose_R = (after_TR > before_TR + 1e-12 * np.abs(before_TR)).any(0)
    diverged_R = np.array([reason is StopReason.DIVERGED for reason in solution.stop_reasons])
    assert list(solution.energy_rose) == (rose_R | diverged_R).tolist()
    assert rose_R.any() or make is _et or step_size < 1


def test_rounding_does_not_raise_the_energy() -> None:
    """In float32 it goes up and down by some units in the last place where the state rests."""
    layout, x = _graphs(60, 4)
    params = _params(60, steps=1500, step_size=0.02)
    double = solve(*_cdat(), 3 * x, layout, params)
    single_params = replace(
        params, beta_RH=params.beta_RH.float(), step_size_R=params.step_size_R.float()
    )
    energy, motion, norm = (part.float() for part in _cdat())
    single = solve(energy, motion, norm, (3 * x).float(), layout, single_params)
    storage = np.stack([m.storage_R for m in single.trace if m.storage_R is not None])
    rounded_R = (np.diff(storage, axis=0) > 0).any(0)
    assert set(double.energy_rose) == {False, True}
    assert single.energy_rose == double.energy_rose
    assert rounded_R.sum() > np.sum(single.energy_rose)


def test_with_noise_or_without_steps_it_is_not_known_whether_the_energy_rose() -> None:
    layout, x = _graphs(3, 0)
    params = _params(3, noise=torch.tensor([0.5, 0.0, 0.0]), steps=np.array([40, 0, 40]))
    assert solve(*_et(), x, layout, params).energy_rose == (None, None, False)


def test_coupling_is_symmetric_and_of_low_rank() -> None:
    motion = _cdat()[1]
    bare = ControlledDynamics(DIM, coupling_rank=3).double()
    with torch.no_grad():
        bare.strength_r.normal_()
    for m in (motion, bare):
        torch.testing.assert_close(m.coupling(), m.coupling().T)
    assert torch.linalg.matrix_rank(bare.coupling()) == 3
    assert motion.omega.item() > 0
    x = torch.randn(5, DIM, dtype=torch.float64)
    expected = (1 + motion.omega) * x - x @ motion.coupling()
    torch.testing.assert_close(motion.control(x), expected)


def test_euler_converges_with_order_one() -> None:
    """Without energy CDAT is linear, x(t) = exp((W - (1 + omega) I) t) x(0)."""
    energy, motion, norm = _cdat()
    layout, x = _graphs(1, 0)
    with torch.no_grad():
        for parameter in energy.parameters():
            parameter.zero_()
    rate = motion.coupling() - (1 + motion.omega) * torch.eye(DIM, dtype=torch.float64)
    exact = (x @ torch.linalg.matrix_exp(rate)).detach()
    errors = [
        float(
            (
                solve(energy, motion, norm, x, layout, _params(1, steps=n, step_size=1 / n)).x_ND
                - exact
            ).norm()
        )
        for n in (50, 100, 200)
    ]
    assert errors[0] / errors[1] == pytest.approx(2, abs=0.1)
    assert errors[1] / errors[2] == pytest.approx(2, abs=0.1)


def _rows_equal(many: Solution, one: Solution, layout: EdgeList, row: int) -> None:
    torch.testing.assert_close(many.x_ND[layout.row_of_N == row], one.x_ND, rtol=1e-10, atol=1e-10)
    assert many.steps_R[row] == one.steps_R[0]
    assert many.stop_reasons[row] == one.stop_reasons[0]


def test_knobs_are_per_row() -> None:
    """Each row of a mixed batch ends where it ends alone."""
    rng = np.random.default_rng(0)
    parts = [rng.integers(0, 6, (2, 12)) for _ in range(4)]
    layout = EdgeList.from_edges(
        np.concatenate([p + 6 * i for i, p in enumerate(parts)], 1),
        24,
        row_of_N=torch.arange(4).repeat_interleave(6),
        rows=4,
    )
    x = torch.from_numpy(rng.standard_normal((24, DIM)))
    changed = {
        "steps": torch.tensor([0, 3, 9, 200]),
        "beta": torch.tensor([0.5, 1.0, 2.0, 0.7]),
        "step_size": torch.tensor([0.1, 0.05, 0.02, 0.2]),
        "tolerance": torch.tensor([0.0, 0.0, 0.0, 0.4]),
        "noise": torch.tensor([0.0, 0.3, 0.0, 0.0]),
    }
    many = solve(*_cdat(), x, layout, _params(4, **changed, seeds=(7, 8, 9, 10)))
    for row, part in enumerate(parts):
        alone = {name: value[row] for name, value in changed.items()}
        one = solve(
            *_cdat(),
            x[6 * row : 6 * row + 6],
            EdgeList.from_edges(part, 6),
            _params(1, **alone, seeds=(7 + row,)),
        )
        _rows_equal(many, one, layout, row)
    assert many.steps_R.tolist()[:3] == [0, 3, 9]
    assert many.stop_reasons[3] is StopReason.CONVERGED
    assert many.steps_R[3] < 200
    assert many.residual_R[3] < 0.4


class _Bowl(Energy):
    """E = g . H g / 2, H of any spectrum."""

    def __init__(self, curved_D: list[float]) -> None:
        super().__init__()
        self.curved_D = torch.tensor(curved_D, dtype=torch.float64)

    def forward(
        self, g_ND: torch.Tensor, layout: Layout, beta_RH: torch.Tensor, with_force: bool = True
    ) -> Terms:
        force_ND = -self.curved_D * g_ND
        return Terms({"bowl": -(force_ND * g_ND).sum(-1) / 2}, force_ND)


def _in_a_bowl(
    x: torch.Tensor, curved_D: list[float], step_size: float, **changed: Any
) -> Solution:
    layout = EdgeList.from_edges(
        np.zeros((2, 0), np.int64), len(x), row_of_N=torch.arange(len(x)), rows=len(x)
    )
    params = _params(len(x), step_size=step_size, **changed)
    return solve(_Bowl(curved_D), Descent(), torch.nn.Identity(), x, layout, params)


def test_momentum_is_that_of_the_method() -> None:
    """Written out, with its restarts: a bowl in which it is carried up the other side."""
    curved, alpha, x = [1.0, 9.0], 0.1, torch.tensor([[3.0, 1.0]], dtype=torch.float64)
    found = [
        _in_a_bowl(x, curved, alpha, steps=steps, nesterov=True).x_ND[0] for steps in range(40)
    ]
    at, before, count, lost = x[0], x[0], 0, 0
    curved_D = torch.tensor(curved, dtype=torch.float64)
    for t in range(40):
        torch.testing.assert_close(found[t], at, rtol=1e-12, atol=1e-12)
        plain = at - alpha * curved_D * at
        ahead = plain + count / (count + 3) * (plain - before)
        if (curved_D * ahead**2).sum() > (curved_D * at**2).sum():
            count, lost = 0, lost + 1
        else:
            at, before, count = ahead, plain, count + 1
    assert lost > 1


def test_momentum_saves_steps() -> None:
    """Of a hundred times as long a way across the bowl as down: about the root of that."""
    x = torch.from_numpy(np.random.default_rng(0).standard_normal((50, 2)))
    asked = {"curved_D": [0.1, 10.0], "step_size": 0.1, "tolerance": 0.01, "steps": 10_000}
    euler, nesterov = (_in_a_bowl(x, **asked, nesterov=on) for on in (False, True))
    for solution in (euler, nesterov):
        assert set(solution.stop_reasons) == {StopReason.CONVERGED}
    assert 3 * nesterov.steps_R.mean() < euler.steps_R.mean()
    mixed = _in_a_bowl(x, **asked, nesterov=np.arange(50) % 2 == 1)
    for row in range(50):
        alone = (euler, nesterov)[row % 2]
        assert mixed.steps_R[row] == alone.steps_R[row]
        assert torch.equal(mixed.x_ND[row], alone.x_ND[row])


def test_what_momentum_throws_out_of_all_bounds_has_not_diverged() -> None:
    """It is given up there; without it such a step size diverges, and is told to."""
    x = torch.tensor([[1.0, 1.0]], dtype=torch.float64)
    thrown = _in_a_bowl(x, [1.0, 1.0], 1.9, steps=200, nesterov=True)
    assert thrown.stop_reasons == (StopReason.STEP_LIMIT,)
    assert _rises([moment.energy_R for moment in thrown.trace]) <= 0
    lost = _in_a_bowl(x, [1.0, 1.0], 1e200, nesterov=True)
    assert lost.stop_reasons == (StopReason.DIVERGED,)


def test_divergence_is_not_convergence() -> None:
    """NaN compares false with every tolerance: a naive test would call this converged."""
    layout, x = _graphs(2, 0)
    energy, motion, norm = _cdat()
    solution = solve(
        energy,
        motion,
        norm,
        x,
        layout,
        _params(2, step_size=torch.tensor([1e200, 0.01]), tolerance=1e-9),
    )
    assert solution.stop_reasons[0] is StopReason.DIVERGED
    assert solution.stop_reasons[1] is StopReason.STEP_LIMIT
    assert solution.energy_rose == (True, False)
    assert solution.x_ND.isfinite().all()
    assert all(np.isfinite(moment.energy_R).all() for moment in solution.trace)


def test_a_state_that_is_not_finite_has_diverged() -> None:
    layout, x = _graphs(2, 0)
    x[0] = torch.nan
    solution = solve(*_et(), x, layout, _params(2))
    assert solution.stop_reasons[0] is StopReason.DIVERGED
    assert solution.steps_R.tolist() == [0, 40]


def test_interrupt_stops_within_a_step() -> None:
    layout, x = _graphs(3, 0)
    asked = iter([None, None, StopReason.CANCELLED])
    solution = solve(*_et(), x, layout, _params(3), StopWhen(lambda: next(asked)))
    assert set(solution.stop_reasons) == {StopReason.CANCELLED}
    assert solution.steps_R.tolist() == [2, 2, 2]


def test_relax_is_solve_without_the_measuring() -> None:
    layout, x = _graphs(5, 1)
    params = _params(5, noise=0.1, steps=torch.tensor([1, 2, 3, 4, 5]))
    for make in (_et, _cdat):
        torch.testing.assert_close(
            relax_differentiable(*make(), x, layout, params), solve(*make(), x, layout, params).x_ND
        )


def test_noise_comes_from_the_seed_of_the_row() -> None:
    layout, x = _graphs(2, 1)
    first, again, other = (
        solve(*_et(), x, layout, _params(2, noise=0.5, seeds=seeds)).x_ND
        for seeds in ((1, 2), (1, 2), (1, 3))
    )
    mine = layout.row_of_N == 0
    assert torch.equal(first, again)
    assert torch.equal(first[mine], other[mine])
    assert not torch.equal(first[~mine], other[~mine])
