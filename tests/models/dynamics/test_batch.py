"""Relaxations that step as one batch come to what they come to alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from models.dynamics import (
    Relaxation,
    RelaxationBatch,
    Solution,
    StopReason,
    batch_key,
    solve_system,
)
from models.dynamics.system import StepBackend
from models.layouts import Dense, EdgeList, Layout
from models.resonance import Resonance, ResonanceParameter
from tests.models.dynamics.test_relaxation import DIM, _cdat, _et, _graphs, _params
from tests.support.stop_when import StopWhen

SYSTEMS = {"et": _et(), "cdat": _cdat()}


def _dense(rows: int, seed: int) -> tuple[Dense, torch.Tensor]:
    rng = np.random.default_rng(seed)
    layout = Dense(torch.from_numpy(rng.random((rows, 5, 5)) < 0.6))
    return layout, torch.from_numpy(rng.standard_normal((rows * 5, DIM)))


def _same(one: Solution, other: Solution) -> None:
    torch.testing.assert_close(one.x_ND, other.x_ND, rtol=1e-10, atol=1e-10)
    assert one.steps_R.tolist() == other.steps_R.tolist()
    assert one.stop_reasons == other.stop_reasons
    np.testing.assert_allclose(one.residual_R, other.residual_R, rtol=1e-9, atol=1e-12)
    assert [m.step for m in one.trace] == [m.step for m in other.trace]
    assert one.energy_rose == other.energy_rose
    for mine, theirs in zip(one.trace, other.trace, strict=True):
        np.testing.assert_allclose(mine.energy_R, theirs.energy_R, rtol=1e-9, atol=1e-9)
        assert mine.components.keys() == theirs.components.keys()
        for name, part_R in mine.components.items():
            np.testing.assert_allclose(part_R, theirs.components[name], rtol=1e-9, atol=1e-9)
        assert (mine.storage_R is None) is (theirs.storage_R is None)
        if mine.storage_R is not None:
            np.testing.assert_allclose(mine.storage_R, theirs.storage_R, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("dense", [False, True], ids=["edges", "dense"])
@pytest.mark.parametrize("name", SYSTEMS)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_rows_come_to_what_they_come_to_alone(name: str, dense: bool, data: st.DataObject) -> None:
    """Whoever joins whenever, with whatever knobs, and whoever leaves early."""
    system = StepBackend.from_parts(*SYSTEMS[name])
    resonance = Resonance.model_validate({"strength": 0.7})
    prior = ResonanceParameter(2)([resonance], torch.zeros(1, dtype=torch.float64))
    posed = []
    for seed in range(data.draw(st.integers(1, 5), "relaxations")):
        rows = data.draw(st.integers(1, 4), "rows")
        layout, x = (_dense if dense else _graphs)(rows, seed)
        if data.draw(st.booleans(), "resonates"):
            layout = layout.resonating(prior)
        several = st.lists(st.integers(0, 9), min_size=rows, max_size=rows)
        steps = torch.tensor(data.draw(several, "steps"))
        noisy = torch.tensor(data.draw(several, "noise")) > 6
        loose = torch.tensor(data.draw(several, "tolerance")) > 6
        wild = torch.tensor(data.draw(several, "step size")) > 8
        params = _params(
            rows,
            steps=steps,
            noise=0.2 * noisy,
            tolerance=0.3 * loose,
            step_size=0.05 + 1e200 * wild.double(),
            nesterov=np.array(data.draw(several, "momentum")) > 4,
            seeds=range(10 * seed, 10 * seed + rows),
        )
        posed.append((x, layout, params, data.draw(st.integers(0, 6), "joins at")))
    companies: dict[object, RelaxationBatch] = {}
    found: dict[int, Solution] = {}
    there = {}
    with torch.no_grad():
        for step in range(40):
            for place, (x, layout, params, at) in enumerate(posed):
                if at == step:
                    relaxation = Relaxation.from_state(system, x, layout, params)
                    there[id(relaxation)] = place
                    companies.setdefault(batch_key(relaxation), RelaxationBatch()).add(relaxation)
            for company in companies.values():
                if len(company):
                    for relaxation in company.step():
                        found[there[id(relaxation)]] = relaxation.solution()
            kept = {id(r) for company in companies.values() for r in company.members}
            there = {key: place for key, place in there.items() if key in kept}
    assert sorted(found) == list(range(len(posed)))
    for place, (x, layout, params, _) in enumerate(posed):
        _same(found[place], solve_system(system, x, layout, params))


def test_who_leaves_early_keeps_the_state_it_has() -> None:
    system = StepBackend.from_parts(*_cdat())
    company = RelaxationBatch()
    posed = [(*_graphs(3, seed), _params(3, steps=30)) for seed in range(3)]
    several = [Relaxation.from_state(system, x, layout, params) for layout, x, params in posed]
    with torch.no_grad():
        for relaxation in several:
            company.add(relaxation)
        for _ in range(6):
            assert not company.step()
        company.remove(several[1])
        several[1].stop(StopReason.CANCELLED)
        while len(company):
            company.step()
    for place, (layout, x, params) in enumerate(posed):
        asked = iter([None] * (5 if place == 1 else 30) + [StopReason.CANCELLED])
        alone = solve_system(system, x, layout, params, StopWhen(asked.__next__))
        _same(several[place].solution(), alone)


def test_layouts_come_apart_as_they_were_joined() -> None:
    parts: list[list[Layout]] = [
        [_graphs(rows, rows)[0] for rows in (1, 4, 2)],
        [_dense(rows, rows)[0] for rows in (1, 4, 2)],
    ]
    for several in parts:
        whole = several[0].joined(several[1:])
        assert whole.rows == 7
        for first, last, one in ((0, 1, several[0]), (1, 5, several[1]), (5, 7, several[2])):
            part = whole.part(first, last)
            tensors = [name for name, value in vars(one).items() if isinstance(value, torch.Tensor)]
            assert tensors
            for name in tensors:
                assert torch.equal(getattr(part, name), getattr(one, name)), name


def test_an_edge_list_of_several_is_that_of_their_edges() -> None:
    many = _graphs(5, 3)[0]
    again = EdgeList(many.indptr_N1, many.indices_E, many.row_of_N, many.rows)
    parts = [many.part(row, row + 1) for row in range(5)]
    joined = parts[0].joined(parts[1:])
    for name in ("t_indptr_N1", "t_indices_E", "t_edge_E", "indptr_N1", "indices_E", "row_of_N"):
        assert torch.equal(getattr(joined, name), getattr(again, name)), name
        assert getattr(joined, name).dtype == getattr(again, name).dtype, name
