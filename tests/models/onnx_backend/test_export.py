"""ONNX Runtime sees what torch sees: in every architecture and every shipped checkpoint."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

from models import checkpoint
from models.architectures.ait import AiT
from models.base import Architecture, Block, Config, DynamicsParams
from models.dynamics import RUN_ALONE, ControlledDynamics, Descent, EnergyLayerNorm
from models.energies import (
    AssociativeMemory,
    Balanced,
    DotProductAttention,
    Energy,
    GridHopfield,
    Hopfield,
    Sum,
    Terms,
    VonMisesFisherAttention,
)
from models.inputs.graph import Graph
from models.inputs.molecules import ATOM_COLUMNS, parse_smiles
from models.inputs.patches import MaskedImage
from models.layouts import Dense, EdgeList, Layout
from models.onnx_backend.export import Form, NotExportableError, export, form_of
from models.onnx_backend.system import OnnxField, OnnxSystem, _feeds
from models.registry import find_architectures
from models.resonance import Resonance
from models.tasks.graph_classifier import GraphClassifier
from models.tasks.image_completer import ImageCompleter
from models.tasks.node_scorer import NodeScorer
from models.tasks.window_completer import WindowCompleter
from tests.support.paths import CHECKPOINTS

SHIPPED = sorted(CHECKPOINTS.iterdir())
DIM, HEADS, WIDTH = 12, 2, 4
ENERGIES = {
    "et": lambda: Sum(DotProductAttention(DIM, HEADS, WIDTH), Hopfield(DIM, 7)),
    "cdat": lambda: Balanced(VonMisesFisherAttention(DIM, HEADS, WIDTH), Hopfield(DIM, 7, "relu")),
    "power": lambda: Sum(DotProductAttention(DIM, HEADS, WIDTH), Hopfield(DIM, 7, "power")),
    "softmax": lambda: Sum(Hopfield(DIM, 7, "softmax")),
}


def _block(energy: Energy) -> Block:
    config = Config(dim=DIM, heads=HEADS, head_dim=WIDTH, memories=7, step_size=0.1)
    block = Block(energy, Descent(), EnergyLayerNorm(DIM), config)
    with torch.no_grad():
        block.norm.delta_D.normal_()  # type: ignore[union-attr, operator]
        block.norm.log_gamma.fill_(0.3)  # type: ignore[union-attr, operator]
    return block


def _layouts() -> dict[str, Layout]:
    rng = np.random.default_rng(0)
    mask = torch.from_numpy(rng.random((3, 8, 8)) < 0.5)
    mask[1, 2] = False  # it sees none
    dense, every = Dense(mask), Dense(torch.ones(1, 8, 8, dtype=torch.bool).expand(3, -1, -1))
    source, receiver = rng.integers(0, 8, (2, 40)) + 8 * rng.integers(0, 3, 40)
    lonely = (source != 5) & (receiver != 5)
    edges = EdgeList.from_edges(
        np.stack([source, receiver])[:, lonely],
        24,
        row_of_N=torch.arange(3).repeat_interleave(8),
        rows=3,
    )
    pairs = edges.num_edges, HEADS
    return {
        "dense": dense,
        "every": every,
        "edges": edges,
        "dense, weighed": dense.weighed(torch.rand(3, HEADS, 8, 8), torch.randn(3, HEADS, 8, 8)),
        "edges, weighed": edges.weighed(torch.rand(pairs), torch.randn(pairs)),
        "edges, biased": edges.weighed(None, torch.randn(pairs)),
        "no edges": EdgeList.from_edges(
            np.zeros((2, 0), np.int64),
            24,
            row_of_N=torch.arange(3).repeat_interleave(8),
            rows=3,
        ),
    }


@pytest.fixture(autouse=True)
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every product is."""
    monkeypatch.setattr(OnnxField, "_LEAST", 0)


Seen = tuple[torch.Tensor, Terms]


