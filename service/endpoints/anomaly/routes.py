"""POST /anomaly/score"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response

from models.base import StepControl
from models.inputs.graph_batch import GraphBatch
from service.context import JSON_COST_FACTOR, AppContext, get_context
from service.endpoints.anomaly.encode import encode_scores
from service.endpoints.anomaly.infer import (
    Scored,
    count_results,
    pack_if_large,
    require_scores_fit,
    response_weight,
    score,
    workload_of,
)
from service.endpoints.anomaly.parse import (
    ScoreInputs,
    StoredScoreInputs,
    TransactionScoreInputs,
    parse_score,
)
from service.endpoints.anomaly.schemas import (
    ArrayScoreRequest,
    RowScoreRequest,
    ScoreResponse,
    StoredScoreRequest,
    TensorEnvelope,
    TransactionScoreRequest,
)
from service.endpoints.common.api_docs import (
    binary_response,
    job_responses,
    json_or_tensors_body,
    list_tensors,
    problems,
    schema_name,
)
from service.endpoints.pipeline import InferenceTask, handle_inference
from service.engine.engine import Workload
from service.http.body import require_media_type
from service.http.negotiation import select_media_type
from service.media_types import JSON, SAFETENSORS
from service.payload import ResponsePayload
from service.registry.handles import Scorer
from service.storage.graphs import StoredGraph
from service.validation.safetensors_body import GRAPH_TENSORS
from service.workers.large_json import CONDENSED, MAX_INLINE_BYTES

router = APIRouter(tags=["anomaly"])
_Packed = tuple[ScoreInputs, GraphBatch | None, Workload]
_BODY = json_or_tensors_body(
    f"JSON, or a safetensors file with the tensors {list_tensors(GRAPH_TENSORS)}, of which "
    "`edge_type` and `targets` (row numbers) may be left out, and `edge_attr` comes with models "
    "that have `edge_features`. The entry `request` of its `__metadata__` holds the rest as JSON "
    f"text, after the schema {schema_name(TensorEnvelope)}.",
    ArrayScoreRequest,
    RowScoreRequest,
    StoredScoreRequest,
    TransactionScoreRequest,
)


@router.post(
    "/anomaly/score",
    response_model=ScoreResponse,
    summary="Score the nodes of a graph",
    responses=problems(400, 404, 406, 408, 413, 415, 422, 429, 500, 503, 504)
    | job_responses()
    | binary_response(SAFETENSORS),
    openapi_extra=_BODY,
)
async def score_nodes(
    request: Request, context: Annotated[AppContext, Depends(get_context)]
) -> Response:
    """How suspicious is each node, and with what energy did the network come to think so?

    The body is JSON in one of two shapes, arrays or rows, or a safetensors file; or JSON with the
    `graph_id` of a stored graph, of which what is around the targets is taken; or JSON with
    `transactions`, where the model was trained on a table of them. By the Accept header
    the answer is JSON, with the most telling of the reasons that are included, or a safetensors
    file with all of them (the rest as JSON in its metadata entry `response`).
    """
    media_type = require_media_type(request, (JSON, SAFETENSORS), f"{JSON} and {SAFETENSORS}")
    accept = select_media_type(request, (JSON, SAFETENSORS))
    context.registry.require_ready()
    return await handle_inference(request, ScoreTask(request, context, media_type, accept))


class ScoreTask(InferenceTask[Scored]):
    """Score the nodes of one graph, sent or stored."""

    inputs: ScoreInputs
    batch: GraphBatch | None  # the graph as the model takes it, if it is packed before its turn
    _workload: Workload

    async def parse(self, body: bytes, resources: AsyncExitStack) -> None:
        context, content_type = self.context, self.content_type
        if content_type == JSON and len(body) > MAX_INLINE_BYTES:
            models = context.registry.list_models_of_kind(Scorer)
            readers = {model.name: model for model in models}
            key = self.caller.name
            condensed = await context.large_json.condense(body, readers, self.settings, key)
            if condensed is not None:
                body, content_type = condensed, CONDENSED
            self.state.timer.lap("condense")
        weight = len(body) * (JSON_COST_FACTOR if content_type == JSON else 1)
        parsed = await context.offload_if_large(weight, self._read, body, content_type)
        if isinstance(parsed, StoredScoreInputs):
            graph = await context.graphs.get(parsed.graph_id, "/graph_id")
            parsed = await self.on_codec(self._take_subgraph, parsed, graph)
        elif isinstance(parsed, TransactionScoreInputs):
            parsed = await self.on_codec(self._build_neighborhoods, parsed)
        self.inputs, self.batch, self._workload = parsed
        self.state.timer.lap("parse")

    def _read(
        self, body: bytes, content_type: str
    ) -> _Packed | StoredScoreInputs | TransactionScoreInputs:
        inputs = parse_score(body, content_type, self.context.registry, self.settings)
        return self._pack(inputs) if isinstance(inputs, ScoreInputs) else inputs

    def _build_neighborhoods(self, inputs: TransactionScoreInputs) -> _Packed:
        return self._pack(inputs.build(self.settings))

    def _take_subgraph(self, inputs: StoredScoreInputs, graph: StoredGraph) -> _Packed:
        return self._pack(inputs.from_stored(graph, self.settings))

    def _pack(self, inputs: ScoreInputs) -> _Packed:
        require_scores_fit(inputs, self.accept, self.settings)
        return inputs, pack_if_large(inputs), workload_of(inputs)

    @property
    def num_results(self) -> int | None:
        return count_results(self.inputs)

    def workload(self) -> Workload:
        return self._workload

    def run(self, control: StepControl) -> Scored:
        return score(self.inputs, self.batch, control, max_tensor_bytes=self.max_tensor_bytes)

    async def render(self, result: Scored) -> ResponsePayload:
        inputs, context = self.inputs, self.context
        weight = response_weight(inputs, self.accept)
        payload = await context.offload_if_large(weight, encode_scores, inputs, result, self.accept)
        # Counted once the response has been handed to the transport.
        asyncio.get_running_loop().call_soon(
            context.metrics.observe, inputs.model.name, inputs.graph.num_nodes, result.convergence
        )
        # A stored graph may change, and its revision is no part of the cache key.
        return payload if inputs.subgraph is None else payload.without_caching()
