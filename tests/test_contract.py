"""What every architecture promises. A new one is found here by itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from models.catalog import architectures
from models.checkpoint import Calibration, EnergyReference, Manifest, load, save, trained_knobs
from models.contract import Architecture, Knobs
from models.graph import Graph
from models.graphs import GraphBatch
from models.node_scorer import NodeScorer

ALL = sorted(architectures())


def _example(name: str, seed: int = 0) -> tuple[NodeScorer, GraphBatch]:
    network, batch = architectures()[name].example(seed)
    assert isinstance(network, NodeScorer)
    return network.eval(), batch


def _graphs(batch: GraphBatch) -> list[Graph]:
    """The batch taken apart again."""
    graphs = []
    for row in range(batch.rows):
        nodes = (batch.row_of_N == row).nonzero().flatten().numpy()
        edges, types = [], []
        for relation, layout in enumerate(batch.relations):
            receivers = np.repeat(np.arange(len(batch.x_NF)), layout.degree_N.numpy())
            index = np.stack([layout.indices_E.numpy(), receivers])
            index = index[:, np.isin(receivers, nodes)] - nodes[0]
            edges.append(index)
            types.append(np.full(index.shape[1], relation))
        graphs.append(
            Graph(batch.x_NF[nodes].numpy(), np.concatenate(edges, 1), np.concatenate(types))
        )
    return graphs


def _infer(network: Architecture, batch: GraphBatch, knobs: Sequence[Knobs] | None = None):
    return network.infer(batch, knobs or [Knobs()] * batch.rows)


def test_the_papers_architectures_are_found() -> None:
    assert {"cdat", "et"} <= set(ALL)


@pytest.mark.parametrize("name", ALL)
def test_batched_equals_single(name: str) -> None:
    network, batch = _example(name)
    knobs = [Knobs(), Knobs(steps=1, beta=2.0), Knobs(noise=0.3, seed=5, step_size=0.05)]
    together = _infer(network, batch, knobs)
    for row, graph in enumerate(_graphs(batch)):
        alone = _infer(network, network.pack([graph]), [knobs[row]])
        mine = batch.row_of_N == row
        torch.testing.assert_close(together.logits[mine], alone.logits, rtol=1e-5, atol=1e-5)
        for many, one in zip(together.solutions, alone.solutions, strict=True):
            assert many.steps_R[row] == one.steps_R[0]
            torch.testing.assert_close(
                many.trace[0].energy_R[row], one.trace[0].energy_R[0], rtol=1e-5, atol=1e-5
            )


@pytest.mark.parametrize("name", ALL)
def test_what_is_trained_is_what_is_served(name: str) -> None:
    network, batch = _example(name)
    with torch.no_grad():
        trained = network(batch)
    torch.testing.assert_close(trained, _infer(network, batch).logits, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ALL)
def test_relabelling_the_nodes_permutes_the_logits(name: str) -> None:
    network, batch = _example(name)
    graph = _graphs(batch)[2]
    order = np.random.default_rng(1).permutation(graph.num_nodes)
    place = np.argsort(order)
    shuffled = Graph(graph.x[order], place[graph.edge_index], graph.edge_type)
    before = _infer(network, network.pack([graph]))
    after = _infer(network, network.pack([shuffled]))
    torch.testing.assert_close(after.logits, before.logits[order], rtol=1e-5, atol=1e-5)
    for a, b in zip(after.solutions, before.solutions, strict=True):
        torch.testing.assert_close(a.trace[-1].energy_R, b.trace[-1].energy_R, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ALL)
def test_force_is_minus_the_gradient_in_every_block(name: str) -> None:
    network, batch = _example(name)
    network.double()
    generator = torch.Generator().manual_seed(2)
    shape = (len(batch.x_NF), network.config.dim)
    for block in network.blocks_in_order():
        g = torch.randn(shape, generator=generator, dtype=torch.float64, requires_grad=True)
        beta = block.resolve([Knobs(beta_scale=s) for s in (0.3, 1.0, 3.0)]).beta_RH
        terms = block.energy(g, batch.relations[0], beta)
        (gradient,) = torch.autograd.grad(terms.token_energy_N.sum(), g)
        assert (terms.force_ND + gradient).abs().max() < 1e-9


@pytest.mark.parametrize("name", ALL)
def test_same_seed_same_answer(name: str) -> None:
    network, batch = _example(name)
    first, again, other = (
        _infer(network, batch, [Knobs(noise=0.5, seed=s)] * 3).logits for s in (1, 1, 2)
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
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_each_knob_moves_the_state(name: str, changed: dict) -> None:
    """A knob that an architecture ignored would be a lie in its contract."""
    network, batch = _example(name)
    default = _infer(network, batch).logits
    turned = _infer(network, batch, [replace(Knobs(), **changed)] * 3).logits
    assert not torch.allclose(default, turned, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", ALL)
def test_knobs_left_alone_are_the_trained_ones(name: str) -> None:
    network, batch = _example(name)
    config = network.config
    spelled = Knobs(steps=config.steps, step_size=config.step_size, beta_scale=1.0)
    assert torch.equal(_infer(network, batch).logits, _infer(network, batch, [spelled] * 3).logits)


@pytest.mark.parametrize("name", ALL)
def test_every_parameter_learns(name: str) -> None:
    network, batch = _example(name)
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


@pytest.mark.parametrize("name", ALL)
def test_save_and_load_is_identity(name: str, tmp_path: Path) -> None:
    network, batch = _example(name)
    manifest = Manifest(
        name="example",
        version="1",
        architecture=name,
        task=network.task,
        config=network.config.model_dump(mode="json"),
        knobs=trained_knobs(network),
        features=(),
        threshold=0.5,
        calibration=Calibration(slope=1.0, intercept=0.0),
        energy=EnergyReference(levels=(0.0, 1.0), values=(-1.0, 1.0)),
        training={},
        metrics={},
    )
    save(tmp_path / "example", network, manifest, "# example\n")
    loaded = load(tmp_path / "example")
    assert loaded.manifest.config == manifest.config
    state, again = network.state_dict(), loaded.network.state_dict()
    assert state.keys() == again.keys()
    assert all(torch.equal(state[key], again[key]) for key in state)
    assert torch.equal(_infer(network, batch).logits, _infer(loaded.network, batch).logits)
