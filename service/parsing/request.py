"""A body, its envelope and its graph, as one task for the engine."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson

from models.contract import Knobs
from models.graph import Graph
from service.errors import Problem
from service.parsing.envelope import read_envelope, require_read
from service.parsing.include import require_few, require_told
from service.parsing.json_graph import read_json
from service.parsing.syntax import read_object
from service.parsing.tensors import TENSORS, Tensors, graph_of, read_safetensors
from service.registry import Registry
from service.schemas import (
    ArrayScoreRequest,
    Dynamics,
    NodeId,
    RowScoreRequest,
    TensorEnvelope,
)
from service.served import Scorer
from service.settings import Settings

JSON, SAFETENSORS = "application/json", "application/vnd.safetensors"
_IN_JSON = ArrayScoreRequest.model_fields | RowScoreRequest.model_fields


@dataclass(frozen=True)
class ScoreTask:
    """What to score and how. `targets` are row numbers, None for all nodes."""

    model: Scorer
    graph: Graph
    node_ids: list[NodeId] | None
    targets: np.ndarray | None
    dynamics: Dynamics
    knobs: Knobs
    include: frozenset[str]


def parse_score(body: bytes, media_type: str, registry: Registry, settings: Settings) -> ScoreTask:
    """Read a body of `POST /anomaly/score`, as it came or as `service.parsing.large` left it.

    Raises:
        Problem: the first stage that fails tells all it found: syntax, envelope, model, graph.
    """
    opened = _open(body, media_type)
    envelope = read_envelope(opened.fields, opened.known, settings)
    model = registry.serving(Scorer, envelope.model or settings.default_anomaly_model)
    require_read(envelope.dynamics, model.network.config)
    require_told(model.network, envelope.include)
    if opened.problem is not None:
        raise opened.problem
    if opened.tensors is None:
        named = read_json(opened.fields, model, settings)
    else:
        named = graph_of(opened.tensors, opened.node_ids, model, settings)
    count = named.graph.num_nodes if named.targets is None else len(named.targets)
    require_few(envelope.include, count, "/targets", settings)
    return ScoreTask(
        model,
        named.graph,
        named.node_ids,
        named.targets,
        envelope.dynamics,
        envelope.dynamics.knobs(),
        frozenset(envelope.include),
    )


@dataclass(frozen=True)
class _Opened:
    """A body apart: its fields and their names if all is well, its arrays if it holds any."""

    fields: dict[str, Any]
    known: Iterable[str]
    tensors: Tensors | None = None
    node_ids: object = None
    problem: Problem | None = None


def _open(body: bytes, media_type: str) -> _Opened:
    if media_type == JSON:
        return _Opened(read_object(body, "invalid-json"), _IN_JSON)
    if media_type == SAFETENSORS:
        tensors, metadata = read_safetensors(body)
        fields = read_object(metadata.get("request", "{}").encode(), "invalid-safetensors")
        return _Opened(fields, TensorEnvelope.model_fields, tensors, fields.get("node_ids"))
    tensors, metadata = read_safetensors(body, {**TENSORS, "node_ids": ({"U8": np.uint8}, (1,))})
    problem = Problem.loads(metadata["problem"]) if "problem" in metadata else None
    if problem and "request" not in metadata:
        raise problem
    ids = tensors.pop("node_ids", None)
    node_ids = None if ids is None else orjson.loads(ids.tobytes())
    return _Opened(orjson.loads(metadata["request"]), _IN_JSON, tensors, node_ids, problem)
