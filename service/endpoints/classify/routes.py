"""POST /classify"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Annotated

import numpy as np
from fastapi import APIRouter, Depends, Request, Response
from starlette.datastructures import State

from models.inputs.molecules import Molecule, MoleculeError
from service.context import AppContext, get_context
from service.endpoints.classify.explanation import Explained
from service.endpoints.classify.infer import (
    ENTRIES,
    Classified,
    classify,
    error_of,
    graph_results,
    require_any,
)
from service.endpoints.classify.parse import ClassifyTask, Item, parse_classify
from service.endpoints.classify.schemas import ClassifyResponse
from service.endpoints.common.convergence import aggregate
from service.endpoints.common.dynamics import steps_of
from service.endpoints.common.reasons import tensors
from service.endpoints.fast_path import FastRoute
from service.endpoints.openapi import also, classify_body, jobs, problems
from service.endpoints.pipeline import handle_inference, run_inference
from service.http.body import require_media_type, require_small
from service.http.negotiation import select_media_type
from service.media_types import JSON, SAFETENSORS
from service.observability.stopwatch import StageTimer
from service.payload import ResponsePayload, as_json, as_tensors
from service.workers.smiles_pool import OUT_OF_TIME

_MOST_SVG = 1 << 18  # characters of a drawing

router = APIRouter(tags=["classify"], route_class=FastRoute)


@router.post(
    "/classify",
    response_model=ClassifyResponse,
    summary="Classify molecules or graphs",
    responses=problems(400, 404, 406, 408, 413, 415, 422, 429, 500, 503, 504)
    | jobs()
    | also(SAFETENSORS),
    openapi_extra=classify_body(),
)
async def classify_graphs(
    request: Request, context: Annotated[AppContext, Depends(get_context)]
) -> Response:
    """What is each molecule or graph, and with what energy did the network come to think so?

    One result per input, in order. A SMILES that cannot be read is an error in its place; only a
    request of nothing else is refused. By the Accept header the answer is JSON, with the most
    telling of the reasons that are included, or a safetensors file with all of them, row after row
    (`index` says of which inputs; the rest is JSON in its metadata entry `response`).
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
    on_codec = partial(asyncio.get_running_loop().run_in_executor, context.codec)
    require_small(body, content_type)
    task = await on_codec(parse_classify, body, content_type, context.registry, context.settings)
    del body
    watch.lap("parse")
    molecules: list[Molecule | MoleculeError] = []
    if task.smiles is not None:
        molecules = await context.molecules.parse_async(task.smiles)
        watch.lap("molecules")
    items = task.items(molecules, context.settings.max_smiles_length)
    errors = [item.error for item in items]
    context.metrics.observe_item_errors(task.model.name, errors)
    require_any(task, errors)
    graphs = [item.graph for item in items if item.graph is not None]
    room = context.settings.max_response_bytes if form == SAFETENSORS else None
    run = partial(classify, task.model, graphs, task.knobs, include=task.include, room=room)
    size = sum(graph.num_nodes + graph.edge_index.shape[1] for graph in graphs)
    cost = size * steps_of(task.model.network, task.knobs)
    name, alone = task.model.name, task.knobs.deterministic
    held = min(size, ENTRIES)
    classified = await run_inference(context, state, run, name, cost, size=held, alone=alone)
    drawn = True
    if task.smiles is not None and classified.explained:
        drawn = await _draw(task.smiles, items, classified.explained, context)
        watch.lap("draw")
    encoded = await on_codec(_encode, task, items, classified, form, context)
    in_time = drawn and not any(code in OUT_OF_TIME for code, _ in filter(None, errors))
    return encoded if in_time else encoded.passing()


async def _draw(
    smiles: Sequence[str],
    items: Sequence[Item],
    explained: Sequence[Explained],
    context: AppContext,
) -> bool:
    """Add to each explanation of a molecule its drawing; was there one for each?"""
    read = [text for text, item in zip(smiles, items, strict=True) if item.graph is not None]
    asked = [
        (text, told, effect_N.tolist())
        for text, one in zip(read, explained, strict=False)
        for told, effect_N in zip(one.told.values(), one.effect_TN, strict=True)
    ]
    drawable = [(text, told, effects) for text, told, effects in asked if effects]
    texts, effects = [text for text, _, _ in drawable], [each for _, _, each in drawable]
    for _, told, _ in asked:
        told["svg"] = None
    if not drawable:
        return True
    drawn = await context.molecules.draw_async(texts, effects, _MOST_SVG)
    for (_, told, _), svg in zip(drawable, drawn, strict=True):
        told["svg"] = svg
    return None not in drawn


def _encode(
    task: ClassifyTask,
    items: list[Item],
    classified: Classified,
    form: str,
    context: AppContext,
) -> ResponsePayload:
    found = graph_results(task, items, classified, listed=form == JSON)
    context.metrics.observe_classified(task.model.name, items, found)
    require_any(task, [error_of(result) for result in found])
    rows = [result["convergence"] for result in found if "convergence" in result]
    rest = {
        "model": task.model.told,
        "dynamics": classified.dynamics,
        "convergence": aggregate(rows),
    }
    if form == JSON:
        return as_json({"results": found} | rest)
    arrays = tensors(classified.reasons)
    if arrays:
        arrays["index"] = np.flatnonzero([item.graph is not None for item in items])
    return as_tensors(arrays, {"results": found} | rest)
