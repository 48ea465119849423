"""POST /sample"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, Depends, Request, Response
from starlette.datastructures import State

from models.memories import sequences_of
from service.context import AppContext, get_context
from service.endpoints.fast_path import FastRoute
from service.endpoints.openapi import also, jobs, problems, sample_body
from service.endpoints.pipeline import handle_inference, run_inference
from service.endpoints.sample.infer import Sampled, sample
from service.endpoints.sample.parse import SampleTask, parse_sample
from service.endpoints.sample.schemas import SampleResponse
from service.errors import Problem
from service.http.body import require_media_type, require_small
from service.http.negotiation import select_media_type
from service.imaging.encode import grid, png
from service.media_types import JSON, PNG, SAFETENSORS
from service.observability.stopwatch import StageTimer
from service.payload import ResponsePayload, as_json, as_picture, as_tensors

router = APIRouter(tags=["sample"], route_class=FastRoute)
_A_STEP = 10_000  # of the unit of `work` in the time that a network takes for a step of a token


@router.post(
    "/sample",
    response_model=SampleResponse,
    response_model_exclude_unset=True,
    summary="Sample from a memory",
    responses=problems(400, 404, 406, 408, 413, 415, 422, 429, 500, 504)
    | jobs()
    | also(SAFETENSORS, PNG),
    openapi_extra=sample_body(),
)
async def sample_memory(
    request: Request, context: Annotated[AppContext, Depends(get_context)]
) -> Response:
    """Langevin chains on the modern Hopfield energy of a memory, which needs no training.

    The answer comes as JSON, as a safetensors file (tensor `samples`, or `samples_0` and so on
    for a list of beta; the rest as JSON in the metadata entry `response`), or, for images, as a
    PNG of all samples (the rest in its text chunk `basin`), by the Accept header.
    """
    media_type = require_media_type(request, (JSON, SAFETENSORS), f"{JSON} and {SAFETENSORS}")
    form = select_media_type(request, (JSON, SAFETENSORS, PNG))
    return await handle_inference(
        request,
        context,
        partial(answer, content_type=media_type, form=form, context=context, state=request.state),
        context.memories_fingerprint,
    )


async def answer(
    body: bytes, content_type: str, form: str, context: AppContext, state: State
) -> ResponsePayload:
    """What a body of this type is answered in this form."""
    watch: StageTimer = state.stopwatch
    on_codec = partial(asyncio.get_running_loop().run_in_executor, context.codec)
    require_small(body, content_type)
    task = await on_codec(parse_sample, body, content_type, context.memories, context.settings)
    del body
    if form == PNG and task.memory.codec.kind != "images":
        raise Problem("not-acceptable", "only a memory of images answers with a picture")
    watch.lap("parse")
    run, cost = partial(sample, task, state.progress), task.work / _A_STEP
    sampled = await run_inference(context, state, run, "sample", cost)
    encoded = await on_codec(_encode, task, sampled, form)
    context.metrics.observe_samples(task, sampled)
    return encoded


def _encode(task: SampleTask, sampled: Sampled, form: str) -> ResponsePayload:
    memory = task.memory
    rest: dict[str, Any] = {
        "inflection": sampled.inflection,
        "memory": {
            "id": task.memory_id,
            "kind": memory.codec.kind,
            "patterns": memory.count,
            "dim": memory.dim,
            "shape": task.shape,
            "sha256": memory.sha256,
        },
        "dynamics": sampled.dynamics,
    }
    items = [batch.items for batch in sampled.batches]
    diagnostics = [batch.diagnostics for batch in sampled.batches]
    if form == JSON:
        batches = [
            {"samples": _listed(memory.codec.kind, part), "diagnostics": told}
            for part, told in zip(items, diagnostics, strict=True)
        ]
        return as_json(({"spectrum": batches} if task.spectrum else batches[0]) | rest)
    told = {"spectrum": diagnostics} if task.spectrum else {"diagnostics": diagnostics[0]}
    if form == PNG:
        # A row of a spectrum for each temperature, else a square.
        columns = len(items[0]) if len(items) > 1 else None
        return as_picture(png(grid(np.concatenate(items), columns)), told | rest)
    names = [f"samples_{i}" for i in range(len(items))] if task.spectrum else ["samples"]
    arrays = {name: np.ascontiguousarray(part) for name, part in zip(names, items, strict=True)}
    return as_tensors(arrays, told | rest)


def _listed(kind: str, items: np.ndarray) -> np.ndarray | list[str]:
    return sequences_of(items) if kind == "sequences" else np.ascontiguousarray(items)
