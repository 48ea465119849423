"""What of an answer is written beside the event loop."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest

from models.base import DynamicsParams
from models.inputs.graph import Graph
from service.context import BRIEF
from service.endpoints.anomaly.parse import ScoreTask
from service.endpoints.anomaly.routes import weight_of
from service.endpoints.common.schemas import Dynamics
from service.media_types import JSON, SAFETENSORS


def task_of(nodes: int, edges: int, targets: int | None, *include: str) -> ScoreTask:
    ends = np.zeros((2, edges), np.int64)
    graph = Graph(np.zeros((nodes, 1), np.float32), ends)
    asked = None if targets is None else np.arange(targets)
    knobs = Dynamics(), DynamicsParams(), frozenset(include)
    return ScoreTask(cast(Any, None), graph, None, asked, *knobs)


@pytest.mark.parametrize("form", [JSON, SAFETENSORS])
def test_reasons_of_a_large_graph_are_however_few_the_targets(form: str) -> None:
    assert weight_of(task_of(2_000, 20_000, 1, "attention"), form) > BRIEF
    assert weight_of(task_of(2_000, 20_000, 1), form) <= BRIEF
    assert weight_of(task_of(30, 300, None, "attention"), form) <= BRIEF


def test_many_targets_are_sooner_as_json_than_as_columns() -> None:
    assert weight_of(task_of(2_000, 0, None), JSON) > BRIEF
    assert weight_of(task_of(2_000, 0, None), SAFETENSORS) <= BRIEF
    assert weight_of(task_of(20_000, 0, None), SAFETENSORS) > BRIEF
