"""A network whose states are looked at in few calls infers what it does by torch."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path

import numpy as np
import pytest
import torch

from models import checkpoint
from models.base import Architecture, DynamicsParams
from models.fused.system import FusedSystem
from models.inputs.graph import Graph
from models.inputs.patches import MaskedImage
from models.registry import find_architectures
from models.tasks.image_completer import ImageCompleter
from models.tasks.node_scorer import NodeScorer
from tests.support.paths import CHECKPOINTS

pytestmark = pytest.mark.usefixtures("threads")
SHIPPED = sorted(CHECKPOINTS.iterdir())


@pytest.mark.parametrize("architecture", find_architectures().values(), ids=lambda a: a.name)
def test_every_architecture_infers_the_same(architecture: type[Architecture]) -> None:
    network, items = architecture.build_example(3)
    _infers_the_same(network.eval(), items, 1e-4)


@pytest.mark.parametrize(
    "path", [path for path in SHIPPED if "tolokers" in path.name], ids=lambda p: p.name
)
def test_shipped_checkpoints_infer_the_same(path: Path) -> None:
    network = checkpoint.load_checkpoint(path).network
    _infers_the_same(network, _graphs(network), 1e-4)


@pytest.mark.parametrize(
    "dtype", [torch.float32, pytest.param(torch.float64, marks=pytest.mark.slow)], ids=str
)
def test_shipped_pictures_are_completed_the_same(dtype: torch.dtype) -> None:
    network = checkpoint.load_checkpoint(SHIPPED[0].with_name("et-mnist")).network
    assert isinstance(network, ImageCompleter)
    config, rng = network.config, np.random.default_rng(5)
    shape = config.size, config.size, config.channels
    places = config.size // config.patch
    pictures = [
        MaskedImage(rng.integers(0, 256, shape, np.uint8), rng.random((places, places)) < share)
        for share in (0.2, 0.5, 0.9)
    ]
    # Where pixels are noise a trained network magnifies rounding; in float64 there is little of it,
    # but kernels of that precision have to be compiled.
    tolerance = 1e-8 if dtype == torch.float64 else 1e-4
    _infers_the_same(network.to(dtype), pictures, tolerance, of_largest=True)


def _graphs(network: Architecture) -> list:
    assert isinstance(network, NodeScorer)
    rng = np.random.default_rng(4)
    width = len(network.config.features)
    return [
        Graph(rng.random((n, width)).astype(np.float32), rng.integers(0, n, (2, 8 * n)))
        for n in (40, 1, 200)
    ]


def _infers_the_same(
    network: Architecture, items: list, tolerance: float, of_largest: bool = False
) -> None:
    """Within `tolerance` of each number, or of the largest of a state."""
    params = [
        DynamicsParams(),
        DynamicsParams(beta_scale=0.5, tolerance=1e-3),
        DynamicsParams(noise=0.1, seed=5, steps=4),
    ]
    fused = deepcopy(network)
    for block in fused.blocks_in_order():
        block.prepared_backend = FusedSystem.of_block(block, block.build_backend())
    known, found = (net.infer(net.pack(items), params) for net in (network, fused))
    close = {"rtol": tolerance, "atol": tolerance}
    torch.testing.assert_close(found.logits, known.logits, **close)
    for one, other in zip(found.solutions, known.solutions, strict=True):
        assert one.stop_reasons == other.stop_reasons
        assert one.steps_R.tolist() == other.steps_R.tolist()
        for mine, theirs in ((one.x_ND, other.x_ND), (one.g_ND, other.g_ND)):
            largest = float(theirs.abs().max()) if of_largest else 1.0
            torch.testing.assert_close(mine, theirs, rtol=tolerance, atol=tolerance * largest)
        np.testing.assert_allclose(one.residual_R, other.residual_R, 10 * tolerance)
        for moment, as_known in zip(one.trace, other.trace, strict=True):
            np.testing.assert_allclose(moment.energy_R, as_known.energy_R, 10 * tolerance)
            assert (moment.storage_R is None) == (as_known.storage_R is None)
            if moment.storage_R is not None:
                np.testing.assert_allclose(moment.storage_R, as_known.storage_R, 10 * tolerance)
