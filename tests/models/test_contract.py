"""What every architecture promises. A new one is found here by itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from models.base import Architecture, DynamicsParams
from models.checkpoint import load_checkpoint, read_trained_params, save_checkpoint
from models.dynamics import StopReason
from models.manifest import Calibration, EnergyReference, Manifest
from models.registry import find_architectures
from models.resonance import Resonance

ALL = sorted(find_architectures())
RESONANCES = [
    Resonance.model_validate({"strength": 1.5, "sharpness": 4.0, "feedback": 0.5, "unroll": 3}),
    Resonance.model_validate({"strength": -0.7, "vigilance": 0.1, "gate": "piecewise-linear"}),
]
OF_GRAPHS = [n for n in ALL if find_architectures()[n].task in ("anomaly", "classification")]


def _example(name: str, seed: int = 0) -> tuple[Architecture, list[Any], Any]:
    """A network, its graphs or pictures, and the same packed."""
    network, items = find_architectures()[name].build_example(seed)
    return network.eval(), items, network.pack(items)


def _infer(network: Architecture, batch: Any, params: Sequence[DynamicsParams] | None = None):
    return network.infer(batch, params or [DynamicsParams()] * batch.rows)


def test_the_papers_architectures_are_found() -> None:
    assert {"ait", "cdat", "et", "cdat-graph", "et-graph", "et-image"} <= set(ALL)


@pytest.mark.parametrize("name", ALL)
def test_batched_equals_single(name: str) -> None:
    network, items, batch = _example(name)
    params = [
        DynamicsParams(resonance=RESONANCES[0]),
        DynamicsParams(steps=1, beta=2.0),
        DynamicsParams(noise=0.3, seed=5, step_size=0.05, resonance=RESONANCES[1]),
    ]
    together = _infer(network, batch, params)
    for row, item in enumerate(items):
        alone = _infer(network, network.pack([item]), [params[row]])
        mine = batch.row_of_outputs == row
        torch.testing.assert_close(together.logits[mine], alone.logits, rtol=1e-5, atol=1e-5)
        for many, one in zip(together.solutions, alone.solutions, strict=True):
            assert many.steps_R[row] == one.steps_R[0]
            begun = many.trace[0].energy_R[row], one.trace[0].energy_R[0]
            np.testing.assert_allclose(*begun, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("step_size", [0.05, 20.0])
def test_whether_the_energy_rose_is_what_the_trace_says(name: str, step_size: float) -> None:
    """Of V where the motion is controlled; with noise or without steps it is not said."""
    network, _, batch = _example(name)
    params = [
        DynamicsParams(steps=40, step_size=step_size),
        DynamicsParams(noise=0.3),
        DynamicsParams(steps=0),
    ]
    for solution in _infer(network, batch, params).solutions:
        energies = np.array([moment.energy_R[0] for moment in solution.trace])
        is_controlled = solution.trace[0].storage_R is not None
        falling = energies if not is_controlled else [m.storage_R[0] for m in solution.trace]
        work = np.asarray(falling) - energies
        bound = 64 * np.finfo(np.float32).eps * (np.abs(energies) + np.abs(work))
        rose = bool((np.diff(falling) > bound[:-1]).any())
        rose |= solution.stop_reasons[0] is StopReason.DIVERGED
        assert solution.energy_rose == (rose, None, None)
        assert not rose or step_size > 1 or is_controlled


@pytest.mark.parametrize("name", ALL)
def test_what_is_trained_is_what_is_served(name: str) -> None:
    network, _, batch = _example(name)
    with torch.no_grad():
        trained = network(batch)
    torch.testing.assert_close(trained, _infer(network, batch).logits, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", OF_GRAPHS)
def test_relabelling_the_nodes_permutes_the_logits(name: str) -> None:
    network, graphs, _ = _example(name)
    for graph in graphs:
        order = np.random.default_rng(1).permutation(graph.num_nodes)
        place = np.argsort(order)
        shuffled = replace(graph, x=graph.x[order], edge_index=place[graph.edge_index])
        before = _infer(network, network.pack([graph]))
        after = _infer(network, network.pack([shuffled]))
        of_nodes = len(before.logits) == graph.num_nodes and network.task == "anomaly"
        expected = before.logits[order] if of_nodes else before.logits
        torch.testing.assert_close(after.logits, expected, rtol=1e-5, atol=1e-5)
        for a, b in zip(after.solutions, before.solutions, strict=True):
            energies = a.trace[-1].energy_R, b.trace[-1].energy_R
            np.testing.assert_allclose(*energies, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ALL)
def test_force_is_minus_the_gradient_in_every_block(name: str) -> None:
    network, _, batch = _example(name)
    network.double()
    generator = torch.Generator().manual_seed(2)
    shape = (len(batch.row_of_N), network.config.dim)
    params = [
        DynamicsParams(beta_scale=scale, resonance=resonance)
        for scale, resonance in zip((0.3, 1.0, 3.0), (None, *RESONANCES), strict=True)
    ]
    for block, layout in zip(network.blocks_in_order(), network.build_layouts(batch), strict=True):
        g = torch.randn(shape, generator=generator, dtype=torch.float64, requires_grad=True)
        beta = block.resolve_params(params).beta_RH
        for places in (layout, block.with_prior(layout, params)):
            terms = block.energy(g, places, beta)
            (gradient,) = torch.autograd.grad(terms.token_energy_N.sum(), g)
            assert (terms.force_ND + gradient).abs().max() < 1e-9


@pytest.mark.parametrize("name", ALL)
def test_same_seed_same_answer(name: str) -> None:
    network, _, batch = _example(name)
    first, again, other = (
        _infer(
            network, batch, [DynamicsParams(noise=0.5, seed=s, resonance=RESONANCES[0])] * 3
        ).logits
        for s in (1, 1, 2)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    same, network_too = _example(name)[0].state_dict(), _example(name)[0].state_dict()
    assert all(torch.equal(same[key], network_too[key]) for key in same)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize(
    "changed",
    [
        {"steps": 1},
        {"beta": 7.0},
        {"beta_scale": 5.0},
        {"step_size": 0.3},
        {"noise": 0.5},
        {"resonance": RESONANCES[0]},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_each_knob_moves_the_state(name: str, changed: dict) -> None:
    """A knob that an architecture ignored would be a lie in its contract."""
    network, _, batch = _example(name)
    default = _infer(network, batch).logits
    turned = _infer(network, batch, [replace(DynamicsParams(), **changed)] * 3).logits
    assert not torch.allclose(default, turned, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", ALL)
def test_knobs_left_alone_are_the_trained_ones(name: str) -> None:
    network, _, batch = _example(name)
    config = network.config
    spelled = DynamicsParams(steps=config.steps, step_size=config.step_size, beta_scale=1.0)
    assert torch.equal(_infer(network, batch).logits, _infer(network, batch, [spelled] * 3).logits)


@pytest.mark.parametrize("name", ALL)
def test_beta_replaces_the_trained_ones_and_beta_scale_multiplies_them(name: str) -> None:
    network, *_ = _example(name)
    rows = [DynamicsParams(), DynamicsParams(beta=3.3), DynamicsParams(beta_scale=0.7)]
    for block in network.blocks_in_order():
        trained_H = block.log_beta_H.exp()
        expected = [trained_H, torch.full_like(trained_H, 3.3), trained_H * 0.7]
        assert torch.equal(block.resolve_params(rows).beta_RH, torch.stack(expected))


@pytest.mark.parametrize("name", ALL)
def test_no_strength_is_no_resonance(name: str) -> None:
    """Bit for bit, in what is served and in what is trained, whatever the rest of it says."""
    network, _, batch = _example(name)
    silent = [
        replace(DynamicsParams(), resonance=r.model_copy(update={"strength": 0.0}))
        for r in (*RESONANCES, RESONANCES[0])
    ]
    plain, without = _infer(network, batch), _infer(network, batch, silent)
    assert torch.equal(plain.logits, without.logits)
    for one, other in zip(plain.solutions, without.solutions, strict=True):
        assert torch.equal(one.x_ND, other.x_ND)
        for a, b in zip(one.trace, other.trace, strict=True):
            assert np.array_equal(a.energy_R, b.energy_R)
    trained = _resonating(name, strength=1.5)
    assert torch.equal(plain.logits, _infer(trained, batch, silent).logits)
    assert not torch.equal(plain.logits, _infer(trained, batch).logits)
    with torch.no_grad():
        assert torch.equal(network(batch), _resonating(name, learn=False, strength=0.0)(batch))


def _resonating(name: str, learn: bool = True, **resonance: Any) -> Architecture:
    """The example as if it had been trained with a resonance."""
    plain = _example(name)[0]
    config = plain.config.model_dump() | {"resonance": resonance, "learn_strength": learn}
    network = find_architectures()[name](plain.config_type.model_validate(config))
    network.load_state_dict(network.state_dict() | plain.state_dict())
    return network.eval()


@pytest.mark.parametrize("resonates", [False, True])
@pytest.mark.parametrize("name", ALL)
def test_every_parameter_learns(name: str, resonates: bool) -> None:
    network, _, batch = _example(name)
    if resonates:
        network = _resonating(name, strength=1.5, vigilance=0.1, sharpness=2.0)
    network.train()
    with torch.no_grad():  # a zero factor would hide the gradient of the other
        for parameter_name, parameter in network.named_parameters():
            if parameter_name.endswith("strength_r"):
                parameter.fill_(0.5)
    network(batch).square().sum().backward()
    still = [
        parameter_name
        for parameter_name, parameter in network.named_parameters()
        if parameter.requires_grad and (parameter.grad is None or not parameter.grad.any())
    ]
    # A uniform shift of g moves no logit through a LayerNorm that nothing follows; none is here.
    assert still == []


@pytest.mark.parametrize("resonates", [False, True])
@pytest.mark.parametrize("name", ALL)
def test_save_and_load_is_identity(name: str, resonates: bool, tmp_path: Path) -> None:
    network, _, batch = _example(name)
    if resonates:
        network = _resonating(name, strength=1.5)
        strengths = network.resolve_resonance(None).strength
        assert all(strength == 1.5 for heads in strengths for strength in heads)
    manifest = Manifest(
        name="example",
        version="1",
        architecture=name,
        task=network.task,
        config=network.config.model_dump(mode="json"),
        knobs=read_trained_params(network),
        features=(),
        threshold=0.5,
        calibration=Calibration(slope=1.0, intercept=0.0),
        energy=EnergyReference(levels=(0.0, 1.0), values=(-1.0, 1.0)),
        training={},
        metrics={},
    )
    save_checkpoint(tmp_path / "example", network, manifest, "# example\n")
    loaded = load_checkpoint(tmp_path / "example")
    assert loaded.manifest.config == manifest.config
    assert (loaded.manifest.knobs.resonance is not None) == resonates
    state, again = network.state_dict(), loaded.network.state_dict()
    assert state.keys() == again.keys()
    assert all(torch.equal(state[key], again[key]) for key in state)
    assert torch.equal(_infer(network, batch).logits, _infer(loaded.network, batch).logits)
