"""On a GPU everything is what it is on a CPU, within single precision."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from models.base import Architecture, DynamicsParams
from models.interpret.occlusion import compute_edge_gradients
from models.interpret.prototypes import list_galleries
from models.interpret.reasons import BatchReasons
from models.nn.attention_recorder import record_attention
from models.registry import find_architectures
from models.tasks.node_scorer import NodeScorer
from service.registry.loader import ModelLoader
from tests.support.paths import CHECKPOINTS

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")
PARAMS = DynamicsParams(steps=4, step_size=0.1)
each = pytest.mark.parametrize("name", sorted(find_architectures()))


def both(name: str) -> tuple[Architecture, Architecture, list[Any]]:
    example, items = find_architectures()[name].build_example(1)
    there, _ = find_architectures()[name].build_example(1)
    return example.eval(), there.eval().to("cuda"), items


@each
def test_answers_and_energies(name: str) -> None:
    here, there, items = both(name)
    found = [network.infer(network.pack(items), [PARAMS] * len(items)) for network in (here, there)]
    torch.testing.assert_close(found[1].logits.cpu(), found[0].logits, atol=1e-4, rtol=1e-4)
    for one, other in zip(*(output.solutions for output in found), strict=True):
        assert one.stop_reasons == other.stop_reasons
        for mine, its in zip(one.trace, other.trace, strict=True):
            np.testing.assert_allclose(its.energy_R, mine.energy_R, atol=1e-3, rtol=1e-4)


def test_a_server_s_models_load() -> None:
    for name in ("cdat-ames", "cdat-tolokers", "et-photos"):
        model = ModelLoader("cuda").load(CHECKPOINTS / name)
        assert model.runtime == "torch"


@each
def test_reasons(name: str) -> None:
    told, include = [], ("attention", "memories", "components")
    here, there, items = both(name)
    for network in (here, there):
        rows = [PARAMS] * len(items)
        with record_attention() as heard:
            output = network.infer(network.pack(items), rows)
        told.append(BatchReasons(network, output, rows, heard).explain_row(0, include))
    for one, other in zip(told[0].attention, told[1].attention, strict=True):
        np.testing.assert_allclose(other.weight_PH, one.weight_PH, atol=1e-4)
    for mine, its in zip(told[0].energies, told[1].energies, strict=True):
        for part, value in mine.items():
            np.testing.assert_allclose(its[part], value, atol=1e-3)


@each
def test_what_explains_and_shows_it(name: str) -> None:
    here, there, items = both(name)
    if isinstance(here, NodeScorer) and isinstance(there, NodeScorer):
        found = [compute_edge_gradients(network, items[0], PARAMS, 1) for network in (here, there)]
        np.testing.assert_allclose(found[1], found[0], atol=1e-4)
    for part, show in list_galleries(here).items():
        np.testing.assert_allclose(list_galleries(there)[part]().tiles, show().tiles, atol=1e-4)
