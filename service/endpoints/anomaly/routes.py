"""POST /anomaly/score"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request, Response
from starlette.datastructures import State

from models.inputs.graph_batch import GraphBatch
from service.context import JSON_WEIGHS, AppContext, get_context
from service.endpoints.anomaly.infer import (
    Scored,
    alike,
    named,
    packed,
    results,
    score,
    size_of,
    table,
)
from service.endpoints.anomaly.parse import ScoreTask, StoredTask, parse_score
from service.endpoints.anomaly.schemas import ScoreResponse
from service.endpoints.common.dynamics import steps_of
from service.endpoints.common.reasons import tensors
from service.endpoints.fast_path import FastRoute
from service.endpoints.openapi import also, jobs, problems, score_body
from service.endpoints.pipeline import handle_inference, run_inference
from service.http.body import require_media_type
from service.http.negotiation import select_media_type
from service.media_types import JSON, SAFETENSORS
from service.observability.stopwatch import StageTimer
from service.payload import ResponsePayload, as_json, as_tensors
from service.registry.handles import Scorer
from service.storage.graphs import DynamicGraph
from service.workers.large_json import CONDENSED, LARGE

router = APIRouter(tags=["anomaly"], route_class=FastRoute)
_Read = tuple[ScoreTask, GraphBatch | None]
_RESULT_BYTES = {JSON: 128, SAFETENSORS: 16}
"""Of a target, as `AppContext.aside` counts them: as columns it takes a tenth of the time and less.
"""
_REASON_BYTES = 128  # of a node or an edge of the graph, whatever the targets are


@router.post(
    "/anomaly/score",
    response_model=ScoreResponse,
    summary="Score the nodes of a graph",
    responses=problems(400, 404, 406, 408, 413, 415, 422, 429, 500, 503, 504)
    | jobs()
    | also(SAFETENSORS),
    openapi_extra=score_body(),
)
async def score_nodes(
    request: Request, context: Annotated[AppContext, Depends(get_context)]
) -> Response:
    """How suspicious is each node, and with what energy did the network come to think so?

    The body is JSON in one of two shapes, arrays or rows, or a safetensors file; or JSON with the
    `graph_id` of a stored graph, of which what is around the targets is taken. By the Accept header
    the answer is JSON, with the most telling of the reasons that are included, or a safetensors
    file with all of them (the rest as JSON in its metadata entry `response`).
    """
    media_type = require_media_type(request, (JSON, SAFETENSORS), f"{JSON} and {SAFETENSORS}")
    form = select_media_type(request, (JSON, SAFETENSORS))
    context.registry.require_ready()
    return await handle_inference(
        request,
        context,
        partial(answer, content_type=media_type, form=form, context=context, state=request.state),
        context.models_fingerprint,
    )


async def answer(
    body: bytes, content_type: str, form: str, context: AppContext, state: State
) -> ResponsePayload:
    """What a body of this type is answered in this form."""
    watch: StageTimer = state.stopwatch
    if content_type == JSON and len(body) > LARGE:
        readers = {model.name: model for model in context.registry.every(Scorer)}
        body = await context.large.condense(body, readers, context.settings)
        content_type = CONDENSED
        watch.lap("condense")
    weight = len(body) * (JSON_WEIGHS if content_type == JSON else 1)
    found = await context.offload_if_large(weight, _read, body, content_type, context)
    del body
    if isinstance(found, StoredTask):
        graph = await context.graphs.get(found.graph_id, "/graph_id")
        on_codec = partial(asyncio.get_running_loop().run_in_executor, context.codec)
        found = await on_codec(_taken, found, graph, context)
    task, batch = found
    watch.lap("parse")
    room = context.settings.max_response_bytes if form == SAFETENSORS else None
    size = size_of(task)
    scored = await run_inference(
        context,
        state,
        partial(score, task, batch, room=room),
        task.model.name,
        size * steps_of(task.model.network, task.knobs),
        size=size,
        alone=task.knobs.deterministic,
        alike=alike(task),
    )
    encoded = await context.offload_if_large(weight_of(task, form), _encode, task, scored, form)
    counted = task.model.name, task.graph.num_nodes, scored.convergence
    asyncio.get_running_loop().call_soon(context.metrics.observe, *counted)  # once it has gone
    return encoded if task.taken is None else encoded.passing()  # a graph that is stored changes


def _read(body: bytes, media_type: str, context: AppContext) -> _Read | StoredTask:
    task = parse_score(body, media_type, context.registry, context.settings)
    return task if isinstance(task, StoredTask) else _packed(task)


def _taken(task: StoredTask, graph: DynamicGraph, context: AppContext) -> _Read:
    return _packed(task.of(graph, context.settings))


def _packed(task: ScoreTask) -> _Read:
    return task, packed(task)


def weight_of(task: ScoreTask, form: str) -> int:
    """Of the answer, as `AppContext.aside` counts bytes."""
    told = task.graph.num_nodes if task.targets is None else len(task.targets)
    return told * _RESULT_BYTES[form] + bool(task.include) * size_of(task) * _REASON_BYTES


def _encode(task: ScoreTask, scored: Scored, form: str) -> ResponsePayload:
    rest: dict[str, Any] = {} if task.taken is None else {"graph": task.taken}
    rest |= {
        "model": task.model.told,
        "dynamics": scored.dynamics,
        "convergence": scored.convergence,
    }
    if form == SAFETENSORS:
        columns = table(task, scored.logits_N).items()
        found = {f"results.{name}": column for name, column in columns}
        rest["threshold"] = task.model.manifest.threshold
        if scored.explanations:
            told = scored.explanations.items()
            rest["explanations"] = [{"row": row, **explanation} for row, explanation in told]
        return as_tensors(found | tensors(scored.reasons), rest)
    listed: dict[str, Any] = {"results": results(task, scored)}
    if scored.reasons:
        listed["reasons"] = named(task, scored.reasons[0])
    return as_json(listed | rest)
