"""Steps that are shortened where they would go up."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from models.base import Architecture, DynamicsParams, Output
from models.dynamics import RelaxationBatch, Solution, batch_key
from models.dynamics.relaxation import Relaxation
from models.registry import find_architectures

ALL = sorted(find_architectures())
EPS = np.finfo(np.float32).eps


def _infer(network: Architecture, items: Sequence[object], **params: object) -> Output:
    batch = network.pack(items)
    given = [DynamicsParams(**params)] * batch.rows  # type: ignore[arg-type]
    return network.eval().infer(batch, given)


def _rises(solution: Solution) -> np.ndarray:
    """By how much E, or V where the motion is controlled, rose in its worst step, (R,), in units of
    rounding: `Solution.energy_rose` counts what is above 64."""
    trace = solution.trace
    falling_TR = np.stack([m.energy_R if m.storage_R is None else m.storage_R for m in trace])
    energy_TR = np.stack([m.energy_R for m in trace])
    size_TR = np.abs(energy_TR) + np.abs(falling_TR - energy_TR)
    return (np.diff(falling_TR, axis=0) / (EPS * np.maximum(size_TR[:-1], 1e-30))).max(0)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("step_size", [0.5, 20.0])
@pytest.mark.parametrize("beta_scale", [0.01, 100.0])
def test_no_step_goes_up(name: str, step_size: float, beta_scale: float) -> None:
    network, items = find_architectures()[name].build_example(0)
    given = {"steps": 24, "step_size": step_size, "beta_scale": beta_scale}
    if "beta_scale" in network.config.ignored_params:
        given.pop("beta_scale")
    output = _infer(network, items, solver="descent", **given)
    for solution in output.solutions:
        assert set(solution.energy_rose) == {False}
        assert (_rises(solution) <= 9).all()
        assert (solution.steps_R == 24).all()
        assert torch.isfinite(solution.x_ND).all()


@pytest.mark.parametrize("name", ALL)
def test_it_is_euler_where_eulers_steps_fall(name: str) -> None:
    network, items = find_architectures()[name].build_example(0)
    plain = _infer(network, items, steps=5, step_size=1e-3)
    careful = _infer(network, items, steps=5, step_size=1e-3, solver="descent")
    assert all(set(solution.energy_rose) == {False} for solution in plain.solutions)
    assert torch.equal(plain.logits, careful.logits)


def test_it_is_shortened_where_eulers_steps_rise() -> None:
    network, items = find_architectures()["cdat"].build_example(0)
    wild = {"steps": 30, "step_size": 5.0}
    plain = _infer(network, items, **wild).solutions
    careful = _infer(network, items, solver="descent", **wild).solutions
    assert any(True in solution.energy_rose for solution in plain)
    lower = [
        c.trace[-1].storage_R < p.trace[-1].storage_R for c, p in zip(careful, plain, strict=True)
    ]  # type: ignore[operator]
    assert np.mean(lower) > 0.5


def test_rows_of_other_solvers_in_the_same_call_are_not_changed() -> None:
    network, items = find_architectures()["cdat"].build_example(0)
    batch = network.eval().pack(items)
    params = [
        DynamicsParams(steps=20, step_size=5.0),
        DynamicsParams(steps=20, step_size=5.0, solver="descent"),
        DynamicsParams(steps=20, step_size=0.5, solver="nesterov"),
    ]
    mixed = network.infer(batch, params)
    for row, item in enumerate(items):
        alone = network.infer(network.pack([item]), [params[row]])
        torch.testing.assert_close(
            mixed.logits[batch.row_of_outputs == row], alone.logits, rtol=1e-4, atol=1e-4
        )
        for many, one in zip(mixed.solutions, alone.solutions, strict=True):
            assert many.energy_rose[row] == one.energy_rose[0]


@torch.no_grad()
def test_it_joins_rows_of_its_kind_alone_and_keeps_its_share_of_the_step() -> None:
    network, items = find_architectures()["cdat"].build_example(0)
    block = network.eval().blocks_in_order()[0]
    backend = block.build_backend()

    def start(item: object, **params: object) -> Relaxation:
        batch = network.pack([item])
        x_ND = torch.randn(
            len(batch.row_of_N), network.config.dim, generator=torch.Generator().manual_seed(1)
        )
        resolved = block.resolve_params([DynamicsParams(**params)])  # type: ignore[arg-type]
        return Relaxation.from_state(backend, x_ND, network.build_layouts(batch)[0], resolved)

    given = {"step_size": 5.0, "solver": "descent"}
    assert batch_key(start(items[0], **given)) == batch_key(start(items[2], **given))
    assert batch_key(start(items[0], **given)) != batch_key(start(items[0]))
    alone = start(items[0], steps=12, **given)
    while alone.moving_rows:
        alone.step()
    joined, together = start(items[0], steps=12, **given), RelaxationBatch()
    together.add(joined)
    for _ in range(4):
        together.step()
    together.add(start(items[2], steps=3, **given))
    while len(together):
        together.step()
    assert joined.step_scale_R < 1
    torch.testing.assert_close(joined.x_ND, alone.x_ND, rtol=1e-4, atol=1e-4)
    assert joined.step_scale_R == alone.step_scale_R
