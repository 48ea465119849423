"""POST /complete"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, Depends, Request, Response
from starlette.datastructures import State

from service.context import AppContext, get_context
from service.endpoints.common.dynamics import steps_of
from service.endpoints.common.envelope import require_supported_params
from service.endpoints.common.include import bytes_of, require_supported_includes
from service.endpoints.common.reasons import tensors
from service.endpoints.common.reasons import told as told_of
from service.endpoints.complete.infer import Completed, CompleteTask, complete_picture
from service.endpoints.complete.parse import read_request
from service.endpoints.complete.previews import Frames
from service.endpoints.complete.schemas import CompleteResponse
from service.endpoints.complete.tiling import plan_windows
from service.endpoints.fast_path import FastRoute
from service.endpoints.openapi import also, complete_body, jobs, problems
from service.endpoints.pipeline import handle_inference, run_inference
from service.errors import make_problem
from service.http.body import require_media_type
from service.http.negotiation import select_media_type
from service.http.sse import EVENTS, EventStream
from service.imaging.encode import base64_png, sheet
from service.imaging.image import ImageData, with_pointer
from service.media_types import JSON, MULTIPART, PNG, SAFETENSORS
from service.observability.stopwatch import StageTimer
from service.payload import ResponsePayload, as_json, as_picture, as_tensors
from service.registry.handles import Completer
from service.settings import Settings

router = APIRouter(tags=["complete"], route_class=FastRoute)


@router.post(
    "/complete",
    response_model=CompleteResponse,
    summary="Complete a picture",
    responses=problems(400, 404, 406, 408, 413, 415, 422, 429, 500, 503, 504)
    | jobs()
    | also(PNG, SAFETENSORS, EVENTS),
    openapi_extra=complete_body(),
)
async def complete_unknown(
    request: Request, context: Annotated[AppContext, Depends(get_context)]
) -> Response:
    """Fill what a mask marks of a picture of any size; all else comes back as it was.

    The answer comes as JSON with PNGs in base64 or, by the Accept header, as a PNG: the completion,
    or all of them side by side. What else there is to say is then in its text chunk `basin`. In a
    safetensors file the pictures are `image_0` and so on, with all of the reasons included. As
    `text/event-stream` it comes while it is computed: `progress` (schema FrameEvent) up to
    BASIN_MAX_FRAMES times, evenly over all steps; at last `done` with what JSON would have, or
    `failed` with the problem.
    """
    require_media_type(request, (JSON, MULTIPART), f"{JSON} and {MULTIPART}")
    form = select_media_type(request, (JSON, PNG, SAFETENSORS, EVENTS))
    context.registry.require_ready()
    content_type = request.headers["content-type"]  # with the boundary of its parts
    return await handle_inference(
        request,
        context,
        partial(
            answer,
            content_type=content_type,
            form=JSON if form == EVENTS else form,
            context=context,
            state=request.state,
        ),
        context.models_fingerprint,
        as_events=form == EVENTS,
    )


async def answer(
    body: bytes, content_type: str, form: str, context: AppContext, state: State
) -> ResponsePayload:
    """What a body of this type is answered in this form."""
    watch: StageTimer = state.stopwatch
    settings = context.settings
    on_codec = partial(asyncio.get_running_loop().run_in_executor, context.codec)
    asked = await on_codec(read_request, body, content_type, settings)
    del body
    name = asked.model or settings.default_completion_model
    model = context.registry.serving(Completer, name)
    require_supported_params(asked.dynamics, model.network.config)
    require_supported_includes(model.network, asked.include)
    watch.lap("parse")
    async with context.pictures.open(asked) as opened:
        c, most = model.config, settings.max_windows // asked.num_samples
        with with_pointer("/mask" if asked.mask else "/image"):
            plan = await on_codec(plan_windows, opened.unknown, c.size, c.patch, most)
        task = CompleteTask(
            model, opened.picture, plan, asked.num_samples, asked.dynamics.knobs(), asked.include
        )
        require_answerable(task, form, settings)
        watch.lap("decode")
        frames = _frames(task, state.feed, settings)
        room = settings.max_response_bytes if form == SAFETENSORS else None
        completed = await run_inference(
            context,
            state,
            partial(complete_picture, task, state.progress, frames=frames, room=room),
            task.model.name,
            task.rows * task.patches * steps_of(task.model.network, task.knobs),
            alone=task.knobs.deterministic,
        )
        return await on_codec(_encode, task, completed, form, context)


def require_answerable(task: CompleteTask, form: str, settings: Settings) -> None:
    """Refuse what would answer with too much, before it is begun."""
    size = _size(task.picture) * 4 // 3 if form == JSON else _size(task.picture)
    size += bytes_of(task.model.network, task.knobs, task.include, task.patches)
    if (size := task.count * size) > settings.max_response_bytes:
        rule = f"an answer may have {settings.max_response_bytes} bytes; this may have {size}"
        raise make_problem("invalid-request", "/num_samples", "too_large", rule)


def _frames(task: CompleteTask, feed: EventStream | None, settings: Settings) -> Frames | None:
    """Those that a feed is told: with the answer no more than an answer may have."""
    if feed is None:
        return None
    feed.start()
    room = settings.max_response_bytes // (_size(task.picture) * 4 // 3) - task.count
    return Frames(max(min(settings.max_frames, room), 0), lambda frame: feed.publish(frame.told))


def _size(picture: ImageData) -> int:
    """Bytes of a picture where a PNG of it saves none."""
    alpha = 0 if picture.alpha is None else picture.alpha.nbytes
    return picture.pixels.nbytes + alpha + len(picture.profile or b"")


def _encode(
    task: CompleteTask, completed: Completed, form: str, context: AppContext
) -> ResponsePayload:
    for one in completed.completions:
        context.metrics.observe_windows(task.model.name, task.patches, one.windows)
    pictures = [one.picture for one in completed.completions]
    images: list[dict[str, Any]] = [
        {"convergence": one.convergence} for one in completed.completions
    ]
    reasons = [one.reasons for one in completed.completions if one.reasons is not None]
    rest = {"model": task.model.told, "dynamics": completed.dynamics}
    if form == SAFETENSORS:
        arrays = {f"image_{i}": np.array(each.array()) for i, each in enumerate(pictures)}
        return as_tensors(arrays | tensors(reasons), {"images": images, **rest})
    for image, each in zip(images, reasons, strict=False):
        image["reasons"] = told_of(each, tiles=True)
    if form == JSON:
        told = [{"b64_png": base64_png(p), **one} for p, one in zip(pictures, images, strict=True)]
        return as_json({"images": told, **rest})
    return as_picture(sheet(pictures), {"images": images, **rest})
