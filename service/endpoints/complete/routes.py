"""POST /complete"""

from __future__ import annotations

import os
from contextlib import AsyncExitStack
from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response

from models.base import StepControl
from models.inputs.inpainting.plan import Tiling, WholeImage
from service.context import AppContext, get_context
from service.endpoints.common.api_docs import (
    IMAGE_TYPES,
    binary_response,
    job_responses,
    json_or_form_body,
    problems,
    schema_name,
)
from service.endpoints.common.include import reason_bytes
from service.endpoints.complete.decoding import DecodedRequest, decode_request
from service.endpoints.complete.encode import encode_completions
from service.endpoints.complete.infer import Completed, CompleteInputs, complete_image
from service.endpoints.complete.parse import CompletionRequest, read_request
from service.endpoints.complete.plan import find_completer, make_inputs, plan_completion
from service.endpoints.complete.previews import Frames
from service.endpoints.complete.recall import (
    RecalledMemory,
    recall_memory,
    require_fitting_memory,
    require_max_work,
)
from service.endpoints.complete.schemas import (
    CompleteForm,
    CompleteRequest,
    CompleteResponse,
    FrameEvent,
)
from service.endpoints.pipeline import InferenceTask, handle_inference
from service.engine.engine import Workload
from service.errors import Problem
from service.http.body import require_media_type
from service.http.negotiation import select_media_type
from service.http.sse import EVENTS, EventStream
from service.media_types import JSON, MULTIPART, PNG, SAFETENSORS
from service.payload import ResponsePayload, require_response_bytes
from service.settings import Settings

router = APIRouter(tags=["complete"])
_BODY = json_or_form_body(
    "An image and what of it to fill, as JSON with base64 or as a form with files.",
    CompleteRequest,
    CompleteForm,
    {"image": IMAGE_TYPES, "mask": IMAGE_TYPES, "num_samples": JSON},
)
schema_name(FrameEvent)  # which the description of the route refers to


@router.post(
    "/complete",
    response_model=CompleteResponse,
    summary="Complete an image",
    responses=problems(400, 404, 406, 408, 413, 415, 422, 429, 500, 503, 504)
    | job_responses()
    | binary_response(PNG, SAFETENSORS, EVENTS),
    openapi_extra=_BODY,
)
async def complete_unknown(
    request: Request, context: Annotated[AppContext, Depends(get_context)]
) -> Response:
    """Fill what a mask marks of an image of any size; all else comes back as it was.

    The answer comes as JSON with PNGs in base64 or, by the Accept header, as a PNG: the completion,
    or all of them side by side. What else there is to say is then in its text chunk `basin`. In a
    safetensors file the images are `image_0` and so on, with all of the reasons included. As
    `text/event-stream` it comes while it is computed: `progress` (schema FrameEvent) up to
    BASIN_MAX_FRAMES times, evenly over all steps; at last `done` with what JSON would have, or
    `failed` with the problem.
    """
    require_media_type(request, (JSON, MULTIPART), f"{JSON} and {MULTIPART}")
    accept = select_media_type(request, (JSON, PNG, SAFETENSORS, EVENTS))
    context.registry.require_ready()
    content_type = request.headers["content-type"]  # with the boundary of a form
    is_stream = accept == EVENTS
    return await handle_inference(
        request,
        CompleteTask(request, context, content_type, JSON if is_stream else accept, is_stream),
    )


class CompleteTask(InferenceTask[Completed]):
    """Fill the masked pixels of one image."""

    inputs: CompleteInputs
    frames: Frames | None
    _is_from_memory = False

    async def fingerprint(self, body: bytes) -> bytes:
        models = await super().fingerprint(body)
        # A key may be written with escapes. Once parsed, it is known that it was, and the other
        # fingerprint keeps that answer out of the cache.
        if b"memory" not in body and not self._is_from_memory:
            return models
        try:
            return models + await self.context.memories_fingerprint()
        except Problem:  # memories cannot be read now; models complete images all the same
            return models + os.urandom(16)

    async def parse(self, body: bytes, resources: AsyncExitStack) -> None:
        context, settings, timer = self.context, self.settings, self.state.timer
        upload = await self.on_codec(read_request, body, self.content_type, settings)
        model = None
        if upload.memory is None:
            model = find_completer(upload, context.registry, settings.default_completion_model)
        else:
            self._is_from_memory = True
            await self.on_codec(require_fitting_memory, upload, context.memories)
        timer.lap("parse")
        place = context.image_decoder.reserve(self.caller.name)
        run = await resources.enter_async_context(place)
        opened = await run(decode_request, upload)
        if model is None:
            model, plan = await self._recall(upload, opened)
        else:
            tiling = Tiling.from_size(model.config.size)
            plan = await self.on_codec(
                plan_completion, upload, opened, tiling, settings.max_windows
            )
        self.inputs = make_inputs(upload, opened, model, plan)
        if isinstance(model, RecalledMemory):
            require_max_work(self.inputs.memory_work, settings)
        require_response_fits(self.inputs, self.accept, settings)
        timer.lap("decode")
        self.frames = _frames(self.inputs, self.events, settings)

    async def _recall(
        self, upload: CompletionRequest, opened: DecodedRequest
    ) -> tuple[RecalledMemory, WholeImage]:
        assert upload.memory is not None
        store = self.context.memories
        memory = await self.on_codec(recall_memory, upload.memory, store, opened)
        return memory, WholeImage(opened.hole.hidden)

    def workload(self) -> Workload:
        inputs = self.inputs
        return Workload(
            flow=inputs.model.name,
            cost=inputs.cost,
            is_isolated=inputs.params.deterministic,
        )

    def run(self, control: StepControl) -> Completed:
        progress, limit = self.state.progress, self.max_tensor_bytes
        return complete_image(self.inputs, progress, control, self.frames, limit)

    async def render(self, result: Completed) -> ResponsePayload:
        inputs, metrics = self.inputs, self.context.metrics
        for completion in result.completions:
            metrics.observe_windows(inputs.model.name, inputs.patches, completion.windows)
        return await self.on_codec(encode_completions, inputs, result, self.accept)


def require_response_fits(task: CompleteInputs, form: str, settings: Settings) -> None:
    """Refuse a response that would be too large, before anything is computed."""
    size = _size(task, form)
    size = size * 4 // 3 if form == JSON else size
    size += reason_bytes(task.model.network, task.params, task.include, task.patches)
    remedy = "Lower `num_samples`, or send a smaller image."
    limit = settings.max_response_bytes
    require_response_bytes(task.count * size, limit, "/num_samples", remedy)


def _frames(task: CompleteInputs, feed: EventStream | None, settings: Settings) -> Frames | None:
    """Intermediate images of the event stream, within the limit on response bytes."""
    if feed is None:
        return None
    feed.start()
    max_frames = settings.max_response_bytes // (_size(task, JSON) * 4 // 3) - task.count
    max_frames = max(min(settings.max_frames, max_frames), 0)
    return Frames(max_frames, lambda frame: feed.publish(frame.to_event))


def _size(task: CompleteInputs, form: str) -> int:
    """Bytes of one completion where a PNG of it saves none."""
    image, box = task.image, task.box
    alpha = 0 if image.alpha is None else image.alpha[box].nbytes
    uncertainty = image.pixels[box][..., 0].size if "uncertainty" in task.include else 0
    uncertainty *= 4 if form == SAFETENSORS else 1  # float32, or a level of grey
    return image.pixels[box].nbytes + alpha + uncertainty + len(image.profile or b"")