def _same(found: Seen, known: Seen) -> None:
    torch.testing.assert_close(found[0], known[0], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found[1].force_ND, known[1].force_ND, rtol=1e-4, atol=1e-5)
    assert found[1].parts.keys() == known[1].parts.keys()
    for name, part_N in known[1].parts.items():
        torch.testing.assert_close(found[1].parts[name], part_N, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("layout", _layouts())
@pytest.mark.parametrize("energy", ENERGIES)
@torch.no_grad()
def test_it_sees_what_torch_sees(energy: str, layout: str) -> None:
    torch.manual_seed(1)
    block, places = _block(ENERGIES[energy]()), _layouts()[layout]
    x_ND, beta_RH = torch.randn(24, DIM), torch.rand(3, HEADS) + 0.5
    seen, known = (
        OnnxSystem.of_block(block, 1),
        block.build_backend().evaluate(x_ND, places, beta_RH, True),
    )
    _same(seen.evaluate(x_ND, places, beta_RH, True), known)
    assert bool(seen.sessions) is isinstance(places, Dense)
    _same(_by_file(block, places, x_ND, beta_RH), known)


def _by_file(block: Block, places: Layout, x_ND: torch.Tensor, beta_RH: torch.Tensor) -> Seen:
    """By the whole graph, on four threads."""
    form = form_of(places)
    assert form is not None
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 4
    model = export(block, form, steps=False).SerializeToString()
    session = onnxruntime.InferenceSession(model, options)
    names = [output.name for output in session.get_outputs()]
    values = session.run(names, _feeds(x_ND, places, beta_RH))
    found = {name: torch.from_numpy(of) for name, of in zip(names, values, strict=True)}
    g_ND, force_ND = (found.pop(name).view(x_ND.shape) for name in ("g", "force"))
    parts = {name.removeprefix("energy."): of.flatten() for name, of in found.items()}
    return g_ND, Terms(parts, force_ND)


@torch.no_grad()
def test_threads_lose_no_edge() -> None:
    torch.manual_seed(3)
    block, rng = _block(ENERGIES["et"]()), np.random.default_rng(1)
    hub = np.where(rng.random(60_000) < 0.5, 0, rng.integers(0, 500, 60_000))
    places = EdgeList.from_edges(np.stack([hub, rng.integers(0, 500, 60_000)]), 500)
    x_ND, beta_RH = torch.randn(500, DIM), torch.full((1, HEADS), 0.5)
    known = block.build_backend().evaluate(x_ND, places, beta_RH, True)
    for _ in range(5):
        found = _by_file(block, places, x_ND, beta_RH)
        torch.testing.assert_close(found[1].force_ND, known[1].force_ND, rtol=1e-3, atol=1e-3)


@torch.no_grad()
def test_a_row_that_diverges_stops_and_no_other() -> None:
    torch.manual_seed(4)
    block, places = _block(ENERGIES["et"]()), _layouts()["every"]
    block.prepared_backend = OnnxSystem.of_block(block, 1)
    params = [DynamicsParams(steps=4, step_size=size) for size in (0.1, 1e38, 0.1)]
    solution = block.solve(torch.randn(24, DIM), places, params, RUN_ALONE)
    assert [reason.value for reason in solution.stop_reasons] == [
        "step_limit",
        "diverged",
        "step_limit",
    ]
    assert solution.x_ND.isfinite().all()
    assert all(np.isfinite(moment.energy_R).all() for moment in solution.trace)


def test_copies_and_moved_blocks_are_not_prepared() -> None:
    block = _block(ENERGIES["et"]())
    block.prepared_backend = block.build_backend()
    assert deepcopy(block).prepared_backend is None
    assert block.prepared_backend is not None
    assert block.double().prepared_backend is None


@pytest.mark.parametrize("layout", ["dense", "edges"])
@torch.no_grad()
def test_a_step_from_the_file_alone(layout: str, tmp_path: Path) -> None:
    """Whoever has the file needs nothing else of this project."""
    torch.manual_seed(2)
    block = _block(ENERGIES["cdat"]())
    block.motion = ControlledDynamics(DIM, coupling_rank=3, locality=(0.2, 2.0))
    block.motion.strength_r.normal_()
    places, x_ND = _layouts()[layout], torch.randn(24, DIM)
    model = export(block, Form(layout))  # type: ignore[arg-type]
    assert not any(weight.external_data for weight in model.graph.initializer)
    told = {prop.key: json.loads(prop.value) for prop in model.metadata_props}
    assert told["steps"] == block.steps
    assert told["step_size"] == block.step_size
    assert told["beta"] == pytest.approx([WIDTH**-0.5] * HEADS)
    onnx.save(model, tmp_path / "step.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "step.onnx")
    beta, alpha = np.full((3, HEADS), 0.7, np.float32), np.array([0.1, 0.2, 0.3], np.float32)
    if isinstance(places, Dense):
        given = {"x": x_ND.view(3, 8, DIM).numpy(), "sees": places.mask_RLL.numpy()}
        given |= {"beta": beta, "step_size": alpha}
    else:
        assert isinstance(places, EdgeList)
        row_of_N = places.row_of_N.numpy()
        ends = places.receivers_E.numpy(), places.indices_E.long().numpy()
        given = {"x": x_ND.numpy(), "receivers": ends[0], "sources": ends[1]}
        given |= {"beta": beta[row_of_N], "step_size": alpha[row_of_N]}
    (found,) = session.run(["next"], given)
    params = [DynamicsParams(steps=1, beta=0.7, step_size=float(each)) for each in alpha]
    solution = block.solve(x_ND, places, params, RUN_ALONE)
    np.testing.assert_allclose(found.reshape(24, DIM), solution.x_ND.numpy(), rtol=1e-4, atol=1e-5)


def _items(network: Architecture) -> list[Any]:
    """What it was not trained on."""
    rng = np.random.default_rng(3)
    if isinstance(network, NodeScorer):
        relations = tuple(rng.integers(0, 20, (2, 60)) for _ in network.config.relations)
        x = rng.random((20, len(network.config.features))).astype(np.float32)
        joined = np.concatenate(relations, 1)
        kinds = np.repeat(np.arange(len(relations)), 60)
        return [Graph(x, joined, kinds), Graph(x[::-1].copy(), joined, kinds)]
    if isinstance(network, GraphClassifier):
        if network.config.node_features == ATOM_COLUMNS:
            return [parse_smiles(smiles).graph for smiles in ("CCO", "c1ccccc1C(=O)O")]
        columns = len(network.config.node_features)
        return [
            Graph(np.ones((n, columns), np.float32), rng.integers(0, n, (2, 2 * n))) for n in (4, 9)
        ]
    assert isinstance(network, ImageCompleter)
    c = network.config
    pixels = rng.integers(0, 256, (2, c.size, c.size, c.channels), np.uint8)
    occluded = rng.random((2, c.size // c.patch, c.size // c.patch)) < 0.5
    return [MaskedImage(*each) for each in zip(pixels, occluded, strict=True)]


@pytest.mark.parametrize("folder", SHIPPED, ids=lambda folder: folder.name)
def test_of_every_shipped_checkpoint(folder: Path) -> None:
    network = checkpoint.load_checkpoint(folder).network
    if isinstance(network, AiT | WindowCompleter):  # of AiT little of the work is in steps
        with pytest.raises(NotExportableError, match="is not exported"):
            OnnxSystem.of_block(network.blocks_in_order()[0])
        return
    items = _items(network)
    batch, params = network.pack(items), [DynamicsParams()] * len(items)
    plain = network.infer(batch, params)
    systems = [OnnxSystem.of_block(block, 1) for block in network.blocks_in_order()]
    for block, system in zip(network.blocks_in_order(), systems, strict=True):
        block.prepared_backend = system
    found = network.infer(batch, params)
    scale = float(plain.logits.abs().max())
    torch.testing.assert_close(found.logits, plain.logits, rtol=1e-3, atol=1e-4 * scale)
    for one, other in zip(found.solutions, plain.solutions, strict=True):
        assert one.steps_R.tolist() == other.steps_R.tolist()
        for mine, its in zip(one.trace, other.trace, strict=True):
            np.testing.assert_allclose(mine.energy_R, its.energy_R, rtol=1e-4, atol=1e-2)


@pytest.mark.parametrize("name", [a.name for a in find_architectures().values()])
def test_of_every_architecture_or_it_says_why_not(name: str) -> None:
    made, items = find_architectures()[name].build_example(0)
    network = made.eval()
    batch = network.pack(items)
    plain = network.infer(batch, [DynamicsParams()] * batch.rows)
    blocks = network.blocks_in_order()
    leaves = [leaf for block in blocks for _, leaf in block.energy.leaves()]
    if any(isinstance(leaf, AssociativeMemory | GridHopfield) for leaf in leaves):
        with pytest.raises(NotExportableError, match="is not exported"):
            OnnxSystem.of_block(blocks[0])
        return
    systems = [OnnxSystem.of_block(block, 1) for block in blocks]
    for block, system in zip(blocks, systems, strict=True):
        block.prepared_backend = system
    found = network.infer(batch, [DynamicsParams()] * batch.rows)
    torch.testing.assert_close(found.logits, plain.logits, rtol=1e-4, atol=1e-4)
    for one, other in zip(found.solutions, plain.solutions, strict=True):
        np.testing.assert_allclose(
            one.trace[-1].energy_R, other.trace[-1].energy_R, rtol=1e-4, atol=1e-3
        )
        assert one.stop_reasons == other.stop_reasons
    # Where something resonates it makes the products.
    resonant = [DynamicsParams(resonance=Resonance(strength=0.5))] * batch.rows
    asked = network.infer(batch, resonant)
    assert (asked.logits - found.logits).abs().max() > 1e-6
    for block in blocks:
        block.prepared_backend = None
    known = network.infer(batch, resonant)
    torch.testing.assert_close(asked.logits, known.logits, rtol=1e-4, atol=1e-4)
