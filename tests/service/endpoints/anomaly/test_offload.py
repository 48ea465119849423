"""What of an answer is written beside the event loop."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest

from models.base import DynamicsParams
from models.inputs.graph import Graph
from service.context import INLINE_BYTES
from service.endpoints.anomaly.parse import ScoreInputs
from service.endpoints.anomaly.routes import response_weight
from service.endpoints.common.schemas import Dynamics
from service.media_types import JSON, SAFETENSORS


def task_of(nodes: int, edges: int, targets: int | None, *include: str) -> ScoreInputs:
    ends = np.zeros((2, edges), np.int64)
    graph = Graph(np.zeros((nodes, 1), np.float32), ends)
    asked = None if targets is None else np.arange(targets)
    knobs = Dynamics(), DynamicsParams(), frozenset(include)
    return ScoreInputs(cast(Any, None), graph, None, asked, *knobs)


@pytest.mark.parametrize("form", [JSON, SAFETENSORS])
def test_reasons_of_a_large_graph_are_however_few_the_targets(form: str) -> None:
    assert response_weight(task_of(2_000, 20_000, 1, "attention"), form) > INLINE_BYTES
    assert response_weight(task_of(2_000, 20_000, 1), form) <= INLINE_BYTES
    assert response_weight(task_of(30, 300, None, "attention"), form) <= INLINE_BYTES


def test_many_targets_are_sooner_as_json_than_as_columns() -> None:
    assert response_weight(task_of(2_000, 0, None), JSON) > INLINE_BYTES
    assert response_weight(task_of(2_000, 0, None), SAFETENSORS) <= INLINE_BYTES
    assert response_weight(task_of(20_000, 0, None), SAFETENSORS) > INLINE_BYTES
